"""Pauses over the real database and over HTTP and the command line (FLOW-01)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from tenure.cli.exits import Exit
from tests.support.authority import TENANT, Bench, replica
from tests.support.commands import tenure, tenure_json
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, node_silence_seconds=3600, lease_seconds=3600) as found:
        yield found


async def pause(
    bench: Bench, scope: str, name: str = "", *, until: datetime | None = None
) -> bool | None:
    tenant = "*" if scope == "all" else TENANT
    done: bool | None = await bench.pool.fetchval(
        "select tenure.set_pause($1, $2, $3, $4, 'because', 'tests')", scope, tenant, name, until
    )
    return done


async def resume(bench: Bench, scope: str, name: str = "") -> bool | None:
    tenant = "*" if scope == "all" else TENANT
    done: bool | None = await bench.pool.fetchval(
        "select tenure.end_pause($1, $2, $3, 'tests')", scope, tenant, name
    )
    return done


@pytest.mark.requirement("FLOW-01")
@pytest.mark.parametrize(
    ("scope", "name"),
    [("all", ""), ("tenant", ""), ("type", "sha256"), ("node", "node-1"), ("label", "gpu=a100")],
)
async def test_what_is_paused_waits_and_what_runs_goes_on(
    bench: Bench, scope: str, name: str
) -> None:
    await bench.register(facts={"labels": {"gpu": "a100"}})
    runs = await bench.running()
    assert await pause(bench, scope, name)
    task_id = await bench.submit()
    assert await bench.scheduler.step() == 0
    assert (await bench.deliver(runs, "output")).refused is None
    assert await bench.scheduler.step() == 0
    assert await resume(bench, scope, name)
    assert not await resume(bench, scope, name)
    assert await bench.scheduler.step() == 1
    assert await bench.holder(task_id) is not None


@pytest.mark.requirement("FLOW-01")
async def test_a_pause_is_over_by_itself_and_cannot_end_in_the_past(bench: Bench) -> None:
    await bench.register()
    task_id = await bench.submit()
    now = await bench.now()
    assert await pause(bench, "type", "sha256", until=now) is False
    assert await bench.owner.fetchval("select count(*) from tenure.pauses") == 0
    assert await pause(bench, "type", "sha256", until=now + timedelta(hours=1))
    assert await bench.scheduler.step() == 0
    await bench.superuser(
        "update tenure.pauses set until = clock_timestamp() - interval '1 ms';"
        "update tenure.tenants set pauses = tenure.pauses_of(tenant)"
    )
    assert await bench.scheduler.step() == 1
    assert await bench.holder(task_id) is not None


@pytest.mark.requirement("FLOW-01")
async def test_a_pause_of_everything_reaches_every_replica_and_tenants_that_come_later(
    bench: Bench, database: FreshDatabase
) -> None:
    await bench.register()
    assert await pause(bench, "all")
    await bench.owner.fetchval("select tenure.set_tenant('late', '{}', 'tests')")
    rows = await bench.owner.fetch(
        "select tenant, pauses is not null as paused from tenure.tenants"
    )
    assert {row["tenant"]: row["paused"] for row in rows} == {"default": True, "late": True}
    await bench.submit()
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(replica(database)) for _ in range(2)]
        looks = (one.scheduler.step() for one in (bench, *others))
        assert await asyncio.gather(*looks) == [0, 0, 0]
        assert await resume(bench, "all")
        assert await others[0].scheduler.step() == 1


@pytest.mark.requirement("FLOW-01")
async def test_an_operator_pauses_sees_why_a_task_waits_and_resumes(api: Fleet) -> None:
    incarnation = await api.register()
    found = await tenure_json(
        api, "pause", "type", "sha256", "--reason", "the store is full", "--until", "2h"
    )
    (one,) = found["pauses"]
    assert (one["scope"], one["name"], one["tenant"]) == ("type", "sha256", "default")
    assert datetime.fromisoformat(one["until"]) > datetime.now(UTC) + timedelta(minutes=110)
    await tenure_json(api, "pause", "all", "--reason", "an upgrade")
    task_id = await api.submit()
    why = (await api.reader.get(f"/v1/tasks/{task_id}/why")).json()["explanation"]
    assert (why["standing"], why["eligible"]) == ("paused", 1)
    assert [(p["scope"], p["paused_by"]) for p in why["pauses"]] == [
        ("all", "ops"),
        ("type", "ops"),
    ]
    _, out, _ = await tenure(api, "why", task_id)
    assert "it is paused: all by ops: an upgrade; type sha256 by ops, until" in out
    code, out, _ = await tenure(api, "pauses")
    assert code == Exit.DONE
    assert "the store is full" in out
    metrics = (await api.nobody.get("/metrics")).text
    assert 'tenure_pauses{scope="type"} 1.0' in metrics
    assert (await tenure_json(api, "resume", "all"))["resumed"]
    assert (await tenure_json(api, "resume", "type", "sha256"))["resumed"]
    assert not (await tenure_json(api, "resume", "type", "sha256"))["resumed"]
    await api.assigned(incarnation, task_id)
    changes = await api.reader.get("/v1/pauses")
    assert changes.json() == {"pauses": []}


@pytest.mark.requirement("FLOW-01")
async def test_bad_input_pauses_nothing_and_says_what_to_do(api: Fleet) -> None:
    for words, said in (
        (("pause", "all", "everything", "--reason", "x"), "every scope but `all` has a name"),
        (("pause", "label", "gpu", "--reason", "x"), "a label is named like gpu=a100"),
        (("pause", "type", "t", "--reason", "x", "--until", "soon"), "no point in time"),
        (("pause", "type", "t", "--reason", ""), "at least 1 character"),
    ):
        code, _, err = await tenure(api, *words)
        assert code == Exit.USAGE
        assert said in err
    for body, said in (
        ({"scope": "type", "name": "t", "reason": "x", "until": "2020-01-01T00:00:00Z"}, "passed"),
        ({"scope": "planet", "reason": "x"}, "scope"),
        ({"scope": "tenant", "name": "No Tenant", "reason": "x"}, "no name of a tenant"),
        ({"scope": "type", "name": "t"}, "reason"),
    ):
        refused = await api.operator.post("/v1/pauses", body)
        assert refused.status_code == 422, refused.text
        assert said in refused.text
    for caller in (api.application, api.executor, api.reader, api.stranger):
        refused = await caller.post("/v1/pauses", {"scope": "all", "reason": "x"})
        assert refused.status_code == 403
    assert (await api.reader.get("/v1/pauses")).json() == {"pauses": []}
