"""Gauges for a scrape."""

from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from tenure.coordinator.store import named_queries, views
from tenure.coordinator.store.reading import Reader

MAX_COUNTED_ROWS: Final = 10_000
"""Of a shard of the log."""
MAX_COUNTED_TASKS: Final = 100_000
_SYSTEM: Final = named_queries.load("system.sql")
_RETENTION: Final = named_queries.load("retention.sql")
_NUMBERS: Final = TypeAdapter(dict[str, int])
_BY_TYPE: Final = TypeAdapter(list[tuple[str, str, int]])
_LIMITS: Final = TypeAdapter(list[tuple[str, str, int, int]])


@dataclass(frozen=True, slots=True)
class Figures:
    """Gauges of all tenants together. Waiting tasks and rows are counted up to 100,000."""

    waiting_tasks: int
    not_before_tasks: int
    oldest_waiting_seconds: float
    held_tasks: dict[str, int]  # by reason
    open_attempts: dict[str, int]
    nodes: dict[str, int]
    nodes_under_review: int
    tasks_by_type: list[tuple[str, str, int]]  # type, phase, number; the largest first
    slots: int  # of active nodes
    slots_used: int
    commits_waiting_for_standby: int
    pauses: dict[str, int]  # by scope
    dead_letters: int  # that wait for somebody
    limits: list[tuple[str, str, int, int]]  # tenant, type or empty, at most, running
    limits_by_scope: dict[str, int]
    replays: dict[str, int]  # that have not ended, by state
    lag_rows: int
    log_bytes: int
    log_rows_beyond_partitions: int
    oldest_unpublished_seconds: float
    parked: int
    intake_waiting: int
    intake_refused: int
    oldest_intake_seconds: float
    retention_overdue: dict[str, float]  # seconds, by kind of which something is due


async def read_figures(reader: Reader) -> Figures:
    """What there is now. Raises Unavailable when the database stays away."""
    (row,) = await reader.fetch(_SYSTEM["figures"], MAX_COUNTED_TASKS)
    shards = await reader.fetch(_SYSTEM["outbox"], MAX_COUNTED_ROWS)
    (size,) = await reader.fetch(_SYSTEM["log_size"], MAX_COUNTED_ROWS)
    (intake,) = await reader.fetch(_SYSTEM["intake"], MAX_COUNTED_TASKS)
    overdue = await reader.fetch(_RETENTION["overdue"])
    return Figures(
        waiting_tasks=row["waiting"],
        not_before_tasks=row["not_before"],
        oldest_waiting_seconds=row["oldest_waiting_seconds"],
        held_tasks=_NUMBERS.validate_json(row["held"]),
        open_attempts=_NUMBERS.validate_json(row["open_attempts"]),
        nodes=_NUMBERS.validate_json(row["nodes"]),
        nodes_under_review=row["nodes_under_review"],
        tasks_by_type=_BY_TYPE.validate_json(row["tasks_by_type"]),
        slots=row["slots"],
        slots_used=row["slots_used"],
        commits_waiting_for_standby=row["commits_waiting_for_standby"],
        pauses=_NUMBERS.validate_json(row["pauses"]),
        dead_letters=row["dead_letters"],
        limits=_LIMITS.validate_json(row["limits"]),
        limits_by_scope=_NUMBERS.validate_json(row["limits_by_scope"]),
        replays=_NUMBERS.validate_json(row["replays"]),
        lag_rows=sum(shard["lag_rows"] for shard in shards),
        log_bytes=size["bytes"],
        log_rows_beyond_partitions=size["misplaced"],
        oldest_unpublished_seconds=views.oldest(shards),
        parked=sum(row["parked"] for row in shards),
        intake_waiting=intake["waiting"],
        intake_refused=intake["refused"],
        oldest_intake_seconds=intake["oldest_seconds"],
        retention_overdue={row["kind"]: row["seconds"] for row in overdue},
    )
