"""Ended rows by the million, as years of work leave them behind.

They are copies of one task that was really done, with ids and instants of their own, and so carry
what real ones carry. Triggers are off meanwhile: nobody could make a past otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import asyncpg

SHARES: Final = {"tasks": 0.15, "commands": 0.20, "renewals": 0.18, "intake": 0.02}
"""Of all ended rows. A task brings its input, its attempt and its receipt."""
ROWS_OF_A_TASK: Final = 4
LOG_SHARE: Final = 0.5
"""Rows of the log for each ended row: they are beside these."""

_SEEDS: Final = """
    create temporary table seed as
    select n, uuidv7(interval '-400 days' + gone) as task_id, uuidv7(interval '-400 days' + gone)
        as attempt_id, clock_timestamp() - interval '400 days' + gone as at
    from generate_series(1, {most}) n
    cross join lateral (select interval '300 days' * n / {most} as gone) g
"""
_COLUMNS: Final = """
    select attname from pg_attribute
    where attrelid = $1::regclass and attnum > 0 and not attisdropped and attidentity = ''
"""
_AT: Final = "s.at"
_NEW: Final = "gen_random_uuid()"
_TASK: Final = {"task_id": "s.task_id"}
_ATTEMPT: Final = {**_TASK, "attempt_id": "s.attempt_id"}
_COPIES: Final[Mapping[str, Mapping[str, str]]] = {
    "tasks": {
        **_TASK, "current_attempt_id": "s.attempt_id", "created_at": _AT, "queued_as_of": _AT,
        "decided_at": _AT, "ended_at": _AT,
    },
    "task_inputs": _TASK,
    "attempts": {
        **_ATTEMPT, "lease_id": _NEW, "dispatch_event_id": _NEW, "submitted_at": _AT,
        "accepted_at": _AT, "started_at": _AT, "ended_at": _AT, "decided_at": _AT,
        "dispatched_at": _AT, "expires_at": _AT,
    },
    "receipts": {**_ATTEMPT, "receipt_id": _NEW, "admitted_at": _AT},
    "commands": {"command_id": _NEW, "decided_at": _AT},
    "renewals": {
        **dict.fromkeys(("lease_id", "attempt_id"), _NEW), "at": _AT, "prior_expires_at": _AT,
        "new_expires_at": _AT,
    },
    "log": {
        "position": "s.n", "order_key": "s.task_id", "event_id": _NEW,
        "entity_id": "s.task_id", "recorded_at": _AT,
    },
}  # fmt: skip
_INTAKE: Final = """
    insert into tenure.intake (tenant, command_id, task_id, type, priority, fingerprint,
        enqueued_by, state, created_at, decided_at)
    select 'default', gen_random_uuid(), s.task_id, 'sha256', 0, '\\x00', 'shop', 'taken', s.at,
        s.at
    from seed s where s.n <= $1
"""


@dataclass(frozen=True)
class Old:
    """How many rows are due, by kind; of the log too."""

    by_kind: Mapping[str, int]

    @property
    def ended(self) -> int:
        """Rows that have ended, with what belongs to them, the log apart."""
        beside = self.by_kind["tasks"] * (ROWS_OF_A_TASK - 1)
        return sum(rows for kind, rows in self.by_kind.items() if kind != "log") + beside


async def fill(admin: asyncpg.Connection, rows: int) -> Old:
    """Copy what there is of each kind until about ``rows`` have ended, 100 to 400 days ago.

    There must be one delivered task and one renewal, whose events are not in the log's first
    partition: there the copies are.
    """
    counts = {kind: int(rows * share) for kind, share in SHARES.items()}
    counts["log"] = int(rows * LOG_SHARE)
    await admin.execute("set session_replication_role = replica")
    await admin.execute(_SEEDS.format(most=max(counts.values())))
    for table, changes in _COPIES.items():
        of_task = table in ("task_inputs", "attempts", "receipts")
        await _copy(admin, table, changes, counts["tasks" if of_task else table])
    await admin.execute(_INTAKE, counts["intake"])
    await admin.execute("drop table seed; set session_replication_role = default; analyze")
    return Old(counts)


async def _copy(
    admin: asyncpg.Connection, table: str, changes: Mapping[str, str], count: int
) -> None:
    columns = [row["attname"] for row in await admin.fetch(_COLUMNS, f"tenure.{table}")]
    assert set(changes) <= set(columns), (table, set(changes) - set(columns))
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(changes.get(name, f'x."{name}"') for name in columns)
    what = "where ended_at is not null" if table == "tasks" else ""
    await admin.execute(
        f"insert into tenure.{table} ({names}) select {values}"
        f" from (select * from tenure.{table} {what} limit 1) x"
        f" cross join (select * from seed order by n limit {count}) s"
    )
