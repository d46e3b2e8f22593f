"""The fixtures that every other integration test stands on."""

import os

import aio_pika
import asyncpg
import pytest

from tests.support import services
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase, fresh_space


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nobody had chosen a backend, on a machine without a Docker daemon."""
    for name in [name for name in os.environ if name.startswith("TENURE_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")


async def test_a_fresh_database_is_migrated_and_every_login_reaches_it(
    database: FreshDatabase,
) -> None:
    for url in (
        database.owner_url,
        database.coordinator_url,
        database.relay_url,
        database.admin_url,
    ):
        connection = await asyncpg.connect(url)
        try:
            versions = await connection.fetchval("select count(*) from tenure.schema_migrations")
            assert versions > 0
        finally:
            await connection.close()


async def test_the_owner_of_a_fresh_database_is_no_superuser(
    database: FreshDatabase, empty_database: FreshDatabase
) -> None:
    for one in (database, empty_database):
        connection = await asyncpg.connect(one.owner_url)
        try:
            assert await connection.fetchval("show is_superuser") == "off"
            await connection.execute("create schema of_the_owner")
        finally:
            await connection.close()


async def test_two_fresh_databases_do_not_see_each_other(
    database_server: DatabaseServer, database_template: str
) -> None:
    async with (
        database_server.fresh(template=database_template) as one,
        database_server.fresh(template=database_template) as other,
    ):
        assert one.name != other.name
        first = await asyncpg.connect(one.admin_url)
        second = await asyncpg.connect(other.admin_url)
        try:
            await first.execute("create table public.only_here ()")
            assert await second.fetchval("select to_regclass('public.only_here')") is None
        finally:
            await first.close()
            await second.close()


async def test_two_broker_spaces_do_not_see_each_other(
    broker: BrokerSpace, broker_server: services.BrokerServer
) -> None:
    async with (
        fresh_space(broker_server) as other,
        await aio_pika.connect(broker.url) as here,
        await aio_pika.connect(other.url) as there,
    ):
        assert broker.name_prefix != other.name_prefix
        queue = f"{broker.name_prefix}.queue"
        channel = await here.channel()
        await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})
        await channel.declare_queue(queue, passive=True)
        if broker_server.management is not None:
            elsewhere = await there.channel()
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await elsewhere.declare_queue(queue, passive=True)


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"TENURE_TEST_SERVICES": "mock"}, "none of auto, external, docker and local"),
        ({"TENURE_TEST_SERVICES": "external"}, "TENURE_TEST_DATABASE_URL"),
        ({"TENURE_TEST_SERVICES": "docker"}, "no Docker daemon answers"),
        ({"TENURE_TEST_BROKER_URL": "amqp://localhost"}, "or neither"),
    ],
)
def test_settings_that_cannot_be_met_stop_the_run(
    settings: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.UsageError, match=words):
        services.choose_backend()


@pytest.mark.usefixtures("no_settings")
def test_without_containers_and_addresses_private_servers_are_chosen_and_said() -> None:
    assert services.choose_backend() == ("local", "no Docker daemon answers")
