"""A task in the application's own transaction: ``enqueue(connection, TaskType, input)``.

    async with connection.transaction():                      # asyncpg
        await connection.execute("insert into orders …")
        task_id = await enqueue(connection, Invoice, InvoiceIn(order=17), idempotency_key="17")

The commit makes the task, a rollback leaves none: there is no moment at which one is there without
the other. It is one call of the SQL function ``tenure.enqueue``, which any language can make; the
application's tables have to be in the same database as Tenure's schema. Takes a connection of
asyncpg or psycopg 3 (asynchronous or not) and imports neither: whoever has one has its driver.
"""

import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, Protocol, TypedDict, Unpack, overload

from tenure.client.errors import EnqueueRefused
from tenure.contract.codec import check_value, encode_json
from tenure.contract.codes import Code
from tenure.contract.reports import Resources
from tenure.contract.scope import Scope
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tenure.contract.tasktype import InputT, TaskType, named


class EnqueueOptions(TypedDict, total=False):
    """What may be asked for besides type and input.

    ``idempotency_key``: the same key gives the same task, over HTTP too; with other content it is
    refused. ``priority``: -100 to 100, higher first. ``not_before``, ``deadline``: with their time
    zone. ``resources``: without, as the type declares. ``concurrency_key``: what it counts with
    under limits. ``tenant``: only for a login of several. ``scope``: what its leases permit of what
    its type permits. ``traceparent``: the trace that its events and its handler get.
    """

    idempotency_key: str | None
    priority: int
    not_before: datetime | None
    deadline: datetime | None
    resources: Resources | None
    concurrency_key: str | None
    tenant: str | None
    scope: Scope | None
    traceparent: str | None


class AsyncpgConnection(Protocol):
    """What a connection of asyncpg, its pool's included, looks like from here."""

    def fetchval(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]:
        """First value of the first row."""


class Rows(Protocol):
    """A cursor of psycopg."""

    def fetchone(self) -> Any:
        """The next row."""


class PsycopgConnection(Protocol):
    """What a connection of psycopg 3 looks like from here."""

    def execute(self, query: Any, params: Any = ..., /) -> Rows:
        """Run a statement."""


class AsyncRows(Protocol):
    """An asynchronous cursor of psycopg."""

    def fetchone(self) -> Coroutine[Any, Any, Any]:
        """The next row."""


class AsyncPsycopgConnection(Protocol):
    """What an asynchronous connection of psycopg 3 looks like from here."""

    def execute(self, query: Any, params: Any = ..., /) -> Coroutine[Any, Any, AsyncRows]:
        """Run a statement."""


@overload
def enqueue(
    connection: AsyncpgConnection | AsyncPsycopgConnection,
    task_type: TaskType[InputT, Any],
    input: InputT,
    **options: Unpack[EnqueueOptions],
) -> Coroutine[Any, Any, str]: ...


@overload
def enqueue(
    connection: PsycopgConnection,
    task_type: TaskType[InputT, Any],
    input: InputT,
    **options: Unpack[EnqueueOptions],
) -> str: ...


def enqueue(
    connection: Any,
    task_type: TaskType[InputT, Any],
    input: InputT,
    **options: Unpack[EnqueueOptions],
) -> Any:
    """Ask for a task in the transaction that is open on ``connection``; gives the task's id.

    With an asynchronous connection the id is awaited. Begins and ends no transaction: without one,
    each call is its own (asyncpg, autocommit) or the driver opens one (psycopg).

    What can be seen without the database raises InvalidPayload or EnqueueRefused at once, and the
    transaction goes on. What the database refuses raises EnqueueRefused, and the transaction can
    only be rolled back, to a savepoint at least. Other errors are the driver's own.
    """
    values = _values(task_type, input, options)
    if hasattr(connection, "acquire"):
        raise TypeError("enqueue takes the connection whose transaction is open, not its pool")
    if hasattr(connection, "fetchval"):
        return _over_asyncpg(connection, values)
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(connection, psycopg.AsyncConnection):
        return _over_async_psycopg(connection, values)
    if psycopg is not None and isinstance(connection, psycopg.Connection):
        return _over_psycopg(connection, values)
    raise TypeError(
        f"enqueue takes a connection of asyncpg or psycopg 3, not {type(connection).__name__}"
    )


async def _over_asyncpg(connection: Any, values: tuple[Any, ...]) -> str:
    with _coded():
        return str(await connection.fetchval(_FOR_ASYNCPG, *values))


