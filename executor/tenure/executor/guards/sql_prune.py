"""Removing what guards have left in a downstream PostgreSQL: what grows must shrink."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import asyncpg

from tenure.executor.errors import GuardNotInstalled, GuardUnavailable
from tenure.executor.guards.sql_common import said
from tenure.executor.guards.sql_install import quoted

_CHUNK: Final = 5_000
"""Rows that are looked at in one transaction: none of a handler's waits for longer than that."""
_EPOCH: Final = "(extract(epoch from clock_timestamp() - $1::interval) * 1000000)::bigint"


# For each table: its key, and the condition under which a row t may go; $1 is the age.
# A fence goes when nothing of its task is left: an older token without a fence is refused by its
# lease's end, which is long over. What is not settled stays whatever its age.
_RULES: Final = (
    ("tenure_inbox", ("task_id", "operation"), "t.done_at < clock_timestamp() - $1::interval"),
    (
        "tenure_fence",
        ("task_id",),
        (
            "t.raised_at < clock_timestamp() - $1::interval"
            " and not exists (select from {tenure_inbox} i where i.task_id = t.task_id)"
        ),
    ),
    ("tenure_http_request", ("scope", "key"), f"t.state = 'done' and t.touched_at < {_EPOCH}"),
    (
        "tenure_http_fence",
        ("resource",),
        (
            f"t.raised_at < {_EPOCH} and not exists"
            " (select from {tenure_http_request} r where r.resource = t.resource)"
        ),
    ),
    (
        "tenure_payment",
        ("payment_id",),
        "t.known <> 'intended' and t.settled_at < clock_timestamp() - $1::interval",
    ),
)


async def prune(url: str, *, older_than: timedelta, schema: str = "public") -> dict[str, int]:
    """Remove what is older from the tables of guards that are there; how many rows of each.

    As their owner. An operation that is repeated after its row has gone is done again: keep them
    for longer than a task with all its attempts lives. Goes through a table once, in small
    transactions, and leaves rows alone that are locked; it may be stopped and run again.

    Raises GuardNotInstalled when no guard's table is there, GuardUnavailable.
    """
    async with _connected(url) as connection:
        name = quoted(schema)
        tables = {table: f"{name}.{table}" for table, _, _ in _RULES}
        there = [
            rule
            for rule in _RULES
            if await connection.fetchval("select to_regclass($1) is not null", tables[rule[0]])
        ]
        if not there:
            raise GuardNotInstalled(
                f"there are no tables of guards in the schema {schema!r}.",
                next_step="Name the schema that they were installed in with --schema.",
            )
        return {
            table: await _prune(connection, tables[table], key, rule.format(**tables), older_than)
            for table, key, rule in there
        }


async def _prune(
    connection: "asyncpg.Connection[asyncpg.Record]",
    table: str,
    key: tuple[str, ...],
    rule: str,
    older_than: timedelta,
) -> int:
    columns = ", ".join(key)
    listed = ", ".join(f"t.{column}" for column in key)
    removed = 0
    last = tuple[Any, ...]()
    while True:
        after = ""
        if last:
            after = f"where ({columns}) > ({', '.join(f'${n + 2}' for n in range(len(key)))})"
        row = await connection.fetchrow(
            f"""
            with seen as materialized (
                select {columns} from {table} {after} order by {columns} limit {_CHUNK}
            ), old as materialized (
                select {listed} from {table} t join seen using ({columns})
                where {rule} for update of t skip locked
            ), gone as (
                delete from {table} t using old where ({listed}) = (
                    {", ".join(f"old.{column}" for column in key)}) returning 1
            )
            select (select count(*) from seen) as seen, (select count(*) from gone) as gone,
                {
                ", ".join(
                    f"(select {c} from seen order by {_descending(key)} limit 1) as k{n}"
                    for n, c in enumerate(key)
                )
            }
            """,
            older_than,
            *last,
        )
        assert row is not None  # an aggregate
        removed += int(row["gone"])
        if row["seen"] < _CHUNK:
            return removed
        last = tuple(row[f"k{number}"] for number in range(len(key)))


def _descending(key: tuple[str, ...]) -> str:
    return ", ".join(f"{column} desc" for column in key)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    try:
        connection = await asyncpg.connect(url, timeout=10.0)
        try:
            await connection.execute("set lock_timeout = '2s'; set statement_timeout = '60s'")
            yield connection
        finally:
            await connection.close(timeout=10.0)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise GuardUnavailable(
            f"the downstream database cannot be pruned: {said(error)}.",
            next_step="Use the login that owns the guard's tables.",
        ) from error
