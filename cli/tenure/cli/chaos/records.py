"""What the authority's database says while a run goes on and afterwards."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import asyncpg

from tenure.cli.chaos.books import AttemptOutcome, TaskOutcome

CONNECT_SECONDS: Final = 5.0
_AWAY: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)


async def open_tasks(url: str) -> int | None:
    """How many tasks have neither ended nor are held; None while the database is away."""
    rows = await _asked(url, "select count(*) as tasks from tenure.tasks where state = 'open'")
    return None if rows is None else int(rows[0]["tasks"])


async def nodes_at_work(url: str, seconds: float) -> set[str]:
    """Nodes that have run a handler for so long; none while the database is away."""
    question = (
        "select distinct node_id from tenure.attempts where state = 'running'"
        " and started_at <= clock_timestamp() - make_interval(secs => $1)"
    )
    rows = await _asked(url, question, seconds)
    return {row["node_id"] for row in rows or ()}


async def _asked(url: str, question: str, *arguments: object) -> "list[asyncpg.Record] | None":
    """On a connection of its own: the server may have died."""
    with suppress(*_AWAY):
        connection = await asyncpg.connect(url, ssl=False, timeout=CONNECT_SECONDS)
        try:
            return await connection.fetch(question, *arguments, timeout=CONNECT_SECONDS)
        finally:
            await connection.close(timeout=CONNECT_SECONDS)
    return None


async def read(url: str, inputs: Mapping[str, Any]) -> list[TaskOutcome]:
    """The outcomes of those tasks of ``inputs`` (by task id) that exist, in the order in which they
    were made."""
    connection = await asyncpg.connect(url, ssl=False)
    try:
        tasks = await connection.fetch(
            "select t.task_id::text, t.type, t.effects, t.state, t.reason, r.output::text as output"
            " from tenure.tasks t"
            " left join tenure.receipts r on r.task_id = t.task_id and r.admitted"
            " order by t.created_at, t.task_id"
        )
        attempts = await connection.fetch(
            "select task_id::text, ordinal, state, reason, node_id, fencing_token,"
            " started_at is not null as started from tenure.attempts order by ordinal"
        )
    finally:
        await connection.close()
    of_task: dict[str, list[AttemptOutcome]] = {}
    for row in attempts:
        of_task.setdefault(row["task_id"], []).append(
            AttemptOutcome(
                row["ordinal"],
                row["state"],
                row["reason"],
                row["node_id"],
                row["fencing_token"],
                row["started"],
            )
        )
    return [
        TaskOutcome(
            task_id=row["task_id"],
            type=row["type"],
            effects=row["effects"],
            state=row["state"],
            reason=row["reason"],
            input=inputs[row["task_id"]],
            output=None if row["output"] is None else json.loads(row["output"]),
            attempts=tuple(of_task.get(row["task_id"], ())),
        )
        for row in tasks
        if row["task_id"] in inputs
    ]
