"""Lets time pass for rows that are there, as only a superuser can."""

import asyncpg

from tests.support.isolation import FreshDatabase

_INSTANTS = {
    "tasks": ("created_at", "queued_as_of", "decided_at", "ended_at", "not_before", "deadline"),
    "attempts": (
        "dispatched_at", "submitted_at", "accepted_at", "started_at", "ended_at", "decided_at",
        "expires_at",
    ),
    "receipts": ("admitted_at",),
    "commands": ("decided_at",),
    "intake": ("created_at", "decided_at"),
    "renewals": ("at", "prior_expires_at", "new_expires_at"),
    "health_reviews": ("last_seen_at", "opened_at", "closed_at"),
    "incarnations": ("registered_at", "last_seen_at", "ended_at"),
    "fact_changes": ("at",),
    "dead_letters": ("first_at", "last_at", "settled_at"),
    "parked_requests": ("requested_at", "carried_out_at"),
    "replays": ("created_at", "moved_at", "ended_at"),
    "replay_changes": ("at",),
    "unreferenced": ("since",),
    "executables": ("registered_at", "seen_at"),
}  # fmt: skip
_LOG = """
    update tenure.log l set recorded_at = l.recorded_at - $1::interval,
        body = convert_to(regexp_replace(convert_from(l.body, 'UTF8'), '"time":"[^"]*"',
            '"time":"' || to_char((l.recorded_at - $1::interval) at time zone 'UTC',
                'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"'), 'UTF8')
"""


async def age(database: FreshDatabase, length: str, *tables: str) -> None:
    """Everything that is there (of ``tables``, if any are named) is ``length`` older than it was,
    events and their bytes too."""
    connection = await asyncpg.connect(database.admin_url)
    try:
        async with connection.transaction():
            await connection.execute("set local session_replication_role = replica")
            for table, columns in _INSTANTS.items():
                if not tables or table in tables:
                    changes = ", ".join(f"{one} = {one} - $1::text::interval" for one in columns)
                    await connection.execute(f"update tenure.{table} set {changes}", length)
            if not tables or "log" in tables:
                await connection.execute(_LOG.replace("$1::", "$1::text::"), length)
    finally:
        await connection.close()
