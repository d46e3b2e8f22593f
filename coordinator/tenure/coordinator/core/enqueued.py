"""Decisions about rows of the intake: each becomes one task, or is refused and stays visible."""

from dataclasses import replace

from tenure.contract.codes import Code
from tenure.coordinator.core.commands import RefuseIntake, TakeIn
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    Decision,
    IntakeDecided,
    Reads,
    Refused,
    Reply,
)
from tenure.coordinator.core.snapshot import Minted, Snapshot
from tenure.coordinator.core.task import submit


def take_in(command: TakeIn, snapshot: Snapshot, now: int, minted: Minted) -> Decision:
    """Decide a row as the submission that it is (OPS-01).

    The row and the task are decided in one commit. A task that the same submission made over HTTP
    is the row's, if the row's transaction was told its id.
    """
    if not snapshot.intake_waiting:
        return _decided_already(command)
    stored = snapshot.command
    if stored is None:
        decision = submit(command, snapshot, now, minted)
        if isinstance(decision, Refused):
            return _refusal(command, snapshot, decision.code, decision.message)
        assert isinstance(decision, Accepted)
        return replace(
            decision,
            reads=replace(decision.reads, intake_id=command.intake_id),
            writes=(*decision.writes, IntakeDecided(command.intake_id)),
        )
    if (stored.fingerprint, stored.tenant) != (command.fingerprint, command.tenant):
        return _refusal(
            command,
            snapshot,
            Code.IDEMPOTENCY_CONFLICT,
            f"the key stands for task {stored.reply.task_id}, which asks for something else",
        )
    if stored.reply.task_id != command.task_id:
        return _refusal(
            command,
            snapshot,
            Code.IDEMPOTENCY_CONFLICT,
            f"the key was submitted while the transaction was open: task {stored.reply.task_id}",
        )
    return Accepted(
        reads=Reads(epoch=snapshot.epoch, intake_id=command.intake_id),
        reply=stored.reply,
        writes=(IntakeDecided(command.intake_id),),
        stored=False,
    )


def refuse(command: RefuseIntake, snapshot: Snapshot) -> Decision:
    """Record that a row asks for nothing that can be submitted."""
    if not snapshot.intake_waiting:
        return _decided_already(command)
    return _refusal(command, snapshot, command.code, command.message)


def _refusal(
    command: TakeIn | RefuseIntake, snapshot: Snapshot, code: Code, message: str
) -> Accepted:
    return Accepted(
        reads=Reads(epoch=snapshot.epoch, intake_id=command.intake_id),
        reply=Reply("refused", code=code.value, message=message, task_id=command.task_id),
        writes=(IntakeDecided(command.intake_id, code.value, message),),
        stored=False,
    )


def _decided_already(command: TakeIn | RefuseIntake) -> Answered:
    return Answered(Reply("ended", task_id=command.task_id), None)
