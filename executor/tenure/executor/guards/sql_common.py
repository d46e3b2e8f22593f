"""What the SQL guards share, whichever driver carries them: calls, answers, and what errors mean.

Each driver's module says how its connections are used; ``sql_async`` and ``sql_sync`` hold the one
order of steps. Every argument travels as text and is cast by the server, so no driver guesses a
type and no codec of the application's is asked.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tenure.executor.context import Context
from tenure.executor.errors import (
    AuthorityOver,
    CommitUnknown,
    EffectNotWritten,
    GuardNotInstalled,
    GuardUnavailable,
    OutOfScope,
    StaleToken,
    TransactionEnded,
    TransactionNested,
)
from tenure.executor.guards.sql_install import quoted
from tenure.executor.side_effects import SideEffect

STALE_TOKEN: Final = "TN001"
AUTHORITY_OVER: Final = "TN002"
OUT_OF_SCOPE: Final = "TN003"
TRANSACTION_TIMEOUT: Final = "25P04"
SETTLE_SECONDS: Final = 5.0
LAST_WAIT_SECONDS: Final = 5.0
_NOT_INSTALLED: Final = {"42883", "42P01", "3F000", "42501"}  # function, table, schema, privilege
_REFUSAL_SECONDS: Final = 1.0  # a statement that was sent is given so long to be refused
_REPEAT: Final = "Repeat it under the same operation name."

ConnectionT_co = TypeVar("ConnectionT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Effect(Generic[ConnectionT_co]):
    """An open guarded transaction. ``already_done``: an earlier transaction wrote this operation of
    the task, so there is nothing to write."""

    connection: ConnectionT_co
    already_done: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """What a driver's error says. ``sqlstate`` is None where the server did not answer; ``lost``:
    the connection is of no use any more."""

    message: str
    sqlstate: str | None = None
    detail: str | None = None
    lost: bool = False

    @property
    def says_over(self) -> bool:
        """Whether the receiver refused because the time is up."""
        return self.sqlstate in (TRANSACTION_TIMEOUT, AUTHORITY_OVER)


@dataclass(frozen=True, slots=True)
class Calls:
    """The receiver's functions as statements in a driver's notation of parameters, from 1."""

    raise_fence: str
    begin: str
    prove: str
    """Which transaction this is; fails where it has failed."""
    settle: str

    @classmethod
    def of(cls, schema: str, parameter: Callable[[int], str]) -> "Calls":
        """For a schema. Raises ValueError when it cannot be one."""
        name = quoted(schema).replace("%", "%%") if parameter(1) == "%s" else quoted(schema)
        text = [f"cast({parameter(number)} as text)" for number in range(1, 11)]

        def cast(number: int, to: str) -> str:
            return f"cast({text[number - 1]} as {to})"

        def interval(number: int) -> str:
            return f"make_interval(secs => {cast(number, 'double precision')})"

        def scope(number: int) -> str:
            return f"cast(nullif({text[number - 1]}, '') as jsonb)"

        return cls(
            raise_fence=f"select {name}.tenure_raise_fence({cast(1, 'uuid')},"
            f" {cast(2, 'bigint')}, {cast(3, 'timestamptz')}, {interval(4)}, {scope(5)})",
            begin="select already_done, limit_milliseconds, cast(pg_current_xact_id() as text)"
            f" from {name}.tenure_guard("
            f"{cast(1, 'uuid')}, {cast(2, 'uuid')}, {text[2]}, {cast(4, 'bigint')},"
            f" {cast(5, 'timestamptz')}, {interval(6)}, {cast(7, 'bigint')},"
            f" {scope(8)}, {text[8]}, {text[9]})",
            prove=f"select {name}.tenure_prove({cast(1, 'uuid')}, {cast(2, 'uuid')}, {text[2]})",
            settle=f"select {name}.tenure_settle({cast(1, 'uuid')}, {cast(2, 'uuid')},"
            f" {text[2]}, {cast(4, 'bigint')})",
        )


@dataclass(slots=True, eq=False)
class _Open:
    """A block of a guard's: each of its transactions holds the task's fence until its end."""

    guard: object
    task_id: str
    is_open: bool = True


_OPEN: ContextVar[tuple[_Open, ...]] = ContextVar("tenure_guarded_transactions", default=())


@contextmanager
def alone(guard: object, context: Context[Any], operation: str) -> Iterator[None]:
    """Around a guarded transaction. Raises TransactionNested within another of the same guard and
    task, also in what that one's block has begun (threads and coroutines that were handed its
    context variables)."""
    around = tuple(each for each in _OPEN.get() if each.is_open)
    if any(each.guard is guard and each.task_id == context.task_id for each in around):
        raise TransactionNested(
            f"{operation!r} is begun within another guarded transaction of task"
            f" {context.task_id}: each would wait for the other.",
            next_step="Write within the block that is open, or begin this one after its end.",
        )
    mine = _Open(guard, context.task_id)
    _OPEN.set((*around, mine))
    try:
        yield
    finally:
        mine.is_open = False


def fence_arguments(context: Context[Any]) -> tuple[str, ...]:
    """For ``Calls.raise_fence``."""
    return (
        context.task_id,
        str(context.fencing_token),
        context.expires_at.isoformat(),
        str(context.clock_tolerance_seconds),
        context.scope.to_json() or "",
    )


def begin_arguments(context: Context[Any], operation: str, begun: SideEffect) -> tuple[str, ...]:
    """For ``Calls.begin``: ``operation`` is for the inbox, the effect ``begun`` for the scope.

    Raises ValueError for names that PostgreSQL cannot hold.
    """
    if "\0" in begun.name + begun.key:
        raise ValueError(f"PostgreSQL holds no text with a NUL: {begun.name!r}, {begun.key!r}")
    return (
        context.task_id,
        context.attempt_id,
        operation,
        str(context.fencing_token),
        context.expires_at.isoformat(),
        str(context.clock_tolerance_seconds),
        str(int(context.remaining_authority_seconds() * 1000)),
        context.scope.to_json() or "",
        begun.name,
        begun.key,
    )


def inbox_name(operation: str, key: str) -> str:
    """An operation on a key, as the inbox knows it: no two pairs read the same."""
    plain = not key and not operation.startswith("[")
    return operation if plain else json.dumps([operation, key], ensure_ascii=False)


def prove_arguments(context: Context[Any], operation: str) -> tuple[str, ...]:
    """For ``Calls.prove``."""
    return (context.task_id, context.attempt_id, operation)


def settle_arguments(context: Context[Any], operation: str) -> tuple[str, ...]:
    """For ``Calls.settle``."""
    return (context.task_id, context.attempt_id, operation, str(context.fencing_token))


def named(arguments: tuple[str, ...]) -> Mapping[str, str]:
    """The arguments by the names p1, p2 …"""
    return {f"p{number}": value for number, value in enumerate(arguments, start=1)}


def patience(context: Context[Any], limit_seconds: float) -> float:
    """Seconds that a guard's own statement may take: a grant is useless afterwards, and a refusal
    says more than our own clock does."""
    return max(_REFUSAL_SECONDS, min(limit_seconds, context.remaining_authority_seconds()))


def of_statement(failure: Failure, context: Context[Any]) -> Exception:
    """What a failure of a guard's own statement means."""
    if failure.sqlstate == STALE_TOKEN:
        seen = failure.detail or ""
        return StaleToken(f"{failure.message}.", seen_token=int(seen) if seen.isdecimal() else None)
    if failure.sqlstate == AUTHORITY_OVER or context.remaining_authority_seconds() == 0.0:
        return over(context)
    if failure.sqlstate == OUT_OF_SCOPE:
        return out_of_scope(failure)
    if failure.sqlstate in _NOT_INSTALLED:
        return GuardNotInstalled(
            f"the downstream database refuses the guard: {failure.message}.",
            next_step="Install it as the database's owner with `tenure guard sql --print`,"
            " naming this account as a role; over an earlier version too.",
        )
    return GuardUnavailable(f"the downstream database did not answer: {failure.message}.")


