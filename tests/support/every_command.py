"""Every kind of command, each with the situation that it changes: the same one may be sent again.

A test compares the list with the commands there are.
"""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from tenure.contract.codes import Code
from tenure.contract.ids import CommandId, NodeId, TaskId
from tenure.contract.states import NodeState
from tenure.coordinator.core.commands import (
    Accept,
    Allocate,
    Cancel,
    ChangeNode,
    CloseReview,
    Command,
    ConfirmCancel,
    Deliver,
    Expire,
    Fail,
    Hold,
    HoldRejected,
    MoveProfile,
    OpenReview,
    Quarantine,
    ReceiveCancel,
    RefuseIntake,
    Register,
    Reject,
    Release,
    Renew,
    Revoke,
    RevokeFromNode,
    Start,
    Submit,
    Take,
    TakeIn,
    TryAgain,
)
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.intake import refusal, take_in
from tenure.coordinator.store.rows import IntakeRow, intake_row
from tests.support import steps
from tests.support.authority import TENANT, Bench
from tests.support.rows import declared

Send = Callable[[], Awaitable[Outcome]]
Prepare = Callable[[Bench], Awaitable[Send]]
"""Prepares a situation and gives the command to send into it, as often as one likes."""


async def a_submission(bench: Bench) -> Send:
    command = bench.submission()
    return lambda: first(bench.authority.submit([command]))


async def a_cancellation(bench: Bench) -> Send:
    command = steps.cancellation(await bench.submit())
    return lambda: bench.authority.cancel(command)


async def a_requested_cancellation(bench: Bench) -> Send:
    held = await bench.running()
    command = steps.cancellation(held.task_id)
    return lambda: bench.authority.cancel(command)


async def a_hold(bench: Bench) -> Send:
    command = Hold(**_said(await bench.submit()), message="why")
    return lambda: first(bench.authority.intervene([command]))


async def a_release(bench: Bench) -> Send:
    task_id = await bench.submit()
    await bench.hold(task_id)
    command = Release(**_said(task_id))
    return lambda: first(bench.authority.intervene([command]))


async def a_move_to_another_profile(bench: Bench) -> Send:
    other = declared("sha256", max_attempts=2)
    await bench.register("another", max_attempts=2)  # so that it is known
    await bench.register("another")  # declares the usual one again, for what is submitted
    task_id = await bench.submit()
    command = MoveProfile(**_said(task_id), profile=other.profile)
    return lambda: first(bench.authority.intervene([command]))


async def a_retry(bench: Bench) -> Send:
    task_id = await bench.submit()
    await bench.hold(task_id)
    command = TryAgain(**_said(task_id))
    return lambda: first(bench.authority.intervene([command]))


