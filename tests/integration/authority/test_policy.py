"""The terms of leases: versions that never change, and leases that keep those they were granted
under."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tenure.coordinator.core.decisions import ItemOutcome
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.policies import Policies
from tenure.coordinator.store.policies import policy_in_force, set_policy
from tests.support import steps
from tests.support.authority import Bench, replica
from tests.support.coordinator import Fleet, fleet, settings_for
from tests.support.isolation import BrokerSpace, FreshDatabase

SECOND = 1_000_000


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


async def lease(bench: Bench, task_id: Any) -> tuple[int, timedelta]:
    """Under which version the current lease was granted, and for how long in all."""
    held = await bench.holder(task_id)
    assert held is not None
    row = await bench.attempt(held)
    return row["policy_version"], row["expires_at"] - row["submitted_at"]


async def set_lease(bench: Bench, seconds: int) -> None:
    before = await policy_in_force(bench.pool)
    wanted = LeasePolicy(lease_microseconds=seconds * SECOND)
    assert await set_policy(bench.pool, before.version, wanted, set_by="ops", reason="a test")


@pytest.mark.requirement("LEASE-08")
async def test_a_new_policy_changes_no_lease_that_was_granted(bench: Bench) -> None:
    await bench.register()
    before = await bench.running()
    await set_lease(bench, 300)
    after = await bench.running()
    assert await lease(bench, before.task_id) == (1, timedelta(seconds=30))
    assert await lease(bench, after.task_id) == (2, timedelta(seconds=300))
    renewed = await bench.renew(before)
    assert renewed.reply is not None
    assert renewed.reply.policy_version == 1
    row = await bench.attempt(before)
    assert row["expires_at"] - row["decided_at"] == timedelta(seconds=30)


@pytest.mark.requirement("LEASE-08")
async def test_nothing_is_granted_by_a_policy_that_was_replaced_meanwhile(bench: Bench) -> None:
    """Decided before the change, committed after it; the lane then decides by the new policy."""
    incarnation = await bench.register()
    task_id = await bench.submit()
    command = steps.allocation(task_id, incarnation)
    item = await steps.accept(bench.pool, command)
    snapshot = await steps.load(bench.pool, command)
    await set_lease(bench, 60)
    assert await steps.commit(bench.pool, item) == [ItemOutcome.STALE]
    (outcome,) = await bench.authority.allocate([command], [snapshot])
    assert outcome.reply is not None
    assert await lease(bench, task_id) == (2, timedelta(seconds=60))


@pytest.mark.requirement("LEASE-08")
async def test_a_policy_can_be_neither_changed_nor_removed(bench: Bench) -> None:
    for statement in (
        "update tenure.policies set lease_microseconds = 1",
        "delete from tenure.policies",
        "truncate tenure.policies",
    ):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await bench.owner.execute(statement)
        assert caught.value.sqlstate == "TN010"


async def test_of_two_changes_at_once_one_is_the_next_version(bench: Bench) -> None:
    wanted = [LeasePolicy(lease_microseconds=n * SECOND) for n in (40, 50)]
    done = await asyncio.gather(
        *(set_policy(bench.pool, 1, each, set_by="ops", reason="a test") for each in wanted)
    )
    assert sorted(done) == [False, True]
    in_force = await policy_in_force(bench.pool)
    assert (in_force.version, in_force.lease_microseconds) == (
        2,
        wanted[done.index(True)].lease_microseconds,
    )
    # The answer was lost: asking again changes nothing and gets the same one.
    assert await set_policy(bench.pool, 1, wanted[done.index(True)], set_by="ops", reason="a test")
    assert (await policy_in_force(bench.pool)).version == 2


async def test_the_first_coordinators_settings_are_the_policy_of_a_new_database(
    bench: Bench,
) -> None:
    first = Policies(bench.pool, LeasePolicy(lease_microseconds=8 * SECOND))
    await first.establish()
    assert (first.in_force.version, first.in_force.lease_microseconds) == (2, 8 * SECOND)
    other = Policies(bench.pool, LeasePolicy(lease_microseconds=9 * SECOND))
    await other.establish()
    assert other.in_force == first.in_force
    silent = Policies(bench.pool, LeasePolicy())
    await silent.establish()
    assert silent.in_force == first.in_force


async def test_an_operator_sets_the_policy_and_sees_its_history(api: Fleet) -> None:
    incarnation = await api.register()
    change = {"after_version": 1, "lease_seconds": 60, "node_silence_seconds": 45, "reason": "slow"}
    reply = await api.operator.post("/v1/policies", change)
    assert reply.status_code == 200, reply.text
    assert reply.json()["version"] == 2
    assert (await api.operator.post("/v1/policies", change)).json() == reply.json()
    history = (await api.reader.get("/v1/policies")).json()["policies"]
    assert [(one["version"], one["lease_seconds"], one["set_by"]) for one in history] == [
        (2, 60.0, "ops"),
        (1, 30.0, "migration"),
    ]
    assert history[0]["retry_cap_seconds"] == history[1]["retry_cap_seconds"]
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    taken = await api.report(incarnation, assignment, "take")
    assert taken.lease is not None
    assert (taken.lease.policy_version, taken.lease.renewal_interval_seconds) == (2, 20.0)
    assert "tenure_policy_version 2.0" in (await api.nobody.get("/metrics")).text


@pytest.mark.requirement("LEASE-08")
async def test_a_lease_is_spoken_of_by_the_terms_it_was_granted_under(api: Fleet) -> None:
    """Its take was answered before the change, and is asked for again after it."""
    incarnation = await api.register()
    assignment = await api.assigned(incarnation, await api.submit())
    again = {"report_id": "00000000-0000-4000-8000-000000000001"}
    await api.report(incarnation, assignment, "take", **again)
    await api.operator.post(
        "/v1/policies", {"after_version": 1, "clock_tolerance_seconds": 5, "reason": "drift"}
    )
    taken = await api.report(incarnation, assignment, "take", **again)
    assert taken.lease is not None
    assert (taken.lease.policy_version, taken.lease.clock_tolerance_seconds) == (1, 1.0)
    renewal = await api.executor.post("/v1/nodes/node-1/renewals", {"incarnation": incarnation})
    assert renewal.json()["lease"]["policy_version"] == 2


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"after_version": 7, "lease_seconds": 60}, 409, "stale_version"),
        ({"lease_seconds": 0.5}, 422, "invalid_field"),
        ({"renewal_margin_seconds": 30}, 422, "invalid_field"),
        ({"renewal_margin_seconds": 1}, 422, "invalid_field"),
        ({"node_silence_seconds": 10}, 422, "invalid_field"),
        ({"retry_base_seconds": 301}, 422, "invalid_field"),
        ({"lease_seconds": None}, 422, "invalid_field"),
        ({"lease_seconds": 60, "reason": ""}, 422, "invalid_field"),
    ],
)
async def test_terms_that_nobody_could_work_under_are_refused(
    api: Fleet, change: dict[str, Any], status: int, code: str
) -> None:
    body = {"after_version": 1, "reason": "a test"} | change
    reply = await api.operator.post("/v1/policies", body)
    assert (reply.status_code, reply.json()["code"]) == (status, code)
    assert len((await api.reader.get("/v1/policies")).json()["policies"]) == 1
    forbidden = await api.application.post("/v1/policies", body)
    assert forbidden.json()["code"] == "forbidden_role"


async def test_settings_are_no_policy_of_a_database_that_has_one(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker, lease_seconds=20.0) as first:
        assert first.coordinator.metrics is not None
        history = (await first.reader.get("/v1/policies")).json()["policies"]
        assert (history[0]["version"], history[0]["lease_seconds"]) == (2, 20.0)
    async with fleet(database, broker, lease_seconds=25.0) as second:
        assert (await second.reader.get("/v1/policies")).json()["policies"] == history
    assert settings_for(database.coordinator_url, broker.url).policy() == LeasePolicy()