def over(context: Context[Any]) -> AuthorityOver:
    """The receiver's refusal of an attempt whose time is up."""
    return AuthorityOver(
        f"the downstream database refused attempt {context.attempt_id} of task {context.task_id}:"
        " its authority is over."
    )


def out_of_scope(failure: Failure) -> OutOfScope:
    """The receiver's refusal of what the lease does not permit."""
    return OutOfScope(
        f"the downstream database refused it: {failure.message}.",
        next_step="Permit it in the scope of the type and of the submission, or leave it.",
    )


def no_connection(failure: Failure) -> GuardUnavailable:
    """There is no connection to be had."""
    return GuardUnavailable(f"no connection to the downstream database: {failure.message}.")


def not_open(name: str) -> GuardUnavailable:
    """A guard that opens its own pool is used outside of its block."""
    return GuardUnavailable("the guard is not open.", next_step=f"Use it as `{name}`.")


def lost_before_commit() -> EffectNotWritten:
    """The connection was lost while the body ran."""
    return EffectNotWritten(
        "the connection was lost before the commit; nothing was written.", next_step=_REPEAT
    )


def ended_early(operation: str) -> TransactionEnded:
    """The body has ended the guarded transaction itself."""
    return TransactionEnded(
        f"the block of {operation!r} ended its transaction by itself: what it wrote afterwards was"
        " not guarded, and was rolled back.",
        next_step="Leave commit and rollback to the guard; use savepoints within the block.",
    )


def lost_at_commit(operation: str) -> EffectNotWritten:
    """The connection was lost at the commit, which has not happened."""
    return EffectNotWritten(
        f"the connection was lost at the commit of {operation!r}; nothing was written.",
        next_step=_REPEAT,
    )


def unknown_commit(operation: str, said: str) -> CommitUnknown:
    """The connection was lost at the commit, and nobody can be asked."""
    return CommitUnknown(
        f"the connection was lost at the commit of {operation!r} and its outcome could not"
        f" be learned: {said}.",
        next_step=_REPEAT,
    )


def said(error: BaseException) -> str:
    """An error in words."""
    return str(error) or type(error).__name__
