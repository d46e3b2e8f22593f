"""``tenure guard …``: what the systems that executors write to need, to refuse stale work."""

from typing import Annotated

from cyclopts import App, Parameter

from tenure.cli.exits import UsageError
from tenure.executor.guards.http_tables import tables
from tenure.executor.guards.payment_table import table
from tenure.executor.guards.sql_install import install_statements

app = App(name="guard", help="What guarded databases need.")


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
