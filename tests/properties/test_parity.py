"""The commit model beside the real store: whatever is asked, whatever happens, and in whatever
batches decisions are committed, early or late, both do the same.

So what is explored with the model (``tests/exhaustive``) is explored for the database too. Walks
are long and drawn from a seed; a stateful machine looks for short histories, and makes one that
fails shorter still. More of both: ``PARITY=20 make test ARGS="-k parity"``.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from itertools import count
from typing import Any, ClassVar, Final, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tenure.coordinator.core.decisions import ItemOutcome
from tenure.coordinator.store.postgres import open_pool
from tests.support import services
from tests.support.isolation import FreshDatabase, make_patient
from tests.support.parity import Twice
from tests.support.parity_commands import KINDS, NODES, OFTEN
from tests.support.parity_life import SPANS, WAITING, Life
from tests.support.pgbouncer import routed
from tests.support.sessions import session

TIMES: Final = int(os.environ.get("PARITY", "1"))
WALKS, STEPS = 7 * TIMES, 300
RARE: Final = 4
EXAMPLES, SHORT = 12 * TIMES, 30
T = TypeVar("T")

numbers = st.integers(0, 9)
nodes = st.integers(0, NODES - 1)
identities = st.integers(0, 5) | st.none()
contents = st.integers(0, 2)
spans = st.sampled_from(SPANS)


async def opened(database: FreshDatabase) -> asyncpg.Pool:
    await make_patient(database)
    return await open_pool(
        routed(database.coordinator_url),
        size=1,
        application_name="parity",
        pooled=services.POOLED,
        planned_once=True,
    )


@pytest.fixture
async def pool(module_database: FreshDatabase) -> AsyncIterator[asyncpg.Pool]:
    pool = await opened(module_database)
    yield pool
    await pool.close()


def step(chance: random.Random) -> Callable[[Life], Coroutine[Any, Any, None]]:
    """Something that may happen, drawn."""
    (kind,) = chance.choices(KINDS, [OFTEN.get(one, 1) for one in KINDS])
    task, node = chance.randrange(10), chance.randrange(NODES)
    identity, content = chance.choice((None, None, *range(6))), chance.randrange(3)
    until, other = chance.choice(SPANS), chance.choice((*SPANS, None))
    match chance.randrange(20):
        case 0 | 1 | 2:
            return lambda life: life.ask(kind, task, node, identity, content)
        case 3 | 4 | 5:
            return lambda life: life.ask_now(kind, task, node, identity, content)
        case 6 | 7 | 8 | 9 | 10:
            return lambda life: life.race(kind, task, node, content, until)
        case 11:
            return lambda life: life.crowd(node, 2 + content)
        case 12 | 13:
            chosen = [chance.randrange(WAITING) for _ in range(chance.randrange(1, 6))]
            return lambda life: life.commit(chosen, heard=task < 3)
        case 14:
            return lambda life: life.ask_again(task, other=node == 0)
        case 15:
            return lambda life: life.lapse(task, until)
        case 16:
            return lambda life: life.hear(task, until)
        case 17:
            return lambda life: life.due(task, other, until)
        case 18:
            return lambda life: life.authorize(authorized=task > 1)
        case _:
            paused = other if content == 0 else None
            acts = [
                lambda life: life.pause(paused),
                Life.enqueue,
                Life.set_policy,
                lambda life: life.limit(task, content, of_starts=node > 0),
            ]
            return chance.choice(acts)


@pytest.mark.timeout(600)
async def test_over_long_walks_the_commit_model_does_what_the_database_does(
    module_database: FreshDatabase, pool: asyncpg.Pool
) -> None:
    outcomes: Counter[ItemOutcome] = Counter()
    kinds: set[str] = set()
    async with session(module_database.owner_url) as owner:
        for seed in range(WALKS):
            chance = random.Random(seed)
            life = Life(Twice(f"walk-{seed}", pool, owner))
            await life.begin(budget_minor=chance.choice((9, 1000)))
            for number in range(STEPS):
                try:
                    await step(chance)(life)
                except AssertionError as error:
                    error.add_note(f"seed {seed}, step {number}")
                    raise
            await life.end()
            outcomes.update(life.outcomes)
            kinds |= life.accepted
    assert {*outcomes} == {*ItemOutcome} - {ItemOutcome.AUTHORITY_UNCONFIRMED}
    assert outcomes[ItemOutcome.STALE] > WALKS
    # The clock goes on by itself, so that a rare kind may find nothing to do in one run.
    assert len({*KINDS} - kinds) <= RARE


class Living(RuleBasedStateMachine):
    """As the walks, by Hypothesis."""

    runner: ClassVar[asyncio.Runner]
    pool: ClassVar[asyncpg.Pool]
    owner: ClassVar[asyncpg.Connection]
    histories: ClassVar = count()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result."""
        return self.runner.run(coroutine)

    @initialize(budget=st.sampled_from([9, 1000]))
    def begin(self, budget: int) -> None:
        tenant = f"machine-{next(self.histories)}"
        self.life = Life(Twice(tenant, self.pool, self.owner))
        self.wait(self.life.begin(budget_minor=budget))

    @rule(
        kind=st.sampled_from(KINDS), task=numbers, node=nodes, identity=identities, content=contents
    )
    def ask(self, kind: str, task: int, node: int, identity: int | None, content: int) -> None:
        self.wait(self.life.ask(kind, task, node, identity, content))

    @rule(
        kind=st.sampled_from(KINDS), task=numbers, node=nodes, identity=identities, content=contents
    )
    def ask_now(self, kind: str, task: int, node: int, identity: int | None, content: int) -> None:
        self.wait(self.life.ask_now(kind, task, node, identity, content))

    @rule(kind=st.sampled_from(KINDS), task=numbers, node=nodes, content=contents, until=spans)
    def race(self, kind: str, task: int, node: int, content: int, until: int) -> None:
        self.wait(self.life.race(kind, task, node, content, until))

    @rule(node=nodes, tasks=st.integers(2, 4))
    def crowd(self, node: int, tasks: int) -> None:
        self.wait(self.life.crowd(node, tasks))

    @rule(number=numbers, other=st.booleans())
    def ask_again(self, number: int, other: bool) -> None:
        self.wait(self.life.ask_again(number, other=other))

    @rule(chosen=st.lists(st.integers(0, WAITING - 1), min_size=1, max_size=5), heard=st.booleans())
    def commit(self, chosen: list[int], heard: bool) -> None:
        self.wait(self.life.commit(chosen, heard=heard))

    @rule(attempt=numbers, until=spans)
    def lapse(self, attempt: int, until: int) -> None:
        self.wait(self.life.lapse(attempt, until))

    @rule(node=numbers, at=spans)
    def hear(self, node: int, at: int) -> None:
        self.wait(self.life.hear(node, at))

    @rule(task=numbers, not_before=spans | st.none(), deadline=spans | st.none())
    def due(self, task: int, not_before: int | None, deadline: int | None) -> None:
        self.wait(self.life.due(task, not_before, deadline))

    @rule(authorized=st.booleans())
    def authorize(self, authorized: bool) -> None:
        self.wait(self.life.authorize(authorized=authorized))

    @rule(until=spans | st.none())
    def pause(self, until: int | None) -> None:
        self.wait(self.life.pause(until))

    @rule(scope=numbers, most=contents, of_starts=st.booleans())
    def limit(self, scope: int, most: int, of_starts: bool) -> None:
        self.wait(self.life.limit(scope, most, of_starts=of_starts))

    @rule()
    def enqueue(self) -> None:
        self.wait(self.life.enqueue())

    @rule()
    def set_policy(self) -> None:
        self.wait(self.life.set_policy())

    def teardown(self) -> None:
        self.wait(self.life.end())


@pytest.mark.timeout(600)
def test_the_commit_model_and_the_database_live_the_same_history(
    module_database: FreshDatabase,
) -> None:
    with asyncio.Runner() as runner:
        Living.runner = runner
        Living.pool = runner.run(opened(module_database))
        Living.owner = runner.run(asyncpg.connect(module_database.owner_url))
        try:
            run_state_machine_as_test(
                Living,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=SHORT,
                    derandomize=True,
                    deadline=None,
                    suppress_health_check=[*HealthCheck],
                ),
            )
        finally:
            runner.run(Living.owner.close())
            runner.run(Living.pool.close())
