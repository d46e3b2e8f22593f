"""Load, decide and commit as separate steps, so that a test can do anything in between.

Decisions are the real ones; so are the statements. Only the lane, which would load and decide again
whatever did not hold, is left out.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast
from uuid import uuid4

import asyncpg
from uuid_utils.compat import uuid7

from tenure.contract.ids import AttemptId, CommandId, EventId, IncarnationId, LeaseId, TaskId
from tenure.coordinator.core.commands import (
    Allocate,
    AnyCommand,
    Cancel,
    ChangeNode,
    CloseReview,
    Expire,
    HoldRejected,
    OpenReview,
    Quarantine,
    RefuseIntake,
    Register,
    Submit,
    TakeIn,
)
from tenure.coordinator.core.decide import EVENTS_PER_COMMAND, decide
from tenure.coordinator.core.decisions import Accepted, Decision, ItemOutcome
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot
from tenure.coordinator.store import commit as store
from tenure.coordinator.store.commit import Committed
from tenure.coordinator.store.load import (
    Loaded,
    load_allocations,
    load_attempts,
    load_intake,
    load_nodes,
    load_submissions,
)
from tests.support.authority import TENANT
from tests.support.sessions import part

SECOND = 1_000_000
HOUR = 3600 * SECOND

Asked: TypeAlias = asyncpg.Pool | asyncpg.Connection
"""Both answer ``fetch`` and ``fetchrow``, which is all that is asked of them."""


@dataclass(frozen=True)
class Item:
    """A command with a decision that accepted it."""

    command: AnyCommand
    accepted: Accepted


def mint(jitter: float = 0.5) -> Minted:
    """Fresh event ids."""
    return Minted(tuple(EventId(str(uuid4())) for _ in range(EVENTS_PER_COMMAND)), jitter)


async def load(asked: Asked, command: AnyCommand) -> tuple[Snapshot, int]:
    """What a decision about ``command`` may depend on now, and the clock."""
    pool = cast("asyncpg.Pool", asked)
    loaded: Loaded
    match command:
        case TakeIn() | RefuseIntake():
            loaded = await load_intake(pool, [command])
        case Submit():
            loaded = await load_submissions(pool, [command])
        case Allocate() | HoldRejected():
            loaded = await load_allocations(pool, [command])
        case Register() | ChangeNode() | Quarantine() | OpenReview() | CloseReview():
            loaded = await load_nodes(pool, [command])
        case _:
            loaded = await load_attempts(pool, [command])
    return loaded.snapshots[0], loaded.now


async def decision(
    asked: Asked,
    command: AnyCommand,
    *,
    later: int = 0,
    policy: LeasePolicy | None = None,
    minted: Minted | None = None,
) -> Decision:
    """What is decided now, by a clock that is ``later`` microseconds ahead."""
    snapshot, now = await load(asked, command)
    return decide(command, snapshot, now + later, minted or mint(), policy or LeasePolicy())


async def accept(
    asked: Asked, command: AnyCommand, *, later: int = 0, policy: LeasePolicy | None = None
) -> Item:
    """As ``decision``, which has to accept the command."""
    return accepted(command, await decision(asked, command, later=later, policy=policy))


def accepted(command: AnyCommand, decided: Decision) -> Item:
    """The decision, which has to accept the command, to be committed."""
    assert isinstance(decided, Accepted), decided
    return Item(command, decided)


async def commit(
    asked: Asked, *items: Item, seen: Sequence[IncarnationId] = ()
) -> list[ItemOutcome]:
    """One call with these items, whatever has happened since they were decided."""
    return list((await committed(asked, *items, seen=seen)).outcomes)


async def committed(asked: Asked, *items: Item, seen: Sequence[IncarnationId] = ()) -> Committed:
    """As ``commit``, with the instants."""
    pool = cast("asyncpg.Pool", asked)
    return await store.commit(pool, [(i.command, i.accepted) for i in items], seen=seen)


def with_reads(item: Item, **guards: object) -> Item:
    """The same decision with other guards: what a faulty or hostile caller might send."""
    reads = replace(item.accepted.reads, **cast("dict[str, Any]", guards))
    return replace(item, accepted=replace(item.accepted, reads=reads))


async def apply(asked: Asked, command: AnyCommand) -> None:
    """Load, decide and commit; has to be applied."""
    assert await commit(asked, await accept(asked, command)) == [ItemOutcome.APPLIED]


def allocation(
    task_id: TaskId, incarnation: IncarnationId, attempt_id: AttemptId | None = None
) -> Allocate:
    """Give ``task_id`` to that incarnation."""
    identity = attempt_id or AttemptId(str(uuid7()))
    return Allocate(
        CommandId(identity), b"", TENANT, "scheduler", task_id, incarnation, identity,
        LeaseId(str(uuid7())),
    )  # fmt: skip


def cancellation(task_id: TaskId) -> Cancel:
    """An application no longer wants ``task_id``."""
    return Cancel(CommandId(str(uuid4())), b"cancel", TENANT, "application", task_id)


def expiry(task_id: TaskId) -> Expire:
    """What the sweeper would ask for."""
    return Expire(CommandId(str(uuid4())), b"", TENANT, "sweeper", task_id)


@asynccontextmanager
async def patient(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A service's session whose limits do not end a test's wait before the test does."""
    connection = await asyncpg.connect(
        url,
        server_settings={
            "lock_timeout": "0",
            "statement_timeout": "0",
            "transaction_timeout": "0",
        },
    )
    try:
        yield connection
    finally:
        await part(connection)
