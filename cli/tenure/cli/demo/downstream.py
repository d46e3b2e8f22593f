"""The downstream database: made by its owner, written by the executors, read for the comparison."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from typing import Final
from urllib.parse import quote

import asyncpg

from tenure.cli.local.ports import LOOPBACK
from tenure.cli.local.postgres import PrivatePostgres
from tenure.executor.guards.sql import SqlGuard

DATABASE: Final = "downstream"
WRITER: Final = "demo_hasher"
GUARD_SCHEMA: Final = "guard"


@dataclass(frozen=True)
class Row:
    """One row of ``demo.files``, without its place."""

    sha256: str
    size_bytes: int
    lines: int


@dataclass(frozen=True)
class Written:
    """What is in the downstream database.

    ``rows`` by path, ``changes`` by task: how often the audit table saw its row change.
    """

    rows: Mapping[str, list[Row]]
    changes: Mapping[str, int]

    @property
    def effects_twice(self) -> int:
        """Tasks whose effect happened more than once."""
        return sum(1 for times in self.changes.values() if times > 1)


class Weakened(StrEnum):
    """A check that the guard is to lack, to see what the demo says of it."""

    EXPIRY = "expiry"  # the token alone refuses: still ok
    FENCE = "fence"  # a stale write is not refused as such: not ok


async def prepare(server: PrivatePostgres, password: str, weakened: Weakened | None = None) -> str:
    """Make all of it on a private server; returns the writer's URL."""
    await server.ensure_database(DATABASE)
    await make(server.url(DATABASE), password, weakened)
    login = f"{WRITER}:{quote(password, safe='')}"
    return f"postgresql://{login}@{LOOPBACK}:{server.port}/{DATABASE}"


async def make(url: str, password: str, weakened: Weakened | None = None) -> None:
    """Make tables, guard and the writer's login. ``url`` is an administrator's, of the database.

    The password is put into a statement as it is: it has letters and digits only.
    """
    text = _statements("downstream")
    connection = await asyncpg.connect(url, ssl=False)
    try:
        exists = await connection.fetchval("select 1 from pg_roles where rolname = $1", WRITER)
        if not exists:
            await connection.execute(f"create role {WRITER} login")
        # DDL takes no parameters.
        await connection.execute(f"alter role {WRITER} password '{password}'")
        await connection.execute(text)
        await connection.execute(f"create schema if not exists {GUARD_SCHEMA}")
        await SqlGuard.install(connection, schema=GUARD_SCHEMA, roles=[WRITER])
        if weakened is not None:
            await connection.execute(_statements(f"without_{weakened}"))
    finally:
        await connection.close()


def _statements(name: str) -> str:
    return resources.files("tenure.cli.demo").joinpath(f"{name}.sql").read_text("utf-8")


async def read(url: str) -> Written:
    """Everything that was written, for the comparison. ``url`` is an administrator's."""
    connection = await asyncpg.connect(url, ssl=False)
    try:
        rows: dict[str, list[Row]] = {}
        for row in await connection.fetch("select path, sha256, size_bytes, lines from demo.files"):
            rows.setdefault(row["path"], []).append(
                Row(row["sha256"], row["size_bytes"], row["lines"])
            )
        audit = await connection.fetch("select task_id from demo.audit")
    finally:
        await connection.close()
    return Written(rows, Counter(str(row["task_id"]) for row in audit))