async def _over_async_psycopg(connection: Any, values: tuple[Any, ...]) -> str:
    with _coded():
        async with connection.cursor(row_factory=_first) as cursor:
            await cursor.execute(_FOR_PSYCOPG, values)
            return str(await cursor.fetchone())


def _over_psycopg(connection: Any, values: tuple[Any, ...]) -> str:
    with _coded(), connection.cursor(row_factory=_first) as cursor:
        cursor.execute(_FOR_PSYCOPG, values)
        return str(cursor.fetchone())


def _first(_: Any) -> Callable[[Any], Any]:
    """A row factory of psycopg: the first value, whatever rows the connection makes."""
    return itemgetter(0)


@contextmanager
def _coded() -> Iterator[None]:
    """What the function refuses becomes EnqueueRefused; other errors stay what they are."""
    try:
        yield
    except Exception as error:
        # Both drivers' errors, told by what they carry and not by their classes.
        told = getattr(error, "diag", error)
        code = CODES.get(str(getattr(told, "sqlstate", None)))
        if code is None:
            raise
        message = getattr(told, "message_primary", None) or str(error.args[0])
        hint = getattr(told, "message_hint", None) or getattr(told, "hint", None)
        raise EnqueueRefused(
            f"{message}.", next_step=hint or _NEXT_STEPS.get(code, ""), code=code
        ) from error


# Every type is said, so that no driver guesses one and no codec of the application's is asked.
_STATEMENT: Final = (
    "select tenure.enqueue(type => {}::text, input => {}::text::json,"
    " idempotency_key => {}::text, priority => {}::integer, not_before => {}::timestamptz,"
    " deadline => {}::timestamptz, cpu_millis => {}::integer, memory_bytes => {}::bigint,"
    " tenant => {}::text, concurrency_key => {}::text, scope => {}::text::json,"
    " traceparent => {}::text)::text"
)
_FOR_ASYNCPG: Final = _STATEMENT.format(*(f"${number}" for number in range(1, 13)))
_FOR_PSYCOPG: Final = _STATEMENT.replace("{}", "%s")

CODES: Final = {
    "TN020": Code.INVALID_FIELD,
    "TN021": Code.PAYLOAD_TOO_LARGE,
    "TN022": Code.INVALID_CHARACTER,
    "TN023": Code.IDEMPOTENCY_CONFLICT,
    "TN024": Code.FORBIDDEN_ROLE,
    "TN025": Code.MALFORMED_JSON,
    "TN026": Code.DEADLINE_IN_THE_PAST,
    "42501": Code.FORBIDDEN_ROLE,
    "3F000": Code.NOT_MIGRATED,
    "42883": Code.NOT_MIGRATED,
}
_NEXT_STEPS: Final = {
    Code.FORBIDDEN_ROLE: "Let the owner of Tenure's schema run `tenure migrate application ROLE`.",
    Code.NOT_MIGRATED: "Use the database that Tenure's schema is in, and `tenure migrate up` it.",
}


def _values(
    task_type: TaskType[InputT, Any], input: InputT, options: EnqueueOptions
) -> tuple[Any, ...]:
    """The arguments of the function in the order of the statement.

    Raises TypeError for another input than the declared one, InvalidPayload for what cannot be
    stored, EnqueueRefused for an instant without zone, of
    which each driver would make something else.
    """
    type_name, value = named(task_type, input)
    text = encode_json(value, limit_bytes=DEFAULT_PAYLOAD_LIMIT_BYTES, what="the input")
    key = options.get("idempotency_key")
    check_value(key, "idempotency_key")
    check_value(options.get("concurrency_key"), "concurrency_key")
    check_value(options.get("traceparent"), "traceparent")
    scope = options.get("scope")
    if scope is not None:
        check_value(scope.model_dump(), "scope")
    for name in ("not_before", "deadline"):
        instant = options.get(name)
        if isinstance(instant, datetime) and instant.utcoffset() is None:
            raise EnqueueRefused(f"{name}: has no time zone.", code=Code.INVALID_FIELD)
    resources = options.get("resources")
    return (
        type_name,
        text,
        key,
        options.get("priority", 0),
        options.get("not_before"),
        options.get("deadline"),
        None if resources is None else resources.cpu_millis,
        None if resources is None else resources.memory_bytes,
        options.get("tenant"),
        options.get("concurrency_key"),
        None if scope is None else scope.model_dump_json(),
        options.get("traceparent"),
    )
