"""Where the time of a task goes on its way to the handler, from the times of its events.

The sender and the handlers read the machine's monotonic clock, the database its wall clock; both
run on this machine, so one offset makes them comparable, to about a tenth of a millisecond. An
event's time is read just before its commit, whose flush counts to the next stage.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import asyncpg

from bench.figures import percentile

STAGES: Final = (
    "submitted until recorded",
    "until given to a node",
    "through relay, broker and inbox, until taken by the executor",
    "until the handler runs",
)
TIMES: Final = """
    select (input.input ->> 'sent')::bigint as sent,
        min(at) filter (where entity_type = 'task') as recorded,
        min(at) filter (where entity_type = 'attempt' and next_state = 'submitted') as given,
        min(at) filter (where entity_type = 'attempt' and next_state = 'accepted') as taken
    from tenure.log log join tenure.task_inputs input on input.task_id = log.order_key
    cross join lateral (select (extract(epoch from log.recorded_at) * 1000000)::bigint as at) clock
    group by 1
"""


@dataclass(frozen=True)
class Times:
    """Of one task: when it was sent, nanoseconds of the monotonic clock; the rest microseconds of
    the wall clock."""

    sent: int
    recorded: int
    given: int
    taken: int


@dataclass(frozen=True)
class Stage:
    """How long one stage took, milliseconds."""

    name: str
    samples: int
    p50: float
    p95: float


def stages(
    handled: Mapping[int, int], times: Iterable[Times], offset_nanoseconds: int
) -> list[Stage]:
    """Stage by stage, over the tasks in both. ``handled``: by ``sent``, when the handler had the
    task, nanoseconds; the offset turns the monotonic clock into the wall clock."""
    ways = [
        (
            (one.sent + offset_nanoseconds) / 1e6,
            one.recorded / 1e3,
            one.given / 1e3,
            one.taken / 1e3,
            (handled[one.sent] + offset_nanoseconds) / 1e6,
        )
        for one in times
        if one.sent in handled
    ]
    found = []
    for number, name in enumerate(STAGES):
        lasted = [way[number + 1] - way[number] for way in ways]
        found.append(Stage(name, len(ways), percentile(lasted, 50), percentile(lasted, 95)))
    return found


async def measure(database_url: str, records: Iterable[tuple[int, int]]) -> list[Stage]:
    """The stages of the tasks whose (sent, handled) are given."""
    offset = time.time_ns() - time.monotonic_ns()
    database = await asyncpg.connect(database_url, ssl=False)
    try:
        rows = await database.fetch(TIMES)
    finally:
        await database.close()
    return stages(dict(records), [Times(**row) for row in rows], offset)
