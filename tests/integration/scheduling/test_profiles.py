"""Profiles are frozen: tasks that waited through a change of builds end under what they were
submitted with, or wait where that has to match exactly."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenure.contract.ids import AttemptId, CommandId, FencingToken, IncarnationId, NodeId, TaskId
from tenure.contract.states import Effects, Match
from tenure.coordinator.core.commands import Deliver, Executable, MoveProfile, Take
from tenure.coordinator.core.filters import Exclusion, exclusions
from tenure.coordinator.store.scheduling import SchedulingReads
from tests.support.authority import TENANT, Bench, Held, replica
from tests.support.isolation import FreshDatabase

TASKS = 1000
NODES = 4
OLD = Executable("hasher", "1", "1a" * 32, None)
NEW = Executable("hasher", "2", "2b" * 32, None)


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


async def fleet(bench: Bench, executable: Executable, **profile: Any) -> None:
    """Every node in one build, each in the place of its predecessor."""
    for number in range(NODES):
        await bench.register(f"node-{number}", slots=100, executable=executable, **profile)


async def deliver_all(bench: Bench) -> None:
    """What nodes do until nothing can be given to them any more."""
    while await bench.scheduler.step():
        rows = await bench.owner.fetch("select * from tenure.attempts where ended_at is null")
        held = [
            Held(
                TaskId(str(row["task_id"])),
                AttemptId(str(row["attempt_id"])),
                NodeId(row["node_id"]),
                IncarnationId(str(row["incarnation"])),
                FencingToken(row["fencing_token"]),
            )
            for row in rows
        ]
        await bench.authority.report([bench.command(Take, one) for one in held])
        digest = hashlib.sha256(b"1").digest()
        await bench.authority.report(
            [bench.command(Deliver, one, output_text="1", content_digest=digest) for one in held]
        )


@pytest.mark.requirement("SCHED-01")
@pytest.mark.requirement("OPS-02")
async def test_a_thousand_waiting_tasks_end_under_their_frozen_profile_in_a_new_build(
    bench: Bench,
) -> None:
    await fleet(bench, OLD, max_attempts=7)
    await bench.authority.submit([bench.submission() for _ in range(TASKS)])
    await fleet(bench, NEW, max_attempts=2, effects=Effects.GUARDED)
    await bench.submit()
    await deliver_all(bench)
    rows = await bench.owner.fetch(
        "select t.state, t.max_attempts, t.effects, p.max_attempts as frozen, count(*)"
        " from tenure.tasks t join tenure.profiles p on p.digest = t.profile_digest"
        " group by 1, 2, 3, 4 order by 2"
    )
    assert [tuple(row) for row in rows] == [
        ("delivered", 2, "guarded", 2, 1),
        ("delivered", 7, "idempotent", 7, TASKS),
    ]
    builds = await bench.owner.fetch(
        "select distinct n.executable_version from tenure.attempts a"
        " join tenure.incarnations n on n.incarnation = a.incarnation"
    )
    assert [row[0] for row in builds] == ["2"]


@pytest.mark.requirement("SCHED-01")
@pytest.mark.requirement("SCHED-02")
async def test_a_thousand_tasks_that_match_exactly_wait_for_their_build_and_why_names_it(
    bench: Bench,
) -> None:
    await fleet(bench, OLD, match=Match.EXACT, cost_minor=0)
    await bench.authority.submit([bench.submission() for _ in range(TASKS)])
    old = await profile_of(bench)
    await fleet(bench, NEW, match=Match.EXACT, cost_minor=1)
    assert await bench.scheduler.step() == 0
    reads = SchedulingReads(Reading(bench.owner))
    (waiting,) = await reads.backlog(TENANT)
    assert (waiting.tasks, waiting.task.profile) == (TASKS, old)
    nodes = await reads.judged_nodes(TENANT)
    new = {run.digest for node in nodes for run in node.profiles}
    for node in nodes:
        ((_, found),) = exclusions(waiting.task, node, waiting.tenant, waiting.now)
        assert found.code is Exclusion.BUILD_DIFFERS
        assert old.digest in found.wanted
        assert any(digest in found.found for digest in new)
    # Whoever decides that the new build may have one of them moves it.
    moved = waiting.task.task_id
    target = await reads.profile(TENANT, "sha256", None)
    assert target is not None
    command = MoveProfile(CommandId(moved), b"move", TENANT, "ops", moved, target)
    (outcome,) = await bench.authority.intervene([command])
    assert outcome.reply is not None, outcome
    assert await bench.scheduler.step() == 1
    held = await bench.holder(moved)
    assert held is not None
    await bench.report(Take, held)
    await bench.deliver(held, 1)
    await fleet(bench, OLD, match=Match.EXACT, cost_minor=0)
    await deliver_all(bench)
    states = await bench.owner.fetch("select state, count(*) from tenure.tasks group by 1")
    assert dict(map(tuple, states)) == {"delivered": TASKS}


@pytest.mark.requirement("SCHED-01")
async def test_a_build_that_cannot_say_what_it_leaves_behind_takes_no_tasks_of_one_that_could(
    bench: Bench,
) -> None:
    await fleet(bench, OLD)
    task_id = await bench.submit()
    await fleet(bench, NEW, effects=Effects.UNGUARDED)
    await bench.scheduler.step()
    assert await bench.holder(task_id) is None


async def profile_of(bench: Bench) -> Any:
    """The profile that all tasks so far are frozen under."""
    reads = SchedulingReads(Reading(bench.owner))
    found = await reads.profile(TENANT, "sha256", None)
    assert found is not None
    return found


class Reading:
    """The owner's connection in the place of a pool."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        records: list[asyncpg.Record] = await self._connection.fetch(query, *arguments)
        return records
