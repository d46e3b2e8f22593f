"""Parked rows as tests look at them, and as operators ask about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from tests.support.isolation import FreshDatabase
from tests.support.sessions import session, until


@dataclass(frozen=True)
class Parked:
    """One parked row, short."""

    event_id: UUID
    state: str
    reason: str
    detail: str
    tries: int


async def parked(database: FreshDatabase) -> list[Parked]:
    """All of them, by position."""
    async with session(database.relay_url) as reader:
        rows = await reader.fetch(
            'select event_id, state, reason, detail, tries from tenure.parked order by "position"'
        )
        return [Parked(**dict(row)) for row in rows]


async def parked_are(database: FreshDatabase, *states: str) -> list[Parked]:
    """Wait until the parked rows have these states, by position."""
    found: list[Parked] = []

    async def there() -> bool:
        found[:] = await parked(database)
        return [row.state for row in found] == [*states]

    await until(there)
    return found


async def ask(
    database: FreshDatabase,
    action: str,
    positions: Sequence[int] | None = None,
    failed_as: str | None = None,
) -> list[int]:
    """As an operator does; the positions that this reached."""
    async with session(database.coordinator_url) as coordinator:
        reached: list[int] = await coordinator.fetchval(
            "select tenure.ask_parked(null, $1, $2, $3, 'because', 'tester')",
            action,
            positions,
            failed_as,
        )
        return reached


async def make_due(owner: asyncpg.Connection) -> datetime:
    """As if the time had come for everything that is tried again by itself. When that was."""
    now: datetime = await owner.fetchval("select clock_timestamp()")
    await owner.execute(
        "update tenure.parked set due_at = clock_timestamp()"
        " where due_at is not null and due_at < 'infinity'"
    )
    return now


async def results(database: FreshDatabase) -> list[tuple[str, str | None]]:
    """What was asked for, and what came of it."""
    async with session(database.coordinator_url) as reader:
        rows = await reader.fetch(
            "select action, result from tenure.parked_requests order by request_id"
        )
        return [(row["action"], row["result"]) for row in rows]
