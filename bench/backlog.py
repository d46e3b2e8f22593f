"""A log full of rows that nobody has published, as many tasks leave them behind.

The rows are events of tasks, ``EVENTS`` of each, in the order of a submission by batches: the first
event of ``TASKS_AT_ONCE`` tasks, then the second of the same. Every row goes to one queue.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from uuid import UUID, uuid4

import asyncpg

from tenure.contract import codec, topology
from tenure.contract.events import EventData, event_type
from tenure.contract.ids import DEFAULT_TENANT
from tenure.contract.states import EntityType

EVENTS: Final = 5
TASKS_AT_ONCE: Final = 500
_TASK: Final = str(UUID(int=1))
_EVENT: Final = str(UUID(int=2))
_SEQUENCE: Final = '"sequence":77'

# The ids must be the same in the row and in its body, so they are made once, apart.
_APPEND: Final = """
    with made as materialized (
        select task.id, task.shard, task.number, "sequence", gen_random_uuid() as event_id
        from unnest($1::uuid[], $2::smallint[]) with ordinality as task (id, shard, number)
        cross join generate_series(1, $3) as "sequence"
    )
    insert into tenure.log (shard, order_key, tenant, entity_type, entity_id, epoch, sequence,
        event_id, next_state, copy, exchange, routing_key, required, recorded_at, body)
    select shard, id, $4, 'task', id, 1, "sequence", event_id, 'open', false, '', $5, true,
        clock_timestamp(),
        convert_to(replace(replace(replace($6, $7, id::text), $8, event_id::text), $9,
            '"sequence":' || "sequence"), 'UTF8')
    from made order by "sequence", number
    returning shard, "position"
"""


def template() -> str:
    """A message body as the coordinator encodes it, with ids and sequence to be replaced."""
    event = codec.unstamped(
        id=_EVENT,
        type=event_type(EntityType.TASK, "open"),
        subject=_TASK,
        tenant=DEFAULT_TENANT,
        entitytype=EntityType.TASK,
        taskid=_TASK,
        epoch=1,
        sequence=77,
        actor="application:bench",
        data=EventData(previous_state=None, next_state="open", task_type="bench.noop"),
    )
    return codec.stamp(codec.encode_unstamped(event), datetime.now(UTC)).decode()


async def append(connection: asyncpg.Connection, tasks: int, queue: str) -> Mapping[int, list[int]]:
    """Append the events of that many tasks as the owner of the log; their positions by shard,
    ascending."""
    positions: dict[int, list[int]] = {shard: [] for shard in range(topology.SHARD_COUNT)}
    for start in range(0, tasks, TASKS_AT_ONCE):
        some = [uuid4() for _ in range(min(TASKS_AT_ONCE, tasks - start))]
        appended = await connection.fetch(
            _APPEND,
            some,
            [topology.shard_of(str(task)) for task in some],
            EVENTS,
            DEFAULT_TENANT,
            queue,
            template(),
            _TASK,
            _EVENT,
            _SEQUENCE,
        )
        for row in appended:
            positions[row["shard"]].append(row["position"])
    return positions
