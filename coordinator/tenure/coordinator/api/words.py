"""What is said about one task, by whichever way: alone, or as one of many.

Every word may be said again: it changes nothing more. Every method raises RequestRefused with the
code of the refusal, and Unavailable when nothing is known to have changed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import structlog
from uuid_utils.compat import uuid7

from tenure.contract.codes import Code
from tenure.contract.ids import CommandId, TaskId
from tenure.contract.states import TaskState
from tenure.contract.tasks import (
    CancelReply,
    Erasure,
    InterventionReply,
    RetryReply,
    TaskSubmission,
    TaskView,
)
from tenure.coordinator.admission import Admission
from tenure.coordinator.api import wire
from tenure.coordinator.api.applications import absent
from tenure.coordinator.core import commands
from tenure.coordinator.core.decisions import Reply
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.identities import Identity
from tenure.coordinator.store.reads import Reads
from tenure.coordinator.store.scheduling import SchedulingReads
from tenure.coordinator.submission import derived_id, fingerprint, submission

log = structlog.get_logger()

DONE_AGAIN: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED})


class Words:
    """Over the lanes and the reads of a coordinator."""

    def __init__(
        self,
        *,
        admission: Admission,
        reads: Reads,
        scheduling: SchedulingReads,
        payload_limit_bytes: int,
        mint_task_id: Callable[[], str] = lambda: str(uuid7()),
    ) -> None:
        self._admission = admission
        self._reads = reads
        self._scheduling = scheduling
        self._payload_limit_bytes = payload_limit_bytes
        self._mint_task_id = mint_task_id

    async def cancel(self, who: Identity, task_id: TaskId) -> CancelReply:
        """End a task, or ask its attempt to."""
        command = wire.cancellation(task_id, command_id=CommandId(str(uuid4())), identity=who)
        outcome = await self._admission.cancel(command)
        if outcome.refused is not None and outcome.refused.code is Code.NOT_FOUND:
            raise await absent(self._reads, who.tenant, task_id)
        return wire.cancel_reply(task_id, outcome)

    async def hold(self, who: Identity, task_id: TaskId, reason: str) -> InterventionReply:
        """Begin nothing of a task until it is released."""
        command = commands.Hold(**_about(who, task_id, "hold"), message=reason)
        return _told(who, await self._intervene(who, task_id, command))

    async def release(self, who: Identity, task_id: TaskId) -> InterventionReply:
        """Let a held task wait for a node again."""
        command = commands.Release(**_about(who, task_id, "release"))
        return _told(who, await self._intervene(who, task_id, command))

    async def retry(self, who: Identity, task_id: TaskId) -> RetryReply:
        """The next attempt now; for a task that has ended without a delivery a new task (STATE-02:
        the ended one stays as it is)."""
        view = await self._reads.task(who.tenant, task_id)
        if view is None:
            raise await absent(self._reads, who.tenant, task_id)
        if view.state in DONE_AGAIN and view.erasure is not None and view.retried_by is None:
            raise RequestRefused(
                Code.WRONG_STATE,
                f"Task {task_id!r}: its input was erased.",
                next_step="Submit it as a new task, with its input.",
            )
        if view.state in DONE_AGAIN:
            return RetryReply(
                task_id=task_id,
                state=view.state,
                outcome="submitted_again",
                new_task_id=view.retried_by or await self._submit_again(who, view),
            )
        reply = await self._intervene(
            who, task_id, commands.TryAgain(**_about(who, task_id, "try again"))
        )
        log.info("task is tried again", by=who.name, task_id=task_id)
        return RetryReply(task_id=task_id, state=_state(reply), outcome="waiting")

    async def erase(self, who: Identity, task_id: TaskId, reason: str) -> Erasure:
        """Erase what an ended task was about. Asking again gives the first answer."""
        outcome, erasure = await self._reads.erase(who.tenant, task_id, by=who.name, reason=reason)
        if outcome == "absent":
            raise await absent(self._reads, who.tenant, task_id)
        if outcome == "unconfirmed":
            raise RequestRefused(
                Code.AUTHORITY_UNCONFIRMED,
                "The authority is in doubt: nothing is erased meanwhile.",
            )
        if erasure is None:
            raise RequestRefused(
                Code.WRONG_STATE,
                f"Task {task_id!r} has not ended.",
                next_step="Cancel it, or wait for its end; then erase it.",
            )
        log.info("task erased", by=who.name, task_id=task_id, reason=reason)
        return erasure

    async def move_profile(
        self, who: Identity, task_id: TaskId, digest: str | None
    ) -> InterventionReply:
        """Freeze another profile in a waiting task: without a digest the current one."""
        found = await self._scheduling.judged_task(who.tenant, task_id)
        if found is None:
            raise await absent(self._reads, who.tenant, task_id)
        profile = await self._scheduling.profile(who.tenant, found.task.type, digest)
        if profile is None:
            raise RequestRefused(
                Code.NOT_FOUND,
                f"There is no profile {digest!r} of the type {found.task.type!r}.",
                next_step="See `tenure profile list`.",
            )
        command = commands.MoveProfile(**_about(who, task_id, "move profile"), profile=profile)
        return _told(who, await self._intervene(who, task_id, command))

    async def _intervene(
        self, who: Identity, task_id: TaskId, command: commands.Intervention
    ) -> Reply:
        (outcome,) = await self._admission.intervene([command])
        refused = outcome.refused
        if refused is not None and refused.code is Code.NOT_FOUND:
            raise await absent(self._reads, who.tenant, task_id)
        if refused is not None and refused.code is Code.WRONG_STATE:
            raise RequestRefused(
                Code.WRONG_STATE,
                f"Task {task_id!r}: {refused.message}.",
                next_step="See `tenure task show` for its state.",
            )
        return wire.applied(outcome)

    async def _submit_again(self, who: Identity, view: TaskView) -> str:
        """The same content under the declaration that its type has now. The id of the submission
        comes from the ended task, so that asking again gives the same new task."""
        request = TaskSubmission(
            type=view.type,
            input=view.input,
            priority=view.priority,
            resources=view.resources,
            concurrency_key=view.concurrency_key,
            traceparent=view.traceparent,
            scope=view.scope,
        )
        command = replace(
            submission(
                request,
                task_id=TaskId(self._mint_task_id()),
                fallback_id=derived_id(who.tenant, "retry", view.task_id),
                key=None,
                identity=who,
                payload_limit_bytes=self._payload_limit_bytes,
            ),
            fingerprint=fingerprint(["retry", view.task_id]),
            retry_of=TaskId(view.task_id),
        )
        (outcome,) = await self._admission.submit([command])
        new = wire.submitted(outcome)
        log.info("ended task is done again", by=who.name, task_id=view.task_id)
        return new.task_id


def _about(who: Identity, task_id: TaskId, verb: str) -> dict[str, Any]:
    return {
        "command_id": CommandId(str(uuid4())),
        "fingerprint": fingerprint([verb, task_id]),
        "tenant": who.tenant,
        "actor": who.name,
        "task_id": task_id,
    }


def _told(who: Identity, reply: Reply) -> InterventionReply:
    log.info("operator's word", by=who.name, task_id=reply.task_id, state=_state(reply))
    return InterventionReply(task_id=str(reply.task_id), state=_state(reply))


def _state(reply: Reply) -> TaskState:
    return reply.task_state or TaskState.OPEN
