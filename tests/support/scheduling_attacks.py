"""Allocations past the rules of tenants and budgets. As ``attacks.py``."""

import asyncio

from tenure.coordinator.core.decisions import ItemOutcome
from tests.support import steps
from tests.support.attacks import Ground
from tests.support.authority import TENANT
from tests.support.sessions import blocked, session
from tests.support.steps import Item

SUSPEND = "select tenure.set_tenant($1, '{\"state\": \"suspended\"}', 'tests')"
PAUSE = "select tenure.set_pause('type', $1, 'sha256', null, 'tests', 'tests')"
PAUSE_ALL = "select tenure.set_pause('all', '*', '', null, 'tests', 'tests')"
COST = 3
BUDGET = f"""update tenure.tenants set budget_unlimited = false, currency = 'EUR',
    budget_minor = {2 * COST - 1} where tenant = $1"""


async def a_tenant_suspended_meanwhile(ground: Ground) -> ItemOutcome:
    (item,) = await priced(ground, 1)
    await ground.owner(SUSPEND, TENANT)
    return await ground.last(item)


async def a_type_paused_meanwhile(ground: Ground) -> ItemOutcome:
    (item,) = await priced(ground, 1)
    await ground.owner(PAUSE, TENANT)
    return await ground.last(item)


async def a_pause_that_is_not_over(ground: Ground) -> ItemOutcome:
    """Decided by a clock that was set back since."""
    (item,) = await priced(ground, 1)
    _, now = await steps.load(ground.bench.pool, item.command)
    return await ground.last(steps.with_reads(item, pause_over=now + steps.HOUR))


async def a_tenant_suspended_at_once(ground: Ground) -> ItemOutcome:
    """The suspension is about to commit when the allocation comes."""
    return await _at_once(ground, SUSPEND, TENANT)


async def everything_paused_at_once(ground: Ground) -> ItemOutcome:
    return await _at_once(ground, PAUSE_ALL)


async def _at_once(ground: Ground, statement: str, *arguments: object) -> ItemOutcome:
    (item,) = await priced(ground, 1)
    async with (
        session(ground.database.owner_url) as suspending,
        steps.patient(ground.database.coordinator_url) as other,
    ):
        async with suspending.transaction():
            await suspending.execute(statement, *arguments)
            behind = asyncio.create_task(steps.commit(other, item))
            waiting = asyncio.create_task(blocked(ground.bench.owner, other))
            # Without the lock nothing is waited for.
            await asyncio.wait({behind, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        return (await behind)[0]


async def more_budget_than_there_is(ground: Ground) -> ItemOutcome:
    return await ground.last(*await priced(ground, 2))


async def more_budget_than_there_is_at_once(ground: Ground) -> ItemOutcome:
    first, second = await priced(ground, 2)
    return await ground.collide(first, second)


async def priced(ground: Ground, number: int) -> list[Item]:
    """Allocations of so many tasks, each to a node of its own; the budget is for one of them."""
    bench = ground.bench
    items = []
    await ground.owner(BUDGET, TENANT)
    for one in range(number):
        incarnation = await bench.register(f"node-{one}", cost_minor=COST)
        task_id = await bench.submit()
        items.append(await ground.accept(steps.allocation(task_id, incarnation)))
    return items
