"""Replays under test: begun in the database as the coordinator does, and what became of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tenure.contract.events import EVENT_ID_HEADER, REPLAY_ID_HEADER
from tenure.contract.replay import ReplayChange, ReplayFilter, ReplayRequest, ReplayView
from tenure.contract.states import ReplayPause, ReplayState
from tenure.coordinator.store.replay import Change, Replays
from tests.support.isolation import FreshDatabase
from tests.support.log_rows import LogRow, append
from tests.support.sessions import session, until

OPERATOR = "ops"


class SessionReader:
    """Reads over one connection."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """All rows."""
        rows: list[asyncpg.Record] = await self._connection.fetch(query, *arguments)
        return rows


async def record(
    database: FreshDatabase, rows: Iterable[LogRow], *, passed: bool = True
) -> list[int]:
    """Append rows; ``passed``: as if every relay had published them. Their positions."""
    async with session(database.owner_url) as owner:
        positions = await append(owner, rows)
        if passed:
            await pass_all(owner)
        return positions


async def pass_all(owner: asyncpg.Connection) -> None:
    """As if everything that is in the log were published."""
    await owner.execute(
        'update tenure.relay_shards set "position" = (select max("position") from tenure.log)'
    )


async def rewrite(database: FreshDatabase, row: LogRow, **columns: Any) -> None:
    """Give a row that is recorded other columns, as if it had been recorded so."""
    changes = ", ".join(f'"{name}" = ${n}' for n, name in enumerate(columns, 2))
    async with session(database.admin_url) as admin:
        await admin.execute(
            f"update tenure.log set {changes} where event_id = $1", row.event_id, *columns.values()
        )


async def park(database: FreshDatabase, row: LogRow, *, holds: bool) -> None:
    """As if the relay had set the row aside, until somebody asks for it."""
    async with session(database.owner_url) as owner:
        await owner.execute(
            """
            insert into tenure.parked (position, shard, tenant, stream_type, stream_id, event_id,
                exchange, routing_key, required, recorded_at, body, state, reason, detail, holds,
                due_at, parked_at)
            select position, shard, tenant, entity_type, entity_id, event_id, exchange,
                routing_key, required, recorded_at, body, 'failed', 'unsendable', 'a test', $2,
                'infinity', clock_timestamp()
            from tenure.log where event_id = $1
            """,
            row.event_id,
            holds,
        )


async def start(
    database: FreshDatabase, queue: str, *, rate: int = 100_000, force: bool = False, **asked: Any
) -> str:
    """Begin a replay; its id."""
    request = ReplayRequest(
        queue=queue, filter=ReplayFilter(**asked), rate=rate, reason="a test", force=force
    )
    replay_id = str(uuid4())
    async with session(database.coordinator_url) as connection:
        replays = Replays(SessionReader(connection))
        preview = await replays.preview(request.filter, queue)
        assert await replays.start(replay_id, request, preview, actor=OPERATOR)
    return replay_id


async def change(
    database: FreshDatabase, replay_id: str, to: Change, *, force: bool = False
) -> None:
    """Pause, resume or cancel it."""
    async with session(database.coordinator_url) as connection:
        await Replays(SessionReader(connection)).change(
            replay_id, to, reason="a test", actor=OPERATOR, force=force
        )


async def subscribe(database: FreshDatabase, queue: str, remembered: timedelta) -> None:
    """Say how long the consumers of a queue remember the ids of events."""
    async with session(database.coordinator_url) as connection:
        await connection.execute(
            "select tenure.set_subscription(null, 'ledger', $1, '{*.*.*}', $2, 'ops')",
            queue,
            remembered,
        )


async def look(database: FreshDatabase, replay_id: str) -> ReplayView:
    """How it stands."""
    async with session(database.coordinator_url) as connection:
        return await Replays(SessionReader(connection)).replay(replay_id)


async def history(database: FreshDatabase, replay_id: str) -> Sequence[ReplayChange]:
    """Who did what to it."""
    async with session(database.coordinator_url) as connection:
        return (await Replays(SessionReader(connection)).detail(replay_id)).history


async def became(
    database: FreshDatabase,
    replay_id: str,
    state: ReplayState,
    code: ReplayPause | None = None,
) -> ReplayView:
    """Wait until it is in this state, for this reason where it is paused, and in nobody's hands."""
    found: list[ReplayView] = []

    async def there() -> bool:
        found[:] = [await look(database, replay_id)]
        return found[0].state is state and found[0].pause_code is code and found[0].relay is None

    await until(there)
    return found[0]


@dataclass
class Again:
    """What arrived in one queue: event, replay and body, in order."""

    messages: list[tuple[str, str | None, bytes]] = field(default_factory=list)

    async def take(self, message: AbstractIncomingMessage) -> None:
        """Record and acknowledge."""
        replay_id = message.headers.get(REPLAY_ID_HEADER)
        self.messages.append(
            (
                str(message.headers[EVENT_ID_HEADER]),
                None if replay_id is None else str(replay_id),
                message.body,
            )
        )
        await message.ack()

    @property
    def event_ids(self) -> list[str]:
        """Which events, in order."""
        return [event_id for event_id, _, _ in self.messages]

    async def has(self, rows: Iterable[LogRow]) -> None:
        """Wait until each of the rows has arrived."""
        wanted = {str(row.event_id) for row in rows}

        async def arrived() -> bool:
            return wanted <= set(self.event_ids)

        await until(arrived)

    async def counts(self, messages: int) -> None:
        """Wait for so many messages, and no more: a confirm may come before its message does."""

        async def arrived() -> bool:
            return len(self.messages) >= messages

        await until(arrived)
        assert len(self.messages) == messages


async def listen(channel: AbstractChannel, queue: str) -> Again:
    """Record what arrives in a queue."""
    again = Again()
    await channel.set_qos(prefetch_count=200)
    await (await channel.get_queue(queue)).consume(again.take)
    return again
