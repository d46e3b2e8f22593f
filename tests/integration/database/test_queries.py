"""Every named query is right for the migrated schema, for the role that runs it."""

from contextlib import suppress
from importlib import resources

import asyncpg
import pytest

from tenure.coordinator.store import named_queries
from tests.support.isolation import FreshDatabase

FILES = sorted(
    entry.name
    for entry in (resources.files("tenure.coordinator.store") / "queries").iterdir()
    if entry.name.endswith(".sql")
)


@pytest.mark.parametrize("file_name", FILES)
async def test_every_query_can_be_prepared_by_the_coordinator(
    database: FreshDatabase, file_name: str
) -> None:
    queries = named_queries.load(file_name)
    assert queries
    connection = await asyncpg.connect(database.coordinator_url)
    try:
        for query in queries.values():
            prepared = await connection.prepare(query)
            # A channel has to have a name; everything else may be anything.
            nothing = "tests" if "pg_notify" in query else None
            arguments = [nothing] * len(prepared.get_parameters())
            # Rights are checked when it runs, before what a column has to hold.
            with suppress(asyncpg.NotNullViolationError):
                await prepared.fetch(*arguments)
    finally:
        await connection.close()
