"""Calls past the rules: decisions that no longer hold, or never did, sent to the commit function.

Each attack prepares a situation, sends its call and gives the outcome of the last item. What it has
to be, with every guard in place and with one missing, says
tests/integration/database/test_sql_guards.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import uuid4

import asyncpg

from tenure.contract.ids import CommandId, IncarnationId, NodeId, TaskId, TenantId
from tenure.contract.states import NodeState
from tenure.coordinator.core.commands import (
    AnyCommand,
    ChangeNode,
    Deliver,
    HoldRejected,
    OpenReview,
    Quarantine,
    Reject,
    Renew,
    Take,
)
from tenure.coordinator.core.decisions import Accepted, ItemOutcome
from tenure.coordinator.core.rows import ResourceAmounts
from tenure.coordinator.core.snapshot import LeasePolicy
from tests.support import steps
from tests.support.authority import TENANT, Bench
from tests.support.isolation import FreshDatabase
from tests.support.sessions import blocked, session
from tests.support.steps import Item

APPLIED = ItemOutcome.APPLIED


@dataclass(frozen=True)
class Ground:
    """A replica to prepare a situation with, and the logins to collide on."""

    bench: Bench
    database: FreshDatabase

    @property
    def pool(self) -> asyncpg.Pool:
        return self.bench.pool

    async def accept(self, command: AnyCommand, later: int = 0) -> Item:
        return await steps.accept(self.pool, command, later=later)

    async def last(self, *items: Item) -> ItemOutcome:
        """Outcome of the last of the items of one call."""
        return (await steps.commit(self.pool, *items))[-1]

    async def owner(self, statement: str, *arguments: Any) -> None:
        await self.bench.owner.execute(statement, *arguments)

    async def collide(self, first: Item, second: Item) -> ItemOutcome:
        """Outcome of ``second``, whose call begins when that of ``first`` is about to commit."""
        async with (
            session(self.database.owner_url) as appender,
            steps.patient(self.database.coordinator_url) as one,
            steps.patient(self.database.coordinator_url) as other,
        ):
            async with appender.transaction():
                await appender.execute("lock table tenure.append_lock in share row exclusive mode")
                ahead = asyncio.create_task(steps.commit(one, first))
                await blocked(self.bench.owner, one)
                behind = asyncio.create_task(steps.commit(other, second))
                await blocked(self.bench.owner, other)
            assert await ahead == [APPLIED]
            return (await behind)[0]


Attack: TypeAlias = Callable[[Ground], Awaitable[ItemOutcome]]


async def decided_in_an_older_epoch(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    item = await ground.accept(ground.bench.submission())
    await ground.owner("update tenure.authority set epoch = 2")
    return await ground.last(item)


async def on_another_server(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    item = await ground.accept(ground.bench.submission())
    await ground.owner("update tenure.authority set system_identifier = 1")
    return await ground.last(steps.with_reads(item, epoch=None))


async def on_a_promoted_server(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    item = await ground.accept(ground.bench.submission())
    await ground.owner("update tenure.authority set timeline = '000000FF'")
    return await ground.last(steps.with_reads(item, epoch=None))


async def after_history_was_lost(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    item = await ground.accept(ground.bench.submission())
    await ground.owner("update tenure.authority set lost_at = clock_timestamp(), lost_proof = '{}'")
    return await ground.last(item)


async def the_same_command_later(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    command = ground.bench.submission()
    again = replace(command, task_id=TaskId(str(uuid4())))
    first, second = await ground.accept(command), await ground.accept(again)
    assert await ground.last(first) is APPLIED
    return await ground.last(second)


async def the_same_command_with_other_content(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    command = ground.bench.submission()
    other = replace(command, task_id=TaskId(str(uuid4())), fingerprint=b"other")
    first, second = await ground.accept(command), await ground.accept(other)
    assert await ground.last(first) is APPLIED
    return await ground.last(second)


async def the_same_command_of_another_tenant(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    command = ground.bench.submission()
    first = await ground.accept(command)
    theirs = replace(command, task_id=TaskId(str(uuid4())), tenant=TenantId("other"))
    assert await ground.last(first) is APPLIED
    return await ground.last(Item(theirs, of_another_tenant(first.accepted)))


async def the_same_command_in_one_call(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    command = ground.bench.submission()
    again = replace(command, task_id=TaskId(str(uuid4())))
    return await ground.last(await ground.accept(command), await ground.accept(again))


async def the_same_command_at_once(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    command = ground.bench.submission()
    again = replace(command, task_id=TaskId(str(uuid4())))
    return await ground.collide(await ground.accept(command), await ground.accept(again))


async def the_same_task_in_one_call(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    task_id = await ground.bench.submit()
    first, second = [await ground.accept(steps.cancellation(task_id)) for _ in range(2)]
    return await ground.last(first, second)


async def the_same_node_in_one_call(ground: Ground) -> ItemOutcome:
    registrations = [ground.bench.registration("same") for _ in range(2)]
    return await ground.last(*[await ground.accept(one) for one in registrations])


async def an_incarnation_changed_before_in_one_call(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    task_id = await ground.bench.submit()
    return await ground.last(
        await ground.accept(draining(incarnation)),
        await ground.accept(steps.allocation(task_id, incarnation)),
    )


async def a_task_allocated_meanwhile(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    task_id = await ground.bench.submit()
    item = await ground.accept(steps.cancellation(task_id))
    await ground.bench.assigned(task_id)
    return await ground.last(item)


async def a_task_allocated_at_once(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    task_id = await ground.bench.submit()
    return await ground.collide(
        await ground.accept(steps.allocation(task_id, incarnation)),
        await ground.accept(steps.cancellation(task_id)),
    )


async def an_attempt_taken_meanwhile(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    held = await ground.bench.assigned(await ground.bench.submit())
    item = await ground.accept(ground.bench.command(Take, held))
    assert (await ground.bench.report(Take, held)).reply is not None
    return await ground.last(item)


async def a_node_drained_meanwhile(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    task_id = await ground.bench.submit()
    item = await ground.accept(steps.allocation(task_id, incarnation))
    await ground.bench.authority.change_node(draining(incarnation))
    return await ground.last(item)


async def a_node_drained_at_once(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    task_id = await ground.bench.submit()
    return await ground.collide(
        await ground.accept(draining(incarnation)),
        await ground.accept(steps.allocation(task_id, incarnation)),
    )


async def a_node_registered_meanwhile(ground: Ground) -> ItemOutcome:
    item = await ground.accept(ground.bench.registration("same"))
    await ground.bench.register("same")
    return await ground.last(item)


async def a_node_registered_at_once(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register("same")
    await ground.bench.authority.change_node(draining(incarnation, "same", NodeState.GONE))
    first, second = [await ground.accept(ground.bench.registration("same")) for _ in range(2)]
    async with (
        session(ground.database.owner_url) as owner,
        steps.patient(ground.database.coordinator_url) as one,
        steps.patient(ground.database.coordinator_url) as other,
    ):
        # Holds up the first call between its guards and its first write.
        transaction = owner.transaction()
        await transaction.start()
        await owner.execute(
            "insert into tenure.commands values ($1, '', '', '', '{}', now())",
            first.command.command_id,
        )
        ahead = asyncio.create_task(steps.commit(one, first))
        await blocked(ground.bench.owner, one)
        behind = asyncio.create_task(steps.commit(other, second))
        waiting = asyncio.create_task(blocked(ground.bench.owner, other))
        await asyncio.wait((behind, waiting), return_when=asyncio.FIRST_COMPLETED)
        await transaction.rollback()
        assert await ahead == [APPLIED]
        outcome = (await behind)[0]
        waiting.cancel()
        return outcome


async def a_fleet_that_grew_meanwhile(ground: Ground) -> ItemOutcome:
    await ground.bench.register("picky")
    held = await ground.bench.assigned(await ground.bench.submit())
    await ground.bench.report(Reject, held, reason="unknown_type", message="")
    item = await ground.accept(
        HoldRejected(CommandId(str(uuid4())), b"", TENANT, "sweeper", held.task_id)
    )
    await ground.bench.register("another")
    return await ground.last(item)


async def evidence_kept_meanwhile(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    held = await ground.bench.running()
    await ground.bench.end_lease(held)
    await ground.bench.expire(held.task_id)
    output: dict[str, Any] = {"output_text": "1", "content_digest": b"1"}
    first, second = [
        await ground.accept(ground.bench.command(Deliver, held, **output)) for _ in range(2)
    ]
    assert await ground.last(first) is APPLIED
    return await ground.last(second)


async def a_lease_that_ran_out_meanwhile(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    held = await ground.bench.assigned(await ground.bench.submit())
    item = await ground.accept(ground.bench.command(Take, held))
    await ground.bench.end_lease(held)
    return await ground.last(item)


async def a_lease_that_ran_out_while_its_row_was_waited_for(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    held = await ground.bench.assigned(await ground.bench.submit())
    item = await ground.accept(ground.bench.command(Take, held))
    async with (
        session(ground.database.owner_url) as locker,
        steps.patient(ground.database.coordinator_url) as taker,
    ):
        async with locker.transaction():
            await locker.execute(
                "select from tenure.tasks where task_id = $1 for update", held.task_id
            )
            call = asyncio.create_task(steps.commit(taker, item))
            await blocked(ground.bench.owner, taker)
            await ground.owner("update tenure.attempts set expires_at = clock_timestamp()")
        return (await call)[0]


async def a_lease_that_ran_out_before_the_clock_was_set_back(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    held = await ground.bench.assigned(await ground.bench.submit())
    item = await ground.accept(ground.bench.command(Take, held))
    await ground.owner(
        "update tenure.attempts set decided_at = clock_timestamp() + interval '1 hour',"
        " expires_at = clock_timestamp() + interval '59 minutes'"
    )
    return await ground.last(item)


async def an_expiry_before_its_time(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    held = await ground.bench.running()
    return await ground.last(await ground.accept(steps.expiry(held.task_id), later=steps.HOUR))


async def an_allocation_before_its_time(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    task_id = await ground.bench.submit(not_before=await in_the_future(ground))
    item = await steps.accept(
        ground.pool,
        steps.allocation(task_id, incarnation),
        later=2 * steps.HOUR,
        policy=LeasePolicy(node_silence_microseconds=3 * steps.HOUR),
    )
    return await ground.last(item)


async def an_allocation_after_the_deadline(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    task_id = await ground.bench.submit(deadline=await in_the_future(ground))
    item = await ground.accept(steps.allocation(task_id, incarnation))
    await ground.owner("update tenure.tasks set deadline = clock_timestamp()")
    return await ground.last(item)


async def an_expiry_before_the_deadline(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    task_id = await ground.bench.submit(deadline=await in_the_future(ground))
    return await ground.last(await ground.accept(steps.expiry(task_id), later=2 * steps.HOUR))


async def a_submission_after_its_deadline(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    deadline = await in_the_future(ground) - 2 * steps.HOUR
    command = ground.bench.submission(deadline=deadline)
    return await ground.last(await ground.accept(command, later=-2 * steps.HOUR))


async def an_allocation_to_a_silent_node(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    task_id = await ground.bench.submit()
    item = await ground.accept(steps.allocation(task_id, incarnation))
    await ground.owner("update tenure.incarnations set last_seen_at = '2026-01-01'")
    return await ground.last(item)


async def a_review_of_a_node_that_was_heard_of_meanwhile(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    await ground.owner("update tenure.incarnations set last_seen_at = '2026-01-01'")
    about = CommandId(str(uuid4())), b"", TENANT, "sweeper", NodeId("node-1"), incarnation
    item = await ground.accept(OpenReview(*about))
    await ground.bench.authority.renew([], incarnation)
    return await ground.last(item)


async def a_node_quarantined_meanwhile(ground: Ground) -> ItemOutcome:
    """One that no process runs: there is no incarnation whose version would tell."""
    incarnation = await ground.bench.register()
    node = NodeId("node-1")
    await ground.bench.authority.change_node(
        ChangeNode(
            CommandId(str(uuid4())), b"", TENANT, "executor", node, incarnation, NodeState.GONE
        )
    )
    item = await ground.accept(ground.bench.registration())
    await ground.bench.authority.quarantine(
        Quarantine(CommandId(str(uuid4())), b"", TENANT, "operator", node, "why")
    )
    return await ground.last(item)


async def an_allocation_under_a_policy_that_was_replaced(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register()
    item = await ground.accept(steps.allocation(await ground.bench.submit(), incarnation))
    version = item.accepted.reads.policy_version
    # One that nobody has set: policies cannot be taken back, and this database is used again.
    return await ground.last(steps.with_reads(item, policy_version=(version or 0) + 1))


async def more_slots_than_there_are(ground: Ground) -> ItemOutcome:
    return await two_allocations(ground, slots=1)


async def more_processors_than_there_are(ground: Ground) -> ItemOutcome:
    return await two_allocations(ground, cpu_millis=1000)


async def more_memory_than_there_is(ground: Ground) -> ItemOutcome:
    return await two_allocations(ground, memory_bytes=1000)


async def more_of_a_type_than_at_once(ground: Ground) -> ItemOutcome:
    return await two_allocations(ground, slots=4, concurrency={"sha256": 1})


async def more_of_a_type_than_at_once_one_after_the_other(ground: Ground) -> ItemOutcome:
    incarnation = await ground.bench.register(slots=4, concurrency={"sha256": 1})
    tasks = [await ground.bench.submit() for _ in range(2)]
    first, second = [await ground.accept(steps.allocation(one, incarnation)) for one in tasks]
    await ground.last(first)
    return await ground.last(second)


async def another_tenants_task(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    item = await ground.accept(steps.cancellation(await ground.bench.submit()))
    command = replace(item.command, tenant=TenantId("other"))
    return await ground.last(Item(command, of_another_tenant(item.accepted)))


async def another_tenants_attempt(ground: Ground) -> ItemOutcome:
    """A renewal that names no task."""
    await ground.bench.register()
    held = await ground.bench.running()
    item = await ground.accept(ground.bench.command(Renew, held))
    command = replace(item.command, tenant=TenantId("other"))
    return await ground.last(steps.with_reads(Item(command, item.accepted), task_id=None))


async def another_tasks_attempt(ground: Ground) -> ItemOutcome:
    await ground.bench.register()
    held, other = await ground.bench.running(), await ground.bench.running()
    item = await ground.accept(ground.bench.command(Renew, held))
    version = (await ground.bench.task(other.task_id))["version"]
    return await ground.last(steps.with_reads(item, task_id=other.task_id, task_version=version))


async def another_tenants_node(ground: Ground) -> ItemOutcome:
    """Drained by somebody whose own node has the same name, and no incarnation."""
    incarnation = await ground.bench.register()
    item = await ground.accept(draining(incarnation))
    command = replace(item.command, tenant=TenantId("other"))
    accepted = of_another_tenant(item.accepted)
    return await ground.last(steps.with_reads(Item(command, accepted), node_incarnation=None))


# Parts of them --------------------------------------------------------------------------------


async def two_allocations(ground: Ground, **node: Any) -> ItemOutcome:
    incarnation = await ground.bench.register(**node)
    needs = ResourceAmounts(cpu_millis=600, memory_bytes=600)
    tasks = [await ground.bench.submit(resources=needs) for _ in range(2)]
    return await ground.last(
        *[await ground.accept(steps.allocation(task_id, incarnation)) for task_id in tasks]
    )


def of_another_tenant(accepted: Accepted) -> Accepted:
    """The same, said of a tenant who is not concerned."""
    other: dict[str, Any] = {"tenant": TenantId("other")}
    writes = tuple(replace(one, **other) if hasattr(one, "tenant") else one
                   for one in accepted.writes)  # fmt: skip
    events = tuple(replace(one, **other) for one in accepted.events)
    return replace(accepted, writes=writes, events=events)


async def in_the_future(ground: Ground) -> int:
    """An hour from now."""
    now = await ground.bench.now()
    return int(now.timestamp() * 1e6) + steps.HOUR


def draining(
    incarnation: IncarnationId, node_id: str = "node-1", state: NodeState = NodeState.DRAINING
) -> ChangeNode:
    identity = str(uuid4())
    return ChangeNode(
        CommandId(identity), identity.encode(), TENANT, "operator", NodeId(node_id), incarnation,
        state,
    )  # fmt: skip
