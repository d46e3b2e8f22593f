"""Calls past the rules that would decide a row of the intake twice (see ``attacks.py``)."""

from dataclasses import replace
from uuid import uuid4

from tenure.contract.codes import Code
from tenure.contract.ids import CommandId, TaskId, TenantId
from tenure.coordinator.core.commands import RefuseIntake, TakeIn
from tenure.coordinator.core.decisions import ItemOutcome
from tenure.coordinator.intake import refusal, take_in
from tenure.coordinator.store.rows import intake_row
from tests.support.attacks import APPLIED, Ground


async def commands(ground: Ground) -> tuple[TakeIn, RefuseIntake]:
    """A row that waits, to be taken or to be refused."""
    await ground.bench.register()
    (record,) = await ground.bench.owner.fetch(
        "insert into tenure.intake (tenant, command_id, task_id, type, input, priority,"
        " fingerprint, enqueued_by)"
        " values ('default', $1, $1, 'sha256', '1', 0, '', 'shop') returning *",
        uuid4(),
    )
    row = intake_row(record)
    take = take_in(row, payload_limit_bytes=1000)
    assert isinstance(take, TakeIn)
    return take, refusal(row, Code.INTERNAL_REFUSED, "no")


async def a_row_refused_meanwhile(ground: Ground) -> ItemOutcome:
    take, refuse = [await ground.accept(command) for command in await commands(ground)]
    assert await ground.last(refuse) is APPLIED
    return await ground.last(take)


async def another_tenants_row(ground: Ground) -> ItemOutcome:
    _, refuse = await commands(ground)
    item = await ground.accept(refuse)
    return await ground.last(replace(item, command=replace(refuse, tenant=TenantId("other"))))


async def a_row_twice_in_one_call(ground: Ground) -> ItemOutcome:
    take, refuse = [await ground.accept(command) for command in await commands(ground)]
    return await ground.last(take, refuse)


async def a_row_taken_at_once(ground: Ground) -> ItemOutcome:
    take, _ = await commands(ground)
    other = replace(take, command_id=CommandId(str(uuid4())), task_id=TaskId(str(uuid4())))
    return await ground.collide(await ground.accept(take), await ground.accept(other))
