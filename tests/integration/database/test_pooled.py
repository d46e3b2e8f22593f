"""Coordinator and relay through a pooler in transaction mode, as managed servers offer it."""

import pytest
from structlog.testing import capture_logs

from tenure.coordinator.store import migrate
from tenure.coordinator.store.errors import MigrationThroughPooler
from tenure.coordinator.store.roles import LIMITS
from tenure.settings.pooler import PoolerNotDeclared, is_pooled, share_a_server
from tests.support.chain import carry_through
from tests.support.coordinator import Fleet, fleet, running, settings_for
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.pgbouncer import POOL_SIZE, Pooler
from tests.support.relays import relaying
from tests.support.sessions import session
from tests.support.waiting import eventually


async def test_tasks_go_from_submission_to_result_through_a_pooler(
    pooled_database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with (
        fleet(pooled_database, broker, pooled=True) as api,
        relaying(pooled_database.relay_url, broker.url, broker.name_prefix, pooled=True),
        session(pooled_database.owner_url) as observer,
    ):
        await carry_through(api, broker.url, tasks=8)
        shared = await observer.fetchval(
            "select count(*) from pg_stat_activity"
            " where usename = 'tenure_coordinator' and datname = current_database()"
        )
        assert 0 < shared <= POOL_SIZE


async def test_the_limits_of_the_services_hold_behind_a_pooler(
    pooled_database: FreshDatabase,
) -> None:
    for url in (pooled_database.coordinator_url, pooled_database.relay_url):
        async with migrate.connected(url) as connection:
            for name in ("lock_timeout", "statement_timeout", "transaction_timeout"):
                assert await connection.fetchval(f"show {name}") == LIMITS[name]


async def test_a_pooler_is_told_from_a_server(
    pooled_database: FreshDatabase, database: FreshDatabase, pooler: Pooler
) -> None:
    async with (
        migrate.connected(database.owner_url) as one,
        migrate.connected(database.owner_url) as other,
    ):
        assert not await is_pooled(one)
        assert not await share_a_server(one, other)
    async with (
        migrate.connected(pooler.through(database.owner_url)) as one,
        migrate.connected(pooler.through(database.owner_url)) as other,
    ):
        assert await is_pooled(one)
        assert await share_a_server(one, other)
    with pytest.raises(PoolerNotDeclared):
        await migrate.check_pooler(pooled_database.coordinator_url)


async def test_a_coordinator_that_was_not_told_of_the_pooler_says_so(
    pooled_database: FreshDatabase, broker: BrokerSpace
) -> None:
    settings = settings_for(pooled_database.coordinator_url, broker.url, pooled=False)
    async with running(settings) as coordinator:
        api = Fleet(coordinator)

        async def says() -> bool:
            return "database: pooler_not_declared" in (await api.nobody.get("/readyz")).text

        await eventually(says)
        reply = await api.application.post("/v1/tasks", {"type": "sha256"})
        assert reply.status_code == 503
        assert "TENURE_POOLED" in reply.json()["detail"]
        await api.close()


async def test_a_relay_that_was_not_told_of_the_pooler_says_so(
    pooled_database: FreshDatabase, broker: BrokerSpace
) -> None:
    with capture_logs() as said:
        async with relaying(
            pooled_database.relay_url, broker.url, broker.name_prefix, pooled=False
        ) as parts:
            await eventually(
                lambda: any(line.get("code") == "pooler_not_declared" for line in said)
            )
            assert "database" in parts.relay.not_ready


async def test_a_migration_refuses_to_go_through_a_pooler(
    empty_database: FreshDatabase, pooler: Pooler
) -> None:
    with pytest.raises(MigrationThroughPooler):
        await migrate.up(pooler.through(empty_database.owner_url))
    async with session(empty_database.owner_url) as connection:
        assert await connection.fetchval("select to_regnamespace('tenure')") is None


async def test_a_migrated_database_can_be_looked_at_through_a_pooler(
    pooled_database: FreshDatabase,
) -> None:
    (await migrate.status(pooled_database.coordinator_url)).check()
