"""Whatever collides in a batch, and whoever else commits meanwhile: the same as one by one.

A history of batches is lived twice. Once together: every command of a batch is loaded and decided
on what was there before, all that were accepted go into one call (or two at once, as from two
replicas), and what was not applied is loaded and decided again. Then one by one, in an order that
the first history could have had; there nothing may be left over, every answer and every row has to
be the same.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decisions import Accepted, Answered, Decision, ItemOutcome, Refused
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.store.postgres import open_pool
from tests.support import services, steps
from tests.support.isolation import FreshDatabase, make_patient
from tests.support.pgbouncer import routed
from tests.support.sessions import session
from tests.support.world import REPORTS, TYPE, Op, World

TASKS, NODES, IDENTITIES = 6, 2, 6
HISTORIES = count()
UNHURRIED = LeasePolicy(lease_microseconds=steps.HOUR, node_silence_microseconds=steps.HOUR)
"""Nothing runs out between the two lives of a history but what a batch lets lapse."""

ABOUT_TASKS = ["cancel", "expire", "allocate", "allocate", "take", "take", *REPORTS]
ABOUT_NODES = ["allocate", "allocate", "drain", "gone", "register"]


@st.composite
def collisions(draw: st.DrawFn) -> list[Op]:
    """Commands about one task, or about one node: what can get in each other's way."""
    node = draw(st.integers(0, NODES - 1))
    if draw(st.integers(0, 3)) == 0:  # more than it has room for
        crowd = draw(st.permutations(range(TASKS)))[:4]
        return [Op("allocate", task=task, node=node) for task in crowd]
    task = draw(st.integers(0, TASKS - 1))
    about_tasks = draw(st.booleans())
    kinds = draw(
        st.lists(
            st.sampled_from(ABOUT_TASKS if about_tasks else [*ABOUT_NODES, "submit"]),
            min_size=1,
            max_size=4,
        )
    )
    return [
        Op(
            kind=kind,
            task=task if about_tasks else draw(st.integers(0, TASKS - 1)),
            node=node,
            identity=draw(st.integers(0, IDENTITIES - 1) | st.integers(IDENTITIES, 10_000)),
            content=draw(st.integers(0, 1)),
            old=draw(st.integers(0, 4)) == 4,
        )
        for kind in kinds
    ]


@dataclass(frozen=True)
class Batch:
    """Leases that run out first, then commands that arrive together, through so many replicas."""

    lapsed: list[int]
    ops: list[Op]
    replicas: int


batches = st.builds(
    Batch,
    lapsed=st.lists(st.integers(0, TASKS - 1), max_size=1),
    ops=st.lists(collisions(), min_size=1, max_size=4).map(lambda found: [*chain(*found)]),
    replicas=st.integers(1, 2),
)
BEGINNING = [
    *(Op("register", node=node, identity=20_000 + node, content=1) for node in range(NODES)),
    *(
        Op("submit", task=task, identity=20_100 + task, content=task % 2, first=True)
        for task in range(TASKS)
    ),
    *(Op("allocate", task=task, node=task % NODES) for task in range(NODES)),
    Op("take", task=0, identity=20_200),
    Op("take", task=1, identity=20_201),
]


