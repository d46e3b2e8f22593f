"""Rows for the log, appended by its owner as the coordinator's commit does, lock included."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg

from tenure.contract import codec, topology
from tenure.contract.events import EventData, event_type
from tenure.contract.ids import DEFAULT_TENANT
from tenure.contract.states import EntityType


@dataclass
class Stream:
    """One task's stream of events, numbered from 1."""

    entity_id: UUID = field(default_factory=uuid4)
    sequence: int = 0

    @property
    def shard(self) -> int:
        """The shard its rows lie in."""
        return topology.shard_of(str(self.entity_id))

    def next(self, **overrides: object) -> "LogRow":
        """Its next event."""
        self.sequence += 1
        return LogRow(self, self.sequence, **overrides)  # type: ignore[arg-type]  # checked there


@dataclass
class LogRow:
    """One row, before it has a position. ``exchange`` and ``routing_key``: where it goes."""

    stream: Stream
    sequence: int
    exchange: str = ""
    routing_key: str = ""
    required: bool = False
    event_id: UUID = field(default_factory=uuid4)
    filler: str = ""
    attempt_id: UUID | None = None

    @property
    def body(self) -> bytes:
        """The message: a real event; the same bytes for the same row."""
        event = codec.unstamped(
            id=str(self.event_id),
            type=event_type(EntityType.TASK, "open"),
            subject=str(self.stream.entity_id),
            tenant=DEFAULT_TENANT,
            entitytype=EntityType.TASK,
            taskid=str(self.stream.entity_id),
            epoch=1,
            sequence=self.sequence,
            actor="test",
            data=EventData(previous_state=None, next_state="open", reason=self.filler or None),
        )
        return codec.stamp(codec.encode_unstamped(event), datetime(2026, 1, 1, tzinfo=UTC))


def rows_of(streams: Sequence[Stream], count: int, **overrides: object) -> list[LogRow]:
    """``count`` rows of each stream, taking turns."""
    return [stream.next(**overrides) for _ in range(count) for stream in streams]


async def append(connection: asyncpg.Connection, rows: Iterable[LogRow]) -> list[int]:
    """Append the rows in one statement, in order; returns their positions."""
    rows = list(rows)
    records = await connection.fetch(
        """
        insert into tenure.log (shard, order_key, tenant, entity_type, entity_id, attempt_id, epoch,
            sequence, event_id, next_state, copy, exchange, routing_key, required, recorded_at,
            body)
        select r.shard, r.entity_id, $2, 'task', r.entity_id, r.attempt_id, 1, r.sequence,
            r.event_id, 'open', false, r.exchange, r.routing_key, r.required, clock_timestamp(),
            r.body
        from unnest($1::smallint[], $3::uuid[], $4::bigint[], $5::uuid[], $6::text[], $7::text[],
                $8::boolean[], $9::bytea[], $10::uuid[])
            with ordinality r (shard, entity_id, sequence, event_id, exchange, routing_key,
                required, body, attempt_id, ordinality)
        order by r.ordinality
        returning "position"
        """,
        [row.stream.shard for row in rows],
        DEFAULT_TENANT,
        [row.stream.entity_id for row in rows],
        [row.sequence for row in rows],
        [row.event_id for row in rows],
        [row.exchange for row in rows],
        [row.routing_key for row in rows],
        [row.required for row in rows],
        [row.body for row in rows],
        [row.attempt_id for row in rows],
    )
    return [record["position"] for record in records]


async def attempt(owner: asyncpg.Connection, task_id: UUID, state: str) -> UUID:
    """An attempt in this state, as far as the relay looks at it."""
    found = await owner.fetchval(
        """
        insert into tenure.attempts (attempt_id, task_id, tenant, ordinal, state, version, sequence,
            node_id, incarnation, lease_id, fencing_token, policy_version, lease_microseconds,
            expires_at, scope, dispatch_event_id, dispatched_at, submitted_at, decided_at, ended_at)
        values (gen_random_uuid(), $1, 'default', 1, $2, 1, 1, 'n', gen_random_uuid(),
            gen_random_uuid(), 1, 1, 1, now(), '{}', gen_random_uuid(), now(), now(), now(),
            case when $3 then now() end)
        returning attempt_id
        """,
        task_id,
        state,
        state == "cancelled",
    )
    return UUID(str(found))
