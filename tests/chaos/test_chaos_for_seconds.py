"""A few seconds of what ``make chaos`` does for ten minutes."""

from pathlib import Path

import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tests.support.isolation import DatabaseServer
from tests.support.services import local_postgres
from tests.trials.chaos import Asked, run
from tests.trials.chaos_stack import Servers


@pytest.mark.requirement("RELAY-01")
@pytest.mark.requirement("RELAY-03")
@pytest.mark.requirement("OPS-01")
@pytest.mark.timeout(300)
async def test_the_books_agree_after_seconds_of_kills_and_poison_on_every_side(
    private_postgres: PrivatePostgres,
    private_rabbitmq: PrivateRabbitmq,
    server_directory: Path,
    tmp_path: Path,
) -> None:
    """How much it got done meanwhile is the machine's affair."""
    server = DatabaseServer(private_postgres.url())
    await server.prepare()
    database = await server.create_migrated("chaos")
    told: list[str] = []
    asked = Asked(7, seconds=10.0, rate=60.0, strike_every_seconds=0.7)
    async with local_postgres(server_directory) as receiver:
        servers = Servers(private_postgres, private_rabbitmq, receiver)
        found = await run(asked, servers, database, tmp_path, told.append)
    assert found["faults"] == [], "\n".join(told)
    assert found["events_committed"] == found["events_seen"] > 0
    assert sum(found["strikes"].values()) > 0
