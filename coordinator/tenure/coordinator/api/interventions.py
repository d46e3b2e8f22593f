"""What operators say about single tasks, and the evidence that they say it by."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import structlog
from uuid_utils.compat import uuid7

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import CommandId, TaskId
from tenure.contract.scheduling import ProfileMove
from tenure.contract.states import TaskState
from tenure.contract.tasks import (
    ErasureRequest,
    HoldRequest,
    InterventionReply,
    ReceiptList,
    RetryReply,
    TaskSubmission,
    TaskView,
)
from tenure.coordinator.admission import Admission
from tenure.coordinator.api import wire
from tenure.coordinator.api.applications import absent, refuse_body, task_id_of
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.core import commands
from tenure.coordinator.core.decisions import Reply
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store.reads import Reads
from tenure.coordinator.store.scheduling import SchedulingReads
from tenure.coordinator.submission import derived_id, fingerprint, submission

log = structlog.get_logger()

DONE_AGAIN: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED})


class Interventions:
    """Handlers of ``/v1/tasks/{task_id}`` for operators."""

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

    async def hold(self, call: Call) -> Answer:
        """Begin nothing of a task until it is released."""
        request = read_model(await call.body(), HoldRequest)
        check_value(request.reason, "reason")
        task_id = task_id_of(call)
        command = commands.Hold(**_about(call, task_id, "hold"), message=request.reason)
        return _answer(call, await self._intervene(call, task_id, command))

    async def release(self, call: Call) -> Answer:
        """Let a held task wait for a node again."""
        task_id = task_id_of(call)
        await refuse_body(call)
        command = commands.Release(**_about(call, task_id, "release"))
        return _answer(call, await self._intervene(call, task_id, command))

    async def retry(self, call: Call) -> Answer:
        """The next attempt now; for a task that has ended without a delivery a new task (STATE-02:
        the ended one stays as it is)."""
        task_id = task_id_of(call)
        await refuse_body(call)
        view = await self._reads.task(call.identity.tenant, task_id)
        if view is None:
            raise await absent(self._reads, call, task_id)
        if view.state in DONE_AGAIN and view.erasure is not None and view.retried_by is None:
            raise RequestRefused(
                Code.WRONG_STATE,
                f"Task {task_id!r}: its input was erased.",
                next_step="Submit it as a new task, with its input.",
            )
        if view.state in DONE_AGAIN:
            new_task_id = view.retried_by or await self._submit_again(call, view)
            return Answer(
                RetryReply(
                    task_id=task_id,
                    state=view.state,
                    outcome="submitted_again",
                    new_task_id=new_task_id,
                )
            )
        reply = await self._intervene(
            call, task_id, commands.TryAgain(**_about(call, task_id, "try again"))
        )
        log.info("task is tried again", by=call.identity.name, task_id=task_id)
        return Answer(RetryReply(task_id=task_id, state=_state(reply), outcome="waiting"))

    async def erase(self, call: Call) -> Answer:
        """Erase what an ended task was about. Asking again gives the first answer."""
        request = read_model(await call.body(), ErasureRequest)
        check_value(request.reason, "reason")
        task_id, who = task_id_of(call), call.identity
        outcome, erasure = await self._reads.erase(
            who.tenant, task_id, by=who.name, reason=request.reason
        )
        if outcome == "absent":
            raise await absent(self._reads, call, task_id)
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
        log.info("task erased", by=who.name, task_id=task_id, reason=request.reason)
        return Answer(erasure)

    async def receipts(self, call: Call) -> Answer:
        """Every delivery submission of a task with its content, the late ones too (LATE-02)."""
        task_id = task_id_of(call)
        receipts = await self._reads.receipts(call.identity.tenant, task_id)
        if receipts is None:
            raise await absent(self._reads, call, task_id)
        return Answer(ReceiptList(receipts=receipts))

    async def move_profile(self, call: Call) -> Answer:
        """Freeze another profile in a waiting task: without a digest the current one."""
        request = read_model(await call.body(), ProfileMove)
        task_id = task_id_of(call)
        tenant = call.identity.tenant
        found = await self._scheduling.judged_task(tenant, task_id)
        if found is None:
            raise await absent(self._reads, call, task_id)
        profile = await self._scheduling.profile(tenant, found.task.type, request.digest)
        if profile is None:
            raise RequestRefused(
                Code.NOT_FOUND,
                f"There is no profile {request.digest!r} of the type {found.task.type!r}.",
                next_step="See `tenure profile list`.",
            )
        command = commands.MoveProfile(**_about(call, task_id, "move profile"), profile=profile)
        return _answer(call, await self._intervene(call, task_id, command))

    async def _intervene(
        self, call: Call, task_id: TaskId, command: commands.Intervention
    ) -> Reply:
        (outcome,) = await self._admission.intervene([command])
        refused = outcome.refused
        if refused is not None and refused.code is Code.NOT_FOUND:
            raise await absent(self._reads, call, task_id)
        if refused is not None and refused.code is Code.WRONG_STATE:
            raise RequestRefused(
                Code.WRONG_STATE,
                f"Task {task_id!r}: {refused.message}.",
                next_step="See `tenure task show` for its state.",
            )
        return wire.applied(outcome)

    async def _submit_again(self, call: Call, view: TaskView) -> str:
        """The same content under the declaration that its type has now. The id of the submission
        comes from the ended task, so that asking again gives the same new task."""
        request = TaskSubmission(
            type=view.type,
            input=view.input,
            priority=view.priority,
            resources=view.resources,
            concurrency_key=view.concurrency_key,
        )
        command = replace(
            submission(
                request,
                task_id=TaskId(self._mint_task_id()),
                fallback_id=derived_id(call.identity.tenant, "retry", view.task_id),
                key=None,
                identity=call.identity,
                payload_limit_bytes=self._payload_limit_bytes,
            ),
            fingerprint=fingerprint(["retry", view.task_id]),
            retry_of=TaskId(view.task_id),
        )
        (outcome,) = await self._admission.submit([command])
        new = wire.submitted(outcome)
        log.info("ended task is done again", by=call.identity.name, task_id=view.task_id)
        return new.task_id


def _about(call: Call, task_id: TaskId, verb: str) -> dict[str, Any]:
    return {
        "command_id": CommandId(str(uuid4())),
        "fingerprint": fingerprint([verb, task_id]),
        "tenant": call.identity.tenant,
        "actor": call.identity.name,
        "task_id": task_id,
    }


def _answer(call: Call, reply: Reply) -> Answer:
    log.info("operator's word", by=call.identity.name, task_id=reply.task_id, state=_state(reply))
    return Answer(InterventionReply(task_id=str(reply.task_id), state=_state(reply)))


def _state(reply: Reply) -> TaskState:
    return reply.task_state or TaskState.OPEN
