"""Receivers that several files of tests try."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tenure.executor.guards.http_postgres import PostgresRequests
from tenure.executor.guards.http_store import RequestStore, SqliteRequests
from tenure.executor.guards.http_tables import tables
from tests.support.isolation import DatabaseServer


@pytest.fixture(scope="module")
async def pool(database_server: DatabaseServer) -> AsyncIterator["asyncpg.Pool[asyncpg.Record]"]:
    async with (
        database_server.fresh() as database,
        asyncpg.create_pool(database.owner_url, min_size=0) as pool,
    ):
        await pool.execute(tables())
        yield pool


@pytest.fixture(params=["sqlite", "postgres"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, pool: "asyncpg.Pool[asyncpg.Record]"
) -> AsyncIterator[RequestStore]:
    if request.param == "postgres":
        yield PostgresRequests(pool)
        return
    with contextlib.closing(SqliteRequests(tmp_path / "requests.db")) as store:
        yield store
