"""``tenure guard …``: what the systems that executors write to need, to refuse stale work."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from tenure.cli.arguments import read_secret_argument
from tenure.cli.exits import CommandError, Exit, UsageError, needs
from tenure.cli.instants import read_length
from tenure.cli.output import Output, print_json, print_table
from tenure.executor.guards.http_tables import tables
from tenure.executor.guards.payment_table import table
from tenure.executor.guards.sql_install import install_statements

if TYPE_CHECKING:
    from tenure.executor.guards.conformance import Outcome

app = App(
    name="guard", help="What guarded receivers need, and whether they refuse what they should."
)
check = App(name="check", help="Play what goes wrong against a receiver: does it refuse?")
app.command(check)

SHORTEST_RETENTION: Final = timedelta(days=1)


@app.command
def sql(
    *,
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print the SQL; nothing else is done.")
    ] = False,
    schema: Annotated[str, Parameter(help="Schema for the guard's tables.")] = "public",
    role: Annotated[
        tuple[str, ...],
        Parameter(help="Account that executors log in with; may be given several times."),
    ] = (),
) -> None:
    """Print what the owner of a downstream database runs once, so that it refuses stale attempts.

    PostgreSQL 15 or newer. May be run again.
    """
    if not print_:
        raise UsageError("`tenure guard sql` only prints: say --print.")
    try:
        print(install_statements(schema=schema, roles=role), end="")
    except ValueError as error:
        raise UsageError(f"{error}.") from error


@app.command
def http(
    *,
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print the SQL; nothing else is done.")
    ] = False,
    schema: Annotated[str, Parameter(help="Schema for the tables.")] = "public",
) -> None:
    """Print the tables of an HTTP receiver that keeps its requests in PostgreSQL.

    May be run again.
    """
    if not print_:
        raise UsageError("`tenure guard http` only prints: say --print.")
    try:
        print(tables(schema=schema), end="")
    except ValueError as error:
        raise UsageError(f"{error}.") from error


@app.command
def payment(
    *,
    print_: Annotated[
        bool, Parameter(name="--print", negative="", help="Print the SQL; nothing else is done.")
    ] = False,
    schema: Annotated[str, Parameter(help="Schema for the table.")] = "public",
    role: Annotated[
        tuple[str, ...],
        Parameter(help="Account that executors log in with; may be given several times."),
    ] = (),
) -> None:
    """Print the table of a record of payments; `tenure guard sql` has to be installed beside it.

    May be run again.
    """
    if not print_:
        raise UsageError("`tenure guard payment` only prints: say --print.")
    try:
        print(table(schema=schema, roles=role), end="")
    except ValueError as error:
        raise UsageError(f"{error}.") from error


@check.command(name="sql")
def check_sql(
    url: Annotated[
        str, Parameter(help="The downstream database, as executors log in to it, or @FILE.")
    ],
    /,
    *,
    schema: Annotated[str, Parameter(help="Schema of the guard's tables.")] = "public",
    output: Output = "table",
) -> None:
    """Check a guarded PostgreSQL. Leaves a few rows of tasks that nobody knows.

    Exit code 1 when it does not refuse what it should.
    """
    with needs("sql"):
        from tenure.executor.guards.conformance_sql import check_sql as checked
    _report(asyncio.run(checked(read_secret_argument("URL", url), schema=schema)), output)


@check.command(name="http")
def check_http(
    url: Annotated[str, Parameter(help="What the requests go to. It acts, so one for tests.")],
    /,
    *,
    method: Annotated[str, Parameter(help="Their method.")] = "POST",
    body: Annotated[str, Parameter(help="Their body, or @FILE.")] = "{}",
    content_type: Annotated[str, Parameter(help="Their media type.")] = "application/json",
    header: Annotated[
        tuple[str, ...], Parameter(help="Another header, NAME: VALUE, or @FILE; several times.")
    ] = (),
    fence_url: Annotated[
        str | None,
        Parameter(help="Where fences are raised. [default: the middleware's path on that host]"),
    ] = None,
    output: Output = "table",
) -> None:
    """Check an HTTP receiver, whoever wrote its half.

    Exit code 1 when it does not refuse what it should.
    """
    with needs("http"):
        import httpx2

        from tenure.executor.guards.conformance_http import Endpoint
        from tenure.executor.guards.conformance_http import check_http as checked

    headers = dict(_header(read_secret_argument("--header", each)) for each in header)

    async def run() -> "list[Outcome]":
        async with httpx2.AsyncClient(base_url=_origin(url), headers=headers) as client:
            content = read_secret_argument("--body", body).encode()
            return await checked(Endpoint(client, url, method, content, content_type, fence_url))

    _report(asyncio.run(run()), output)


@check.command(name="objects")
def check_objects(
    url: Annotated[
        str,
        Parameter(
            help="file:///FOLDER, s3://BUCKET/PREFIX, gs://… or az://…, with keys and region in the"
            " environment."
        ),
    ],
    /,
    *,
    output: Output = "table",
) -> None:
    """Check an object store. What it writes is deleted again.

    Exit code 1 when it does not refuse what it should.
    """
    with needs("objects"):
        from tenure.executor.guards.conformance_objects import check_objects as checked
        from tenure.executor.guards.objects import open_store
    try:
        store = open_store(url)
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    _report(asyncio.run(checked(store)), output)


@app.command
def prune(
    database: Annotated[
        str | None,
        Parameter(help="The database, as the owner of the guard's tables logs in to it, or @FILE."),
    ] = None,
    /,
    *,
    older_than: Annotated[
        str, Parameter(help="What was last touched so long ago goes: 30d. At least a day.")
    ],
    schema: Annotated[str, Parameter(help="Schema of the guard's tables.")] = "public",
    sqlite: Annotated[
        Path | None, Parameter(help="Instead of a database: the file of requests or payments.")
    ] = None,
    output: Output = "table",
) -> None:
    """Remove what guards no longer need: fences, inbox rows, answered requests, settled payments.

    An operation that is repeated after that is done again: keep them for longer than a task with
    all its attempts lives. May run while everything runs.
    """
    age = read_length(older_than, "--older-than")
    if age < SHORTEST_RETENTION:
        raise UsageError(
            "--older-than: at least a day.",
            next_step="A task whose row has gone is done again by its next attempt.",
        )
    where = _one_of(database, sqlite)
    if isinstance(where, Path):
        from tenure.executor.guards import sqlite_files

        removed = asyncio.run(sqlite_files.prune(where, age.total_seconds()))
    else:
        with needs("sql"):
            from tenure.executor.guards import sql_prune
        removed = asyncio.run(sql_prune.prune(where, older_than=age, schema=schema))
    if output == "json":
        print_json(removed)
    else:
        print_table(("TABLE", "REMOVED"), list(removed.items()))


@app.command
def unsettled(
    database: Annotated[
        str | None,
        Parameter(help="The database, as the owner of the guard's tables logs in to it, or @FILE."),
    ] = None,
    /,
    *,
    schema: Annotated[str, Parameter(help="Schema of the guard's tables.")] = "public",
    sqlite: Annotated[
        Path | None, Parameter(help="Instead of a database: the file of requests or payments.")
    ] = None,
    output: Output = "table",
) -> None:
    """List what somebody has to look at: requests that were interrupted with their process, and
    payments that were intended more than ten minutes ago and never settled.
    """
    where = _one_of(database, sqlite)
    if isinstance(where, Path):
        from tenure.executor.guards import sqlite_files

        found = asyncio.run(sqlite_files.unsettled(where))
    else:
        with needs("sql"):
            from tenure.executor.guards import sql_unsettled
        found = asyncio.run(sql_unsettled.unsettled(where, schema=schema))
    if output == "json":
        print_json(
            [
                {
                    "kind": one.kind,
                    "key": one.key,
                    "scope": one.scope,
                    "task": one.task,
                    "since": one.since.isoformat(),
                }
                for one in found
            ]
        )
    else:
        print_table(
            ("KIND", "KEY", "SCOPE", "TASK", "SINCE"),
            [(one.kind, one.key, one.scope or None, one.task, one.since) for one in found],
        )


@app.command
def forget(
    key: Annotated[str, Parameter(help="As `tenure guard unsettled` names it.")],
    database: Annotated[
        str | None,
        Parameter(help="The database, as the owner of the guard's tables logs in to it, or @FILE."),
    ] = None,
    /,
    *,
    scope: Annotated[str | None, Parameter(help="Whose key it is, where several have it.")] = None,
    schema: Annotated[str, Parameter(help="Schema of the guard's tables.")] = "public",
    sqlite: Annotated[
        Path | None, Parameter(help="Instead of a database: the file of requests or payments.")
    ] = None,
) -> None:
    """Forget an unsettled request or payment, since somebody has seen that it did nothing.

    The next attempt of its task does it. What was settled, or is under way, is not forgotten.
    """
    where = _one_of(database, sqlite)
    if isinstance(where, Path):
        from tenure.executor.guards import sqlite_files

        gone = asyncio.run(sqlite_files.forget(where, scope or "", key))
    else:
        with needs("sql"):
            from tenure.executor.guards import sql_unsettled
        gone = asyncio.run(sql_unsettled.forget(where, key, scope=scope, schema=schema))
    if not gone:
        raise CommandError(
            f"nothing unsettled has the key {key!r}.",
            code="not_found",
            next_step="`tenure guard unsettled` lists what there is.",
        )
    print(f"forgotten: {key}")


def _report(outcomes: "list[Outcome]", output: str) -> None:
    if output == "json":
        print_json(
            [{"check": one.check, "passed": one.passed, "says": one.says} for one in outcomes]
        )
    else:
        print_table(
            ("", "CHECK", "FOUND"),
            [("ok" if one.passed else "fail", one.check, one.says) for one in outcomes],
        )
    if not all(one.passed for one in outcomes):
        sys.exit(Exit.REFUSED)


def _one_of(database: str | None, sqlite: Path | None) -> str | Path:
    """The address of a database, or a file. Raises UsageError."""
    if (database is None) == (sqlite is None):
        raise UsageError("name a database, or --sqlite FILE.")
    if sqlite is not None and not sqlite.is_file():
        raise UsageError(f"--sqlite: {sqlite} is no file.")
    return sqlite if sqlite is not None else read_secret_argument("DATABASE", str(database))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header: {text!r} is not NAME: VALUE.")
    return name.strip(), value.strip()


def _origin(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if scheme not in ("http", "https") or not separator or not rest:
        raise UsageError(f"{url!r} is no http:// or https:// address.")
    return f"{scheme}://{rest.partition('/')[0]}"
