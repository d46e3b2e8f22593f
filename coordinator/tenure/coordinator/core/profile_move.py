"""An operator moves a waiting task to another profile of its type: the one way in which a frozen
profile changes (SCHED-01)."""

from dataclasses import replace

from tenure.contract.codes import Code, Reason
from tenure.contract.states import TERMINAL_TASK_STATES, TaskState
from tenure.coordinator.core.commands import MoveProfile
from tenure.coordinator.core.decisions import Accepted, Answered, Decision, Refused, Reply
from tenure.coordinator.core.guards import reads_of
from tenure.coordinator.core.happenings import task_became, unchanged
from tenure.coordinator.core.snapshot import Minted, Snapshot


def move_profile(command: MoveProfile, snapshot: Snapshot, minted: Minted) -> Decision:
    """Freeze another profile in a task that waits. What its submission asked for by itself stays:
    resources other than the profile's."""
    task, profile = snapshot.task, command.profile
    if task is None or task.tenant != command.tenant:
        return Refused(Code.NOT_FOUND, "no such task")
    if task.state in TERMINAL_TASK_STATES:
        return Refused(Code.WRONG_STATE, f"the task has ended: {task.state.value}")
    if task.state is TaskState.HELD:
        return Refused(Code.WRONG_STATE, "the task is held: release it first")
    if task.current_attempt_id is not None:
        return Refused(Code.WRONG_STATE, "a node has it: wait until its attempt ends")
    if profile.type != task.type:
        return Refused(Code.WRONG_STATE, f"the profile is of the type {profile.type}")
    reply = Reply("applied", task_id=task.task_id, task_state=task.state)
    if task.profile is not None and task.profile.digest == profile.digest:
        return Answered(reply, None)
    as_declared = task.profile is None or task.resources == task.profile.resources
    return Accepted(
        reads=reads_of(snapshot, task),
        reply=reply,
        writes=(
            replace(
                unchanged(task),
                sequence=task.sequence + 1,
                profile=profile,
                resources=profile.resources if as_declared else task.resources,
            ),
        ),
        events=(
            task_became(
                task,
                task.state,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=command.actor,
                reason=Reason.PROFILE_MOVED,
            ),
        ),
    )
