"""The checks that every report about an attempt begins with, in one place.

What they read is covered by the guards that ``reads_of`` gives: the versions of the task and of the
presented attempt.
"""

from tenure.contract.codes import Code
from tenure.contract.ids import GENERATION_LIMIT
from tenure.contract.states import AttemptState
from tenure.coordinator.core.commands import AttemptCommand
from tenure.coordinator.core.decisions import HistoryLost, Reads, Refused
from tenure.coordinator.core.rows import AttemptRow, TaskRow
from tenure.coordinator.core.snapshot import Snapshot


def find_presented(
    command: AttemptCommand, snapshot: Snapshot
) -> Refused | tuple[TaskRow, AttemptRow]:
    """The task and the attempt that the command presents, if they are the caller's.

    Refuses ``unknown_attempt`` (also for another tenant's), ``wrong_node`` for another
    incarnation's, ``stale_token`` when the token is not the one granted to it (LEASE-02), and
    ``authority_history_lost`` for a token that has not been granted yet (LEASE-04).
    """
    task, attempt = snapshot.task, snapshot.attempt
    if _not_granted_yet(command, snapshot):
        return HistoryLost(
            Code.AUTHORITY_HISTORY_LOST,
            "this token was granted later than anything that the database knows",
        )
    if task is None or attempt is None or attempt.attempt_id != command.attempt_id:
        return Refused(Code.UNKNOWN_ATTEMPT, "no such attempt of this task")
    if task.tenant != command.tenant or attempt.task_id != task.task_id:
        return Refused(Code.UNKNOWN_ATTEMPT, "no such attempt of this task")
    if (attempt.node_id, attempt.incarnation) != (command.node_id, command.incarnation):
        return Refused(Code.WRONG_NODE, "the attempt was granted to another incarnation")
    if attempt.fencing_token != command.fencing_token:
        return Refused(Code.STALE_TOKEN, "the attempt was granted another fencing token")
    return task, attempt


def _not_granted_yet(command: AttemptCommand, snapshot: Snapshot) -> bool:
    """Whether the token is above every one that this authority has granted: for the task, where it
    is the caller's, else at all."""
    highest = (snapshot.epoch + 1) * GENERATION_LIMIT - 1
    if snapshot.task is not None and snapshot.task.tenant == command.tenant:
        highest = snapshot.epoch * GENERATION_LIMIT + snapshot.task.generation
    return command.fencing_token > highest


def find_authorized(
    command: AttemptCommand, snapshot: Snapshot, now: int, states: frozenset[AttemptState]
) -> Refused | tuple[TaskRow, AttemptRow]:
    """As ``find_presented``, and the attempt is current, in one of ``states``, its lease live.

    Refuses also ``not_current``, ``wrong_state`` and ``lease_expired``, whether or not anything has
    marked the attempt expired yet (LATE-01).
    """
    presented = find_presented(command, snapshot)
    if isinstance(presented, Refused):
        return presented
    task, attempt = presented
    if task.current_attempt_id != attempt.attempt_id:
        return Refused(Code.NOT_CURRENT, "the attempt has ended or was superseded")
    if attempt.state not in states:
        return Refused(Code.WRONG_STATE, f"the attempt is {attempt.state.value}")
    if attempt.expires_at <= now:
        return Refused(Code.LEASE_EXPIRED, "the lease ran out")
    return task, attempt


def reads_of(
    snapshot: Snapshot,
    task: TaskRow,
    attempt: AttemptRow | None = None,
    *,
    lease_live: bool = False,
    lease_over: bool = False,
) -> Reads:
    """Guards of a decision about a task and one of its attempts."""
    return Reads(
        epoch=snapshot.epoch,
        task_id=task.task_id,
        task_version=task.version,
        attempt_id=None if attempt is None else attempt.attempt_id,
        attempt_version=None if attempt is None else attempt.version,
        lease_live=lease_live,
        lease_over=lease_over,
    )