async def a_hold_of_what_all_reject(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    await bench.report(Reject, held, reason="unknown_type", message="")
    command = hold_rejected(held.task_id)
    return lambda: first(bench.authority.hold_rejected([command]))


def hold_rejected(task_id: TaskId) -> HoldRejected:
    """What the sweeper asks for."""
    return HoldRejected(**_said(task_id))


def _said(task_id: TaskId) -> dict[str, Any]:
    identity = str(uuid4())
    return {
        "command_id": CommandId(identity),
        "fingerprint": identity.encode(),
        "tenant": TENANT,
        "actor": "operator",
        "task_id": task_id,
    }


async def a_received_cancellation(bench: Bench) -> Send:
    held = await bench.running()
    await bench.cancel(held.task_id)
    command = bench.command(ReceiveCancel, held)
    return lambda: first(bench.authority.report([command]))


async def an_acceptance(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    command = bench.command(Accept, held)
    return lambda: first(bench.authority.report([command]))


async def a_start(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    await bench.report(Accept, held)
    command = bench.command(Start, held)
    return lambda: first(bench.authority.report([command]))


async def a_take(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    command = bench.command(Take, held)
    return lambda: first(bench.authority.report([command]))


async def a_delivery(bench: Bench) -> Send:
    held = await bench.running()
    command = bench.command(Deliver, held, output_text="1", content_digest=b"1")
    return lambda: first(bench.authority.report([command]))


async def a_late_delivery(bench: Bench) -> Send:
    held = await bench.running()
    await bench.end_lease(held)
    command = bench.command(Deliver, held, output_text="1", content_digest=b"1")
    return lambda: first(bench.authority.report([command]))


async def a_failure(bench: Bench) -> Send:
    held = await bench.running()
    command = bench.command(Fail, held, reason="r", message="m", retryable=False)
    return lambda: first(bench.authority.report([command]))


async def a_rejection(bench: Bench) -> Send:
    held = await bench.assigned(await bench.submit())
    command = bench.command(Reject, held, reason="r", message="m")
    return lambda: first(bench.authority.report([command]))


async def a_confirmed_cancellation(bench: Bench) -> Send:
    held = await bench.running()
    await bench.cancel(held.task_id)
    command = bench.command(ConfirmCancel, held)
    return lambda: first(bench.authority.report([command]))


async def a_registration(bench: Bench) -> Send:
    command = bench.registration(f"node-{uuid4()}")
    return lambda: bench.authority.register(command)


async def a_drain(bench: Bench) -> Send:
    incarnation = await bench.register("another")
    command = ChangeNode(
        CommandId(str(uuid4())), b"", TENANT, "operator", NodeId("another"), incarnation,
        NodeState.DRAINING,
    )  # fmt: skip
    return lambda: bench.authority.change_node(command)


async def a_review(bench: Bench) -> Send:
    """Of one that has been silent; repeated, it finds the review open."""
    incarnation = await bench.register("another")
    await bench.owner.execute(
        "update tenure.incarnations set last_seen_at = '2026-01-01' where incarnation = $1",
        incarnation,
    )
    about = CommandId(str(uuid4())), b"", TENANT, "sweeper", NodeId("another"), incarnation
    command = OpenReview(*about)
    return lambda: bench.authority.review(command)


async def a_closed_review(bench: Bench) -> Send:
    await (await a_review(bench))()
    command = CloseReview(
        CommandId(str(uuid4())), b"", TENANT, "operator", NodeId("another"), None, "seen to"
    )
    return lambda: bench.authority.review(command)


async def a_revocation(bench: Bench) -> Send:
    held = await bench.running()
    command = Revoke(**_said(held.task_id), attempt_id=held.attempt_id, message="why")
    return lambda: first(bench.authority.revoke([command]))


async def a_revocation_from_a_node(bench: Bench) -> Send:
    held = await bench.running()
    command = RevokeFromNode(**_said(held.task_id), attempt_id=held.attempt_id, message="why")
    return lambda: first(bench.authority.revoke([command]))


async def a_quarantine(bench: Bench) -> Send:
    node = f"node-{uuid4()}"  # a quarantine outlives registrations
    await bench.register(node)
    command = Quarantine(CommandId(str(uuid4())), b"", TENANT, "operator", NodeId(node), "why")
    return lambda: bench.authority.quarantine(command)


async def an_allocation(bench: Bench) -> Send:
    incarnation = await bench.register("another")
    command = steps.allocation(await bench.submit(), incarnation)

    async def send() -> Outcome:
        snapshot = await steps.load(bench.owner, command)
        return (await bench.authority.allocate([command], [snapshot]))[0]

    return send


async def an_expiry(bench: Bench) -> Send:
    held = await bench.running()
    await bench.end_lease(held)
    command = steps.expiry(held.task_id)
    return lambda: first(bench.authority.expire([command]))


async def a_renewal(bench: Bench) -> Send:
    held = await bench.running()
    command = bench.command(Renew, held)
    return lambda: first(bench.authority.renew([command], held.incarnation))


async def an_enqueued_row(bench: Bench) -> IntakeRow:
    """As ``tenure.enqueue`` leaves it in an application's transaction."""
    (record,) = await bench.owner.fetch(
        "insert into tenure.intake (tenant, command_id, task_id, type, input, priority,"
        " fingerprint, enqueued_by)"
        " values ('default', $1, $1, 'sha256', '1', 0, '', 'shop') returning *",
        uuid4(),
    )
    return intake_row(record)


async def a_row_to_take_in(bench: Bench) -> Send:
    command = take_in(await an_enqueued_row(bench), payload_limit_bytes=1000)
    assert isinstance(command, TakeIn)
    return lambda: first(bench.authority.take_in([command]))


async def a_row_to_refuse(bench: Bench) -> Send:
    command = refusal(await an_enqueued_row(bench), Code.INVALID_FIELD, "no")
    return lambda: first(bench.authority.take_in([command]))


async def first(outcomes: Awaitable[list[Outcome]]) -> Outcome:
    """The only one."""
    (outcome,) = await outcomes
    return outcome


STORED: dict[Prepare, type[Command]] = {
    a_submission: Submit,
    a_cancellation: Cancel,
    a_requested_cancellation: Cancel,
    a_hold: Hold,
    a_release: Release,
    a_move_to_another_profile: MoveProfile,
    a_retry: TryAgain,
    a_received_cancellation: ReceiveCancel,
    an_acceptance: Accept,
    a_start: Start,
    a_take: Take,
    a_delivery: Deliver,
    a_late_delivery: Deliver,
    a_failure: Fail,
    a_rejection: Reject,
    a_confirmed_cancellation: ConfirmCancel,
    a_registration: Register,
    a_drain: ChangeNode,
    a_revocation: Revoke,
    a_quarantine: Quarantine,
    a_closed_review: CloseReview,
}
"""Their outcomes are kept: a repetition is given the first one."""
BY_GUARDS_ALONE: dict[Prepare, type[Command]] = {
    an_allocation: Allocate,
    an_expiry: Expire,
    a_revocation_from_a_node: RevokeFromNode,
    a_review: OpenReview,
    a_hold_of_what_all_reject: HoldRejected,
}
"""A repetition finds nothing left to do; of an allocation it finds its attempt."""
OF_ROWS: dict[Prepare, type[Command]] = {a_row_to_take_in: TakeIn, a_row_to_refuse: RefuseIntake}
"""A repetition finds the row decided."""
RENEWALS: dict[Prepare, type[Command]] = {a_renewal: Renew}
"""A repetition renews once more, which harms nobody."""
EVERY = STORED | BY_GUARDS_ALONE | OF_ROWS | RENEWALS
