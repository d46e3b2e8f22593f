"""Lanes over a real database: batches, isolation of what fails, repetition, limits, and the end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import NodeId, TaskId
from tenure.coordinator import lanes, scheduler
from tenure.coordinator.core.commands import Accept, Deliver, Start
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.core.ranking import Placement, plan
from tenure.coordinator.core.rows import ResourceAmounts, TaskRow
from tenure.coordinator.errors import Overloaded, Unavailable
from tests.support import steps
from tests.support.authority import Bench, replica
from tests.support.isolation import FreshDatabase, make_impatient, make_patient
from tests.support.sessions import session, until


@pytest.fixture
async def bench(emptied_database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(emptied_database) as bench:
        yield bench


@pytest.fixture
async def patience(emptied_database: FreshDatabase) -> AsyncIterator[None]:
    """To be asked for before a replica: a call of it waits for its locks until it has them."""
    await make_patient(emptied_database)
    yield
    await make_impatient(emptied_database)


@pytest.fixture
async def appender(
    bench: Bench, emptied_database: FreshDatabase
) -> AsyncIterator[asyncpg.Connection]:
    """A session that holds the append lock, so that no commit gets further, until it lets go.
    Somebody has registered before."""
    await bench.register()
    bench.observer.batches.clear()
    async with session(emptied_database.owner_url) as connection:
        await connection.execute("begin; lock table tenure.append_lock in share row exclusive mode")
        yield connection


async def blocked_calls(bench: Bench, number: int = 1) -> None:
    """Wait until so many sessions of the coordinator wait for a lock."""

    async def waits() -> bool:
        found: int = await bench.owner.fetchval(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0"
        )
        return found >= number

    await until(waits)


async def noticed(bench: Bench, error: str) -> None:
    """Wait until a lane has met this error."""

    async def met() -> bool:
        return error in bench.observer.errors

    await until(met)


POISON: dict[str, dict[str, Any]] = {
    "22P02, not what the column takes": {"input_text": "{"},
    "22003, before it is sent": {"priority": 10**6},
    "22021, a character that cannot be stored": {"input_text": '"\x00"'},
    "no id at all": {"task_id": TaskId("none")},
}


@pytest.mark.parametrize("fault", POISON)
@pytest.mark.parametrize("number", [1, 2, 9])
async def test_a_command_that_the_database_refuses_is_refused_alone(
    bench: Bench, fault: str, number: int
) -> None:
    await bench.register()
    commands = [bench.submission() for _ in range(number)]
    commands[number // 2] = bench.submission(**POISON[fault])
    outcomes = await bench.authority.submit(commands)
    for place, outcome in enumerate(outcomes):
        if place == number // 2:
            assert outcome.refused is not None
            assert outcome.refused.code == Code.INTERNAL_REFUSED
        else:
            assert outcome.reply is not None
    stored = await bench.owner.fetch("select task_id::text from tenure.tasks")
    sound = {command.task_id for command in commands} - {commands[number // 2].task_id}
    assert {row["task_id"] for row in stored} == sound
    assert bench.observer.codes == [Code.INTERNAL_REFUSED]
    assert await bench.submit()  # and the lane goes on


async def test_a_command_that_breaks_a_rule_of_the_tables_is_refused_alone(bench: Bench) -> None:
    incarnation = await bench.register("one")
    same = bench.registration("two", incarnation=incarnation)
    sound = bench.registration("three")
    outcomes = await asyncio.gather(
        bench.authority.register(replace(same, command_id=sound.command_id, fingerprint=b"2")),
        bench.authority.register(replace(sound, command_id=same.command_id, fingerprint=b"3")),
        bench.authority.register(bench.registration("four")),
    )
    # The first has an incarnation that is in the table already; the second a command id that is.
    codes = [None if one.refused is None else one.refused.code for one in outcomes]
    assert codes == [Code.INTERNAL_REFUSED, Code.IDEMPOTENCY_CONFLICT, None]
    nodes = await bench.owner.fetch("select node_id from tenure.incarnations order by 1")
    assert [row["node_id"] for row in nodes] == ["four", "one"]


async def test_a_command_that_the_rules_cannot_decide_is_refused_alone(bench: Bench) -> None:
    incarnation = await bench.register()
    exhausted, sound = await bench.submit(), await bench.submit()
    await bench.owner.execute(
        "update tenure.tasks set generation = 4294967295 where task_id = $1", exhausted
    )
    commands = [steps.allocation(task_id, incarnation) for task_id in (exhausted, sound)]
    snapshots = [await steps.load(bench.pool, command) for command in commands]
    first, second = await bench.authority.allocate(commands, snapshots)
    assert first.refused is not None
    assert first.refused.code == Code.INTERNAL_REFUSED
    assert second.reply is not None
    assert await bench.holder(exhausted) is None
    assert await bench.holder(sound) is not None


async def test_a_call_given_up_for_a_lock_or_cancelled_is_made_again(
    bench: Bench, appender: asyncpg.Connection, emptied_database: FreshDatabase
) -> None:
    call = asyncio.create_task(bench.submit())
    await blocked_calls(bench)
    async with session(emptied_database.admin_url) as admin:

        async def cancelled() -> bool:
            # The call may be between two tries of its own at that moment.
            await admin.execute(
                "select pg_cancel_backend(pid) from pg_stat_activity"
                " where usename = 'tenure_coordinator' and datname = current_database()"
                " and wait_event_type = 'Lock'"
            )
            return "QueryCanceledError" in bench.observer.errors

        await until(cancelled)
    await noticed(bench, "LockNotAvailableError")
    await appender.execute("rollback")
    assert (await bench.task(await call))["state"] == "open"


@pytest.mark.direct("a setting of a database reaches new sessions, and a pooler keeps old ones")
@pytest.mark.usefixtures("patience")
async def test_a_call_that_deadlocks_is_made_again(
    bench: Bench, emptied_database: FreshDatabase
) -> None:
    """Nobody who keeps to the order of locks deadlocks; somebody at a prompt may."""
    nodes = sorted([await bench.register(f"node-{n}") for n in range(2)])
    tasks = [await bench.submit() for _ in nodes]
    commands = [steps.allocation(task, node) for task, node in zip(tasks, nodes, strict=True)]
    snapshots = [await steps.load(bench.pool, command) for command in commands]
    lock_node = "select from tenure.incarnations where incarnation = $1 for update"
    async with session(emptied_database.admin_url) as admin:
        name = emptied_database.name
        await admin.execute(f"alter database \"{name}\" set deadlock_timeout = '10ms'")
    async with (
        replica(emptied_database) as hasty,
        session(emptied_database.admin_url) as first,
        session(emptied_database.admin_url) as last,
    ):
        await last.execute("set deadlock_timeout = '1min'")
        one, other = first.transaction(), last.transaction()
        await one.start()
        await other.start()
        await first.execute(lock_node, nodes[0])
        await last.execute(lock_node, nodes[1])
        call = asyncio.create_task(hasty.authority.allocate(commands, snapshots))
        await blocked_calls(bench)  # it has the tasks and waits for the first node
        reaching = asyncio.create_task(
            last.execute("select from tenure.tasks where task_id = $1 for update", tasks[0])
        )
        await blocked_calls(bench, 2)
        await one.rollback()  # it goes on to the second node, and the circle is closed
        await reaching
        await noticed(hasty, "DeadlockDetectedError")
        await other.rollback()
        outcomes = await call
    assert all(outcome.reply is not None for outcome in outcomes)
    async with session(emptied_database.admin_url) as admin:
        await admin.execute(f'alter database "{name}" reset deadlock_timeout')


async def test_a_row_that_somebody_holds_keeps_no_other_command_waiting(
    bench: Bench, emptied_database: FreshDatabase
) -> None:
    await bench.register(slots=20)
    stuck = await bench.running()
    others = [await bench.running() for _ in range(15)]
    async with session(emptied_database.owner_url) as owner:
        transaction = owner.transaction()
        await transaction.start()
        await owner.execute("select from tenure.tasks where task_id = $1 for update", stuck.task_id)
        first, then = [
            asyncio.create_task(one) for one in (bench.deliver(stuck, 1), bench.fail(stuck))
        ]
        await blocked_calls(bench)
        outcomes = await asyncio.gather(*(bench.deliver(held, 1) for held in others))
        assert all(outcome.reply is not None for outcome in outcomes)
        assert not first.done()
        await transaction.rollback()
    delivered, too_late = await first, await then  # in the order they came
    assert delivered.reply is not None
    assert too_late.refused is not None
    assert too_late.refused.code == Code.WRONG_STATE


@pytest.mark.usefixtures("patience")
async def test_what_queues_up_behind_a_commit_is_the_next_batch(
    bench: Bench, appender: asyncpg.Connection
) -> None:
    calls = [asyncio.create_task(bench.submit())]
    await blocked_calls(bench)
    calls += [asyncio.create_task(bench.submit()) for _ in range(20)]
    await asyncio.sleep(0)
    await appender.execute("rollback")
    await asyncio.gather(*calls)
    assert bench.observer.batches == [1, 20]


async def test_one_attempts_commands_are_done_in_the_order_they_came(bench: Bench) -> None:
    await bench.register(slots=8)
    holders = [await bench.assigned(await bench.submit()) for _ in range(3)]
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (Accept, {}), (Start, {}), (Deliver, {"output_text": "1", "content_digest": b"1"}),
    ]  # fmt: skip
    in_turn = [bench.command(kind, held, **more) for kind, more in kinds for held in holders]
    outcomes = await bench.authority.report(in_turn)
    assert all(outcome.reply is not None for outcome in outcomes)
    for held in holders:
        states = [row["next_state"] for row in await bench.events(held.task_id)]
        assert states[1:5] == ["submitted", "accepted", "running", "delivered"]


@pytest.mark.usefixtures("patience")
async def test_more_than_may_wait_is_refused_and_nothing_of_it_is_done(
    bench: Bench, appender: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MAX_QUEUED", 3)
    calls = [asyncio.create_task(bench.submit())]
    await blocked_calls(bench)
    calls += [asyncio.create_task(bench.submit()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await bench.submit()
    assert refused.value.code == Code.OVERLOADED
    await appender.execute("rollback")
    await asyncio.gather(*calls)
    assert await bench.owner.fetchval("select count(*) from tenure.tasks") == 4


async def test_a_command_past_its_deadline_is_answered_and_may_be_repeated(
    bench: Bench, appender: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "DEADLINE_SECONDS", 0.0)
    command = bench.submission()
    with pytest.raises(Unavailable) as refused:
        await bench.authority.submit([command])
    assert refused.value.code == Code.UNAVAILABLE
    monkeypatch.undo()
    await appender.execute("rollback")
    (outcome,) = await bench.authority.submit([command])
    assert outcome.reply is not None
    assert await bench.owner.fetchval("select count(*) from tenure.tasks") == 1


@pytest.mark.usefixtures("patience")
async def test_a_caller_that_goes_away_stops_neither_its_decided_command_nor_the_lane(
    bench: Bench, appender: asyncpg.Connection
) -> None:
    command, waiting = bench.submission(), bench.submission()
    call = asyncio.create_task(bench.authority.submit([command]))
    await blocked_calls(bench)
    behind = asyncio.create_task(bench.authority.submit([waiting]))
    await asyncio.sleep(0)
    for gone in (call, behind):
        gone.cancel()
    await asyncio.gather(call, behind, return_exceptions=True)
    await appender.execute("rollback")
    await bench.submit()
    stored = await bench.owner.fetch("select task_id::text from tenure.tasks")
    assert command.task_id in {row["task_id"] for row in stored}
    assert waiting.task_id not in {row["task_id"] for row in stored}


@pytest.mark.usefixtures("patience")
async def test_closing_answers_everything_that_came_before(
    bench: Bench, appender: asyncpg.Connection
) -> None:
    calls = [asyncio.create_task(bench.submit())]
    await blocked_calls(bench)
    calls += [asyncio.create_task(bench.submit()) for _ in range(300)]
    await asyncio.sleep(0)
    bench.authority.close()
    with pytest.raises(Unavailable):
        await bench.submit()
    await appender.execute("rollback")
    assert len(set(await asyncio.gather(*calls))) == 301
    assert await bench.owner.fetchval("select count(*) from tenure.tasks") == 301


async def test_a_lane_that_is_cancelled_leaves_nobody_waiting(
    bench: Bench, appender: asyncpg.Connection
) -> None:
    other = lanes.Lane(
        "submissions",
        bench.authority.lanes[0]._load,
        bench.authority.lanes[0]._commit,
        lambda: bench.authority.policy,
        bench.observer,
        lambda events: None,
    )
    running = asyncio.create_task(other.run())
    calls = [asyncio.create_task(other.submit([bench.submission()]))]
    await blocked_calls(bench)
    calls += [asyncio.create_task(other.submit([bench.submission()])) for _ in range(3)]
    await asyncio.sleep(0)
    running.cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unavailable] * 4
    with pytest.raises(Unavailable):
        await other.submit([bench.submission()])


async def test_a_command_that_comes_twice_at_once_is_done_once(bench: Bench) -> None:
    await bench.register()
    command = bench.submission()
    requests = [replace(command, task_id=TaskId(str(uuid4()))) for _ in range(5)]
    answers = await asyncio.gather(*(bench.authority.submit([one]) for one in requests))
    outcomes: list[Outcome] = [answer[0] for answer in answers]
    assert len({outcome.reply for outcome in outcomes}) == 1
    assert len({outcome.at for outcome in outcomes}) == 1
    assert sorted(outcome.replayed for outcome in outcomes) == [False, True, True, True, True]
    assert await bench.owner.fetchval("select count(*) from tenure.tasks") == 1


async def test_many_that_nobody_can_take_keep_no_others_waiting(bench: Bench) -> None:
    await bench.register("busy", types=("busy",), slots=1)
    waiting = [bench.submission(type="busy", priority=100) for _ in range(300)]
    await bench.authority.submit(waiting)
    await bench.scheduler.step()  # the only slot for these is taken
    await bench.register("idle", types=("idle",), cpu_millis=100)
    too_large = ResourceAmounts(cpu_millis=200)
    await bench.authority.submit(
        [bench.submission(type="idle", priority=90, resources=too_large) for _ in range(300)]
    )
    task_id = await bench.submit(type="idle")
    held = await bench.assigned(task_id)
    assert held.node_id == NodeId("idle")


async def test_the_scheduler_reads_no_more_tasks_than_there_are_free_slots(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.register(slots=3)
    await bench.authority.submit([bench.submission() for _ in range(20)])
    read: list[int] = []

    def noting(tasks: Sequence[TaskRow], *rest: Any) -> list[Placement]:
        read.append(len(tasks))
        return plan(tasks, *rest)

    monkeypatch.setattr(scheduler, "plan", noting)
    assert await bench.scheduler.step() == 3
    assert read == [3]


async def test_a_delivery_wakes_the_scheduler_only_where_something_may_wait_for_its_slot(
    bench: Bench,
) -> None:
    await bench.register(slots=2)
    due = bench.scheduler._due
    first = await bench.running()  # one slot is left, and nothing waits for it
    assert not due.is_set()
    await bench.deliver(first, 1)
    assert not due.is_set()
    held = [await bench.running() for _ in range(2)]  # the second took the last slot
    await bench.deliver(held[0], 1)
    assert due.is_set()
    await bench.scheduler.step()
    await bench.fail(held[1], retryable=False)
    assert due.is_set()


async def test_tasks_that_fit_nowhere_keep_nobody_waiting_who_fits(bench: Bench) -> None:
    """What each of them needs is free somewhere, but never in one place."""
    await bench.register("processors", slots=1, cpu_millis=4000, memory_bytes=10)
    await bench.register("memory", slots=1, cpu_millis=10, memory_bytes=4000)
    misfit = ResourceAmounts(cpu_millis=1000, memory_bytes=1000)
    await bench.authority.submit(
        [bench.submission(resources=misfit, priority=9) for _ in range(20)]
    )
    fitting = [await bench.submit() for _ in range(2)]
    assert await bench.scheduler.step() == 0  # two free slots: it read two tasks
    assert await bench.scheduler.step() == 2
    assert None not in [await bench.holder(task_id) for task_id in fitting]