@pytest.fixture(scope="module")
async def reader(module_database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with session(module_database.owner_url) as connection:
        yield connection


@pytest.fixture(scope="module")
async def pool(module_database: FreshDatabase) -> AsyncIterator[asyncpg.Pool]:
    await make_patient(module_database)
    pool = await open_pool(
        routed(module_database.coordinator_url),
        size=2,
        application_name="batches",
        pooled=services.POOLED,
        planned_once=True,
    )
    yield pool
    await pool.close()


@dataclass(frozen=True)
class Named:
    """A command and the name that its random parts are derived from."""

    name: str
    command: AnyCommand


async def meant(world: World, ops: Sequence[Op], batch: str) -> list[Named]:
    """What the ops of a batch mean before any of them."""
    found = []
    for number, op in enumerate(ops):
        command = await world.command(op, f"{batch}.{number}")
        if command is not None:
            found.append(Named(f"{batch}.{number}", command))
    return found


async def decided(pool: asyncpg.Pool, world: World, named: Named) -> Decision:
    return await steps.decision(
        pool, named.command, policy=UNHURRIED, minted=world.minted(named.name)
    )


def answer(world: World, decision: Decision) -> str:
    """What the caller is told, in words."""
    match decision:
        case Refused():
            return f"refused {decision.code}"
        case Answered() | Accepted():
            return world.named(repr(decision.reply))


async def live_together(
    pool: asyncpg.Pool, world: World, commands: Sequence[Named], replicas: int
) -> tuple[list[str], dict[str, str]]:
    """Live a batch; the order in which it could have been lived, and all answers."""
    order: list[str] = []
    answers: dict[str, str] = {}
    pending = list(commands)
    while pending:
        assert len(order) < len(commands)
        decisions = {named.name: await decided(pool, world, named) for named in pending}
        accepted = []
        for named in pending:
            decision = decisions[named.name]
            if isinstance(decision, Accepted):
                accepted.append((named, steps.Item(named.command, decision)))
            else:
                order.append(named.name)
                answers[named.name] = answer(world, decision)
        shares = [accepted[share::replicas] for share in range(replicas)]
        outcomes = await asyncio.gather(
            *(steps.commit(pool, *(item for _, item in share)) for share in shares if share)
        )
        applied: list[tuple[int, str]] = []
        pending = []
        for share, results in zip(filter(None, shares), outcomes, strict=True):
            for (named, item), outcome in zip(share, results, strict=True):
                if outcome is ItemOutcome.APPLIED:
                    # Without an event it changed no version: whatever did came later.
                    events = [event.event_id for event in item.accepted.events]
                    applied.append((await world.position(events) if events else 0, named.name))
                    answers[named.name] = answer(world, item.accepted)
                else:
                    pending.append(named)
        assert applied or not accepted, "a batch always gets on"
        order.extend(name for _, name in sorted(applied, key=lambda one: one[0]))
    return order, answers


async def live_one_by_one(
    pool: asyncpg.Pool, world: World, commands: Sequence[Named]
) -> dict[str, str]:
    """Live commands in this order; all answers."""
    answers: dict[str, str] = {}
    for named in commands:
        decision = await decided(pool, world, named)
        if isinstance(decision, Accepted):
            outcome = await steps.commit(pool, steps.Item(named.command, decision))
            assert outcome == [ItemOutcome.APPLIED], (named, outcome)
        answers[named.name] = answer(world, decision)
    return answers


@pytest.mark.timeout(600)  # a failing history is made smaller first
@settings(max_examples=40, suppress_health_check=[*HealthCheck])
@given(history=st.lists(batches, min_size=1, max_size=4))
async def test_colliding_batches_give_the_same_as_one_by_one(
    pool: asyncpg.Pool, reader: asyncpg.Connection, history: list[Batch]
) -> None:
    number = next(HISTORIES)
    together, apart = World(f"together-{number}", reader), World(f"apart-{number}", reader)
    for world in (together, apart):
        await world.open_account(budget_minor=10)  # a task holds 3
        await world.limit("type", TYPE, 2)
        await world.limit("each_key", TYPE, 1)
    for index, batch in enumerate([*(Batch([], [op], 1) for op in BEGINNING), *history]):
        for world in (together, apart):
            await world.lapse(batch.lapsed)
        ours, theirs = [await meant(world, batch.ops, str(index)) for world in (together, apart)]
        await live_twice(pool, (together, ours), (apart, theirs), batch.replicas)
    for ending in (World.endings, World.expiries):
        ours, theirs = [
            [Named(*named) for named in await ending(world)] for world in (together, apart)
        ]
        for world in (together, apart):
            await world.lapse_all()
        await live_twice(pool, (together, ours), (apart, theirs), 2)
    await assert_over(reader, together)
    ours_dumped, theirs_dumped = await together.dump(), await apart.dump()
    for table, rows in ours_dumped.items():
        assert set(rows) ^ set(theirs_dumped[table]) == set(), table
    assert ours_dumped == theirs_dumped


async def live_twice(
    pool: asyncpg.Pool,
    one: tuple[World, list[Named]],
    other: tuple[World, list[Named]],
    replicas: int,
) -> None:
    """Live a batch together and one by one, and compare."""
    (together, ours), (apart, theirs) = one, other
    order, answers = await live_together(pool, together, ours, replicas)
    by_name = {named.name: named for named in theirs}
    assert await live_one_by_one(pool, apart, [by_name[name] for name in order]) == answers
    await together.assert_consistent()


async def assert_over(reader: asyncpg.Connection, world: World) -> None:
    """After everything has ended nothing is reserved and no counter is above zero."""
    left: list[Any] = await reader.fetch(
        """
        select 'task' from tenure.tasks where tenant = $1 and ended_at is null
        union all select 'reservation' from tenure.reservations where tenant = $1
        union all select 'counter' from tenure.incarnations
            where tenant = $1 and (slots_used, cpu_used, memory_used) <> (0, 0, 0)
        """,
        world.tenant,
    )
    assert left == []
