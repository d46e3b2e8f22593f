"""Allocations past the rules of limits. As ``attacks.py``."""

from tenure.coordinator.core.decisions import ItemOutcome
from tests.support import steps
from tests.support.attacks import Ground
from tests.support.authority import TENANT
from tests.support.steps import Item

STATE = "select tenure.set_limit($1, $2, $3, $4, $5, $6, $7, 'tests', 100)"


async def more_than_may_run(ground: Ground) -> ItemOutcome:
    """One runs already; both were decided before it was stated that one may."""
    first, second = await unlimited(ground, 2)
    assert await ground.last(first) is ItemOutcome.APPLIED
    await state(ground, max_running=1)
    return await ground.last(await now_decided(ground, second))


async def more_in_one_call_than_may_run(ground: Ground) -> ItemOutcome:
    items = await unlimited(ground, 2)
    await state(ground, max_running=1)
    return await ground.last(*[await now_decided(ground, item) for item in items])


async def more_at_once_than_may_run(ground: Ground) -> ItemOutcome:
    items = await unlimited(ground, 2)
    await state(ground, max_running=1)
    first, second = [await now_decided(ground, item) for item in items]
    return await ground.collide(first, second)


async def more_than_may_start(ground: Ground) -> ItemOutcome:
    first, second = await unlimited(ground, 2)
    await state(ground, starts=1)
    assert await ground.last(await now_decided(ground, first)) is ItemOutcome.APPLIED
    return await ground.last(await now_decided(ground, second))


async def more_in_one_call_than_may_start(ground: Ground) -> ItemOutcome:
    items = await unlimited(ground, 2)
    await state(ground, starts=1)
    return await ground.last(*[await now_decided(ground, item) for item in items])


async def a_type_limited_meanwhile(ground: Ground) -> ItemOutcome:
    """Decided before the limit was stated; that one may begin under it too is no excuse."""
    (item,) = await unlimited(ground, 1)
    await state(ground, max_running=1)
    return await ground.last(item)


async def unlimited(ground: Ground, number: int) -> list[Item]:
    """Allocations of so many tasks, each to a node of its own."""
    items = []
    for one in range(number):
        incarnation = await ground.bench.register(f"node-{one}")
        task_id = await ground.bench.submit()
        items.append(await ground.accept(steps.allocation(task_id, incarnation)))
    return items


async def now_decided(ground: Ground, item: Item) -> Item:
    """As if it had been decided by the facts as they are now."""
    version = await ground.bench.owner.fetchval(
        "select version from tenure.tenants where tenant = $1", TENANT
    )
    return steps.with_reads(item, tenant_version=version)


async def state(
    ground: Ground, *, max_running: int | None = None, starts: int | None = None
) -> None:
    """Limit the type; starts are of one hour."""
    given = None if starts is None else 1
    await ground.owner(STATE, "type", TENANT, "sha256", max_running, starts, given and 3600, given)
