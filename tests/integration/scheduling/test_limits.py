"""Limits over the real database and over HTTP and the command line (FLOW-01)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta

import asyncpg
import pytest

from tenure.contract.ids import TaskId
from tenure.contract.states import TERMINAL_ATTEMPT_STATES
from tests.support.authority import TENANT, Bench, Held, replica
from tests.support.commands import tenure, tenure_json
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, FreshDatabase

OPERATOR = "operator-token-0001"
ENDS = {state.value for state in TERMINAL_ATTEMPT_STATES}


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, node_silence_seconds=3600, lease_seconds=3600) as found:
        yield found


async def limit(
    bench: Bench,
    scope: str,
    name: str = "",
    *,
    max_running: int | None = None,
    rate: tuple[int, int, int] | None = None,
) -> bool | None:
    starts, seconds, burst = rate or (None, None, None)
    done: bool | None = await bench.pool.fetchval(
        "select tenure.set_limit($1, $2, $3, $4, $5, $6, $7, 'tests', 200)",
        scope, TENANT, name, max_running, starts, seconds, burst,
    )  # fmt: skip
    return done


async def running(bench: Bench) -> int:
    value: int = await bench.owner.fetchval("select count(*) from tenure.reservations")
    return value


async def step(bench: Bench) -> int:
    """Looks until one finds nothing more to give out."""
    given = 0
    while now := await bench.scheduler.step():
        given += now
    return given


async def holders(bench: Bench, task_ids: Sequence[TaskId]) -> list[Held]:
    found = [await bench.holder(task_id) for task_id in task_ids]
    return [held for held in found if held is not None]


def most_at_once(events: Sequence[asyncpg.Record]) -> int:
    """How many attempts were open at one point of the log, at most."""
    opened = most = 0
    for event in events:
        if event["next_state"] == "submitted":
            opened += 1
        elif event["next_state"] in ENDS:
            opened -= 1
        most = max(most, opened)
    return most


@pytest.mark.requirement("FLOW-01")
@pytest.mark.parametrize(
    ("scope", "name"),
    [("tenant", ""), ("type", "sha256"), ("key", "x"), ("each_key", "sha256"), ("each_key", "*")],
)
async def test_as_many_run_as_a_limit_lets_and_an_end_of_any_kind_makes_room(
    bench: Bench, scope: str, name: str
) -> None:
    await bench.register(slots=20)
    assert await limit(bench, scope, name, max_running=2)
    task_ids = [await bench.submit(concurrency_key="x") for _ in range(6)]
    assert await step(bench) == 2
    first, second = await holders(bench, task_ids)
    assert (await bench.deliver(first)).refused is not None  # not taken yet: nothing has ended
    assert await step(bench) == 0
    assert (await bench.take(first)).refused is None
    assert (await bench.deliver(first)).refused is None
    assert await step(bench) == 1
    await bench.end_lease(second)  # its executor was killed
    assert (await bench.expire(second.task_id)).refused is None
    assert await step(bench) == 1
    assert await running(bench) == 2
    others = [await bench.submit(type="sha256") for _ in range(2)]
    if scope in ("key", "each_key"):
        assert await step(bench) == 2  # without the key they count under nothing
    else:
        assert await step(bench) == 0
    assert len(await holders(bench, others)) == (2 if scope in ("key", "each_key") else 0)


@pytest.mark.requirement("FLOW-01")
async def test_each_key_counts_by_itself_and_keeps_no_other_waiting(bench: Bench) -> None:
    await bench.register(slots=8, types=("sha256", "sha512"))
    assert await limit(bench, "each_key", "sha256", max_running=1)
    crowd = [await bench.submit(concurrency_key="x") for _ in range(40)]
    late = [await bench.submit(concurrency_key=key) for key in ("y", "z")]
    other = await bench.submit(type="sha512", concurrency_key="x")
    assert await step(bench) == 4
    assert len(await holders(bench, [*late, other])) == 3
    (one,) = await holders(bench, crowd)
    assert (await bench.take(one)).refused is None
    assert (await bench.deliver(one)).refused is None
    assert await step(bench) == 1


@pytest.mark.requirement("FLOW-01")
async def test_replicas_that_allocate_at_once_keep_every_limit_at_every_instant(
    bench: Bench, database: FreshDatabase
) -> None:
    for number in range(4):
        await bench.register(f"node-{number}", slots=10)
    assert await limit(bench, "type", "sha256", max_running=5)
    assert await limit(bench, "each_key", "sha256", max_running=2)
    task_ids = [await bench.submit(concurrency_key=f"key-{n % 4}") for n in range(60)]
    delivered: set[TaskId] = set()
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(replica(database)) for _ in range(2)]
        replicas = [bench, *others]

        async def allocate(one: Bench) -> None:
            while len(delivered) < len(task_ids):
                await one.scheduler.step()
                await asyncio.sleep(0)

        async def execute(share: Sequence[TaskId], one: Bench) -> None:
            left = set(share)
            while left:
                for held in await holders(one, sorted(left)):
                    if (await one.take(held)).refused is None:
                        assert (await one.deliver(held)).refused is None
                        left.discard(held.task_id)
                        delivered.add(held.task_id)

        async with asyncio.TaskGroup() as group:
            for number, one in enumerate(replicas):
                group.create_task(allocate(one))
                group.create_task(execute(task_ids[number::3], one))
    events = await bench.owner.fetch(
        "select l.next_state, t.concurrency_key from tenure.log l"
        " join tenure.tasks t on t.task_id = l.order_key"
        " where l.entity_type = 'attempt' and not l.copy order by l.position"
    )
    assert most_at_once(events) == 5
    for key in {event["concurrency_key"] for event in events}:
        assert most_at_once([one for one in events if one["concurrency_key"] == key]) <= 2
    assert await running(bench) == 0


@pytest.mark.requirement("FLOW-01")
async def test_replicas_together_start_no_more_than_the_rate_and_one_burst(
    bench: Bench, database: FreshDatabase
) -> None:
    await bench.register(slots=100)
    assert await limit(bench, "type", "sha256", rate=(20, 1, 3))
    for _ in range(15):
        await bench.submit()

    async def all_run() -> bool:
        return await running(bench) == 15

    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(replica(database)) for _ in range(2)]
        looking = [asyncio.create_task(one.scheduler.run()) for one in (bench, *others)]
        await until(all_run)
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
    instants = await bench.owner.fetch(
        "select recorded_at from tenure.log where next_state = 'submitted' and not copy"
        " order by position"
    )
    starts = [row["recorded_at"] for row in instants]
    interval = timedelta(seconds=1) / 20
    for first in range(len(starts)):
        for last in range(first, len(starts)):
            assert last - first + 1 <= 3 + (starts[last] - starts[first]) / interval


@pytest.mark.requirement("FLOW-01")
async def test_each_key_has_a_bucket_of_starts_of_its_own(bench: Bench) -> None:
    await bench.register(slots=20)
    assert await limit(bench, "each_key", "sha256", rate=(1, 3600, 2))
    crowd = [await bench.submit(concurrency_key="x") for _ in range(40)]
    late = await bench.submit(concurrency_key="y")
    assert await step(bench) == 3
    assert len(await holders(bench, crowd)) == 2
    assert await bench.holder(late) is not None
    await bench.owner.execute("update tenure.limit_buckets set full_at = clock_timestamp()")
    await bench.owner.execute("select tenure.forget_full_buckets(100)")
    assert await bench.owner.fetchval("select count(*) from tenure.limit_buckets") == 0
    assert await step(bench) == 2


@pytest.mark.requirement("FLOW-01")
async def test_a_limit_below_what_runs_ends_nothing_and_lets_nothing_begin(bench: Bench) -> None:
    await bench.register(slots=20)
    task_ids = [await bench.submit() for _ in range(4)]
    assert await step(bench) == 4
    held = await holders(bench, task_ids)
    assert await limit(bench, "type", "sha256", max_running=2)
    await bench.submit()
    for number, one in enumerate(held, start=1):
        assert await step(bench) == (0 if number <= 3 else 1)
        assert (await bench.take(one)).refused is None
        assert (await bench.deliver(one)).refused is None


@pytest.mark.requirement("FLOW-01")
async def test_a_task_that_is_done_again_keeps_its_key(api: Fleet) -> None:
    await api.register()
    task_id = await api.submit(concurrency_key="x", not_before="2030-01-01T00:00:00Z", priority=3)
    assert (await api.application.post(f"/v1/tasks/{task_id}/cancel")).status_code == 200
    again = (await api.operator.post(f"/v1/tasks/{task_id}/retry")).json()["new_task_id"]
    view = (await api.reader.get(f"/v1/tasks/{again}")).json()
    assert (view["concurrency_key"], view["priority"]) == ("x", 3)


@pytest.mark.requirement("FLOW-01")
async def test_an_operator_limits_sees_why_a_task_waits_and_takes_it_back(api: Fleet) -> None:
    incarnation = await api.register()
    each = {"scope": "each_key", "name": "sha256", "max_running": 1}
    assert (await api.operator.post("/v1/limits", each)).status_code == 200
    found = await tenure_json(
        api, "limit", "set", "type", "sha256", "--max-running", "3", "--rate", "2/h", "--burst", "2"
    )
    of_each, of_type = found["limits"]
    assert (of_each["scope"], of_each["max_running"], of_each["rate"]) == ("each_key", 1, None)
    assert of_type["rate"] == {"starts": 2, "period_seconds": 3600, "burst": 2}
    first = await api.submit(concurrency_key="x")
    await api.assigned(incarnation, first)
    second = await api.submit(concurrency_key="x")
    await api.assigned(incarnation, await api.submit(concurrency_key="y"))
    why = (await api.reader.get(f"/v1/tasks/{second}/why")).json()["explanation"]
    assert (why["standing"], why["eligible"]) == ("limited", 1)
    of_key, paced = why["limits"]
    assert (of_key["key"], of_key["running"], of_key["max_running"]) == ("x", 1, 1)
    assert (paced["scope"], paced["running"]) == ("type", 2)
    ahead = datetime.fromisoformat(paced["next_start"]) - datetime.fromisoformat(
        (await api.reader.get(f"/v1/tasks/{first}")).json()["created_at"]
    )
    assert timedelta(minutes=25) < ahead < timedelta(minutes=31)
    _, out, _ = await tenure(api, "why", second)
    assert "a limit is reached: each_key sha256 for the key 'x': 1 of at most 1 run; type" in out
    another = {"type": "sha256", "concurrency_key": "z"}
    explained = (await api.application.post("/v1/tasks/explain", another)).json()["explanation"]
    assert [one["scope"] for one in explained["limits"]] == ["type"]
    backlog = (await api.reader.get("/v1/backlog")).json()["groups"]
    assert [one["explanation"]["standing"] for one in backlog] == ["limited"]
    _, out, _ = await tenure(api, "limit", "list")
    assert "2/3" in out
    assert "2/h, burst 2" in out
    metrics = (await api.nobody.get("/metrics")).text
    assert 'tenure_limits{scope="type"} 1.0' in metrics
    assert 'tenure_limit_running{tenant="default",type="sha256"} 2.0' in metrics
    for scope in ("each_key", "type"):
        removal = {"scope": scope, "name": "sha256"}
        removed = await api.operator.post("/v1/limits/remove", removal)
        assert removed.json() == {"removed": True}
    assert not (await tenure_json(api, "limit", "remove", "type", "sha256"))["removed"]
    await api.assigned(incarnation, second)
    assert (await api.reader.get("/v1/limits")).json() == {"limits": []}


@pytest.mark.requirement("FLOW-01")
async def test_bad_input_limits_nothing_and_says_what_to_do(api: Fleet) -> None:
    for body, said in (
        ({"scope": "type", "name": "No Type", "max_running": 1}, "no name of a task type"),
        ({"scope": "each_key", "name": "No Type", "max_running": 1}, "no name of a task type"),
        ({"scope": "tenant", "name": "No Tenant", "max_running": 1}, "no name of a tenant"),
        ({"scope": "type", "name": "", "max_running": 1}, "name"),
        ({"scope": "type", "name": "t", "rate": {"starts": 1, "burst": 0}}, "burst"),
    ):
        refused = await api.operator.post("/v1/limits", body)
        assert refused.status_code == 422, refused.text
        assert said in refused.text
    key = {"type": "sha256", "concurrency_key": ""}
    assert (await api.application.post("/v1/tasks", key)).status_code == 422
    for caller in (api.application, api.executor, api.reader, api.stranger):
        refused = await caller.post("/v1/limits", {"scope": "key", "name": "x", "max_running": 1})
        assert refused.status_code == 403
    assert (await api.reader.get("/v1/limits")).json() == {"limits": []}


async def test_a_tenant_has_no_more_limits_than_can_be_looked_at_for_every_task(
    bench: Bench,
) -> None:
    for number in range(200):
        assert await limit(bench, "key", f"key-{number}", max_running=1)
    assert await limit(bench, "key", "one more", max_running=1) is False
    assert await limit(bench, "key", "key-7", max_running=2)
    assert await bench.owner.fetchval("select count(*) from tenure.limits") == 200
