"""What applications ask: submit, read, wait for and cancel tasks; read streams of events."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated
from uuid import uuid4

from pydantic import AwareDatetime, Field
from starlette.requests import Request
from uuid_utils.compat import uuid7

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.ids import TASK_TYPE_PATTERN, TRACEPARENT_PATTERN, CommandId, TaskId, TenantId
from tenure.contract.states import EntityType, Phase, TaskState
from tenure.contract.tasks import (
    IDEMPOTENCY_KEY_HEADER,
    MAX_WAIT_SECONDS,
    REPLAYED_HEADER,
    TRACEPARENT_HEADER,
    BatchEntry,
    BatchReply,
    TaskBatch,
    TaskSubmission,
)
from tenure.coordinator.admission import Admission
from tenure.coordinator.api import wire
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.problems import NEXT_STEP, problem_of
from tenure.coordinator.api.reading import Query, read_items, read_model
from tenure.coordinator.api.syntax import UUID_PATTERN, is_uuid
from tenure.coordinator.core.commands import Submit
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.errors import InvalidRequest, RequestRefused, Unavailable
from tenure.coordinator.store.reads import Reads
from tenure.coordinator.store.views import Enqueued, ResultAt
from tenure.coordinator.submission import submission
from tenure.coordinator.waiters import WAKING_STATES, Waiter, Waiters

MAX_KEY_CHARACTERS = 255
NEVER_TAKEN_IN = (
    Code.UNKNOWN_TASK_TYPE,
    Code.DEADLINE_IN_THE_PAST,
    Code.IDEMPOTENCY_CONFLICT,
    Code.PAYLOAD_TOO_LARGE,
    Code.INVALID_FIELD,
    Code.INVALID_CHARACTER,
    Code.MALFORMED_JSON,
    Code.INTERNAL_REFUSED,
)
"""Why a task that was enqueued is none: told to whoever asks for it."""
ENQUEUED_LOOK_SECONDS = 0.5
"""How often a waiting request looks again at what is enqueued and not a task so far: its refusal is
no event. Short, since it is taken in within a second, unless nothing can be."""


class WaitQuery(Query):
    """How long to wait for the end of the task, in seconds."""

    wait: float = Field(default=0.0, ge=0, le=MAX_WAIT_SECONDS)


class TaskListQuery(Query):
    """Filters and the page; newest first."""

    state: TaskState | None = None
    phase: Phase | None = None
    type: Annotated[str, Field(pattern=f"^{TASK_TYPE_PATTERN.pattern}$")] | None = None
    created_before: AwareDatetime | None = None
    limit: int = Field(default=50, ge=1, le=500)
    after: Annotated[str, Field(pattern=UUID_PATTERN)] | None = None


class StreamQuery(Query):
    """Events with a sequence above ``after``."""

    after: int = Field(default=0, ge=0, lt=2**63)
    limit: int = Field(default=100, ge=1, le=1000)


class Applications:
    """Handlers of ``/v1/tasks`` and ``/v1/streams``."""

    def __init__(
        self,
        *,
        admission: Admission,
        reads: Reads,
        waiters: Waiters,
        payload_limit_bytes: int,
        mint_task_id: Callable[[], str] = lambda: str(uuid7()),
    ) -> None:
        self._admission = admission
        self._reads = reads
        self._waiters = waiters
        self._payload_limit_bytes = payload_limit_bytes
        self._mint_task_id = mint_task_id

    async def submit(self, call: Call) -> Answer:
        """One task. A repeated key gives the first answer again."""
        request = read_model(await call.body(), TaskSubmission)
        key = _key(call.request, request)
        (outcome,) = await self._admission.submit([self._command(call, request, key)])
        submitted = wire.submitted(outcome)
        if submitted.replayed:
            return Answer(submitted, headers={REPLAYED_HEADER: "true"})
        return Answer(submitted, 201, {"Location": f"/v1/tasks/{submitted.task_id}"})

    async def submit_batch(self, call: Call) -> Answer:
        """Many tasks, each decided by itself."""
        items = read_items(await call.body(), TaskBatch, "tasks")
        requests = items.batch.tasks if items.batch else ()
        number = len(requests) + len(items.faults)
        faults: dict[int, TenureError] = dict(items.faults)
        commands: dict[int, Submit] = {}
        good = iter(requests)
        for index in range(number):
            if index in faults:
                continue
            request = next(good)
            try:
                commands[index] = self._command(call, request, request.idempotency_key)
            except TenureError as error:
                faults[index] = error
        outcomes: dict[int, Outcome] = {}
        if commands:
            answers = await self._admission.submit(list(commands.values()))
            outcomes = dict(zip(commands, answers, strict=True))
        return Answer(
            BatchReply(
                results=tuple(
                    BatchEntry(problem=problem_of(faults[index]))
                    if index in faults
                    else _batch_entry(outcomes[index])
                    for index in range(number)
                )
            )
        )

    async def task(self, call: Call) -> Answer:
        """A task with its whole timeline."""
        task_id = task_id_of(call)
        view = await self._reads.task(call.identity.tenant, task_id)
        if view is None:
            raise await absent(self._reads, call.identity.tenant, task_id)
        return Answer(view)

    async def list_tasks(self, call: Call) -> Answer:
        """A page of tasks."""
        query = call.query(TaskListQuery)
        return Answer(
            await self._reads.list_tasks(
                call.identity.tenant,
                state=query.state,
                phase=query.phase,
                type_name=query.type,
                after=query.after,
                created_before=query.created_before,
                limit=query.limit,
            )
        )

    async def result(self, call: Call) -> Answer:
        """The state and output of a task; waits until it has ended, is held, or the time is over.

        A stopping coordinator answers at once with the state as it is.
        """
        task_id = task_id_of(call)
        wait = call.query(WaitQuery).wait
        if wait == 0:
            return Answer((await self._result(call, task_id)).result)
        deadline = asyncio.get_running_loop().time() + wait
        async with self._waiters.waiting(task_id) as waiter:
            gone = asyncio.ensure_future(_wake_when_gone(call.request, waiter))
            try:
                return await self._await_end(call, task_id, waiter, deadline, gone)
            finally:
                gone.cancel()

    async def _await_end(
        self,
        call: Call,
        task_id: TaskId,
        waiter: Waiter,
        deadline: float,
        gone: "asyncio.Future[None]",
    ) -> Answer:
        while True:
            waiter.woken.clear()
            found = await self._result(call, task_id)
            if found.result.state.value in WAKING_STATES or self._waiters.closing or gone.done():
                return Answer(found.result)
            self._waiters.watch_from(found.head)
            look_at = deadline
            if found.enqueued is not None:
                look_at = min(deadline, asyncio.get_running_loop().time() + ENQUEUED_LOOK_SECONDS)
            try:
                async with asyncio.timeout_at(look_at):
                    await waiter.woken.wait()
            except TimeoutError:
                if look_at == deadline:  # what was read when the wait began is old by now
                    return Answer((await self._result(call, task_id)).result)

    async def _result(self, call: Call, task_id: TaskId) -> ResultAt:
        found = await self._reads.result(call.identity.tenant, task_id)
        if found is None:
            raise no_task(task_id)
        if found.enqueued is not None and found.enqueued.state == "refused":
            raise _not_taken_in(task_id, found.enqueued)
        return found

    async def cancel(self, call: Call) -> Answer:
        """End a task, or ask its attempt to."""
        task_id = task_id_of(call)
        await refuse_body(call)
        command = wire.cancellation(
            task_id, command_id=CommandId(str(uuid4())), identity=call.identity
        )
        outcome = await self._admission.cancel(command)
        if outcome.refused is not None and outcome.refused.code is Code.NOT_FOUND:
            raise await absent(self._reads, call.identity.tenant, task_id)
        return Answer(wire.cancel_reply(task_id, outcome))

    async def stream(self, call: Call) -> Answer:
        """Events of one entity, as they were published."""
        query = call.query(StreamQuery)
        entity, entity_id = call.path("entity_type"), call.path("entity_id").lower()
        if entity not in tuple(EntityType):
            raise RequestRefused(
                Code.NOT_FOUND,
                f"There are no streams of {entity!r}.",
                next_step=f"Ask for one of: {', '.join(EntityType)}.",
            )
        view = None
        if is_uuid(entity_id):
            view = await self._reads.stream(
                call.identity.tenant,
                EntityType(entity),
                entity_id,
                after=query.after,
                limit=query.limit,
            )
        if view is None and entity == EntityType.TASK and is_uuid(entity_id):
            raise await absent(self._reads, call.identity.tenant, TaskId(entity_id))
        if view is None:
            raise RequestRefused(Code.NOT_FOUND, f"There is no {entity} {entity_id!r}.")
        return Answer(view)

    def _command(self, call: Call, request: TaskSubmission, key: str | None) -> Submit:
        if request.traceparent is None:
            request = request.model_copy(update={"traceparent": _trace(call.request)})
        return submission(
            request,
            task_id=TaskId(self._mint_task_id()),
            fallback_id=CommandId(str(uuid4())),
            key=key,
            identity=call.identity,
            payload_limit_bytes=self._payload_limit_bytes,
        )


def _batch_entry(outcome: Outcome) -> BatchEntry:
    try:
        return BatchEntry(submitted=wire.submitted(outcome))
    except RequestRefused as refusal:
        return BatchEntry(problem=problem_of(refusal))


def _key(request: Request, submission: TaskSubmission) -> str | None:
    """The key of a submission, from the header or the body."""
    values = request.headers.getlist(IDEMPOTENCY_KEY_HEADER)
    if not values:
        return submission.idempotency_key
    try:
        # Headers arrive as Latin-1; a key is the same in a header and in JSON.
        key = values[0].encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The header {IDEMPOTENCY_KEY_HEADER} is not UTF-8.") from error
    if len(values) > 1:
        raise InvalidRequest(f"The header {IDEMPOTENCY_KEY_HEADER} is given twice.")
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        raise InvalidRequest(
            f"The header {IDEMPOTENCY_KEY_HEADER} has {len(key)} characters;"
            f" it takes 1 to {MAX_KEY_CHARACTERS}."
        )
    if submission.idempotency_key not in (None, key):
        raise InvalidRequest(
            f"The header {IDEMPOTENCY_KEY_HEADER} and the field 'idempotency_key' differ."
        )
    return key


def _trace(request: Request) -> str | None:
    """The trace of a request. One that is no trace is none, as W3C Trace Context has it."""
    values = request.headers.getlist(TRACEPARENT_HEADER)
    given = values[0] if len(values) == 1 else ""
    return given if TRACEPARENT_PATTERN.fullmatch(given) else None


def task_id_of(call: Call) -> TaskId:
    """The task that the path names. Raises RequestRefused for what is no id."""
    task_id = call.path("task_id").lower()
    if not is_uuid(task_id):
        raise no_task(task_id)
    return TaskId(task_id)


async def absent(reads: Reads, tenant: TenantId, task_id: TaskId) -> TenureError:
    """Why there is no such task: nobody has heard of it, or it is on its way."""
    enqueued = await reads.enqueued(tenant, task_id)
    return no_task(task_id) if enqueued is None else _not_taken_in(task_id, enqueued)


def no_task(task_id: str) -> RequestRefused:
    """There is no such task for this tenant."""
    return RequestRefused(Code.NOT_FOUND, f"There is no task {task_id!r}.")


def _not_taken_in(task_id: TaskId, enqueued: Enqueued) -> TenureError:
    """A task that is enqueued and none so far, or never."""
    if enqueued.code is None:
        return Unavailable(f"Task {task_id!r} is enqueued and about to be taken in.")
    return RequestRefused(
        enqueued.code,
        f"Task {task_id!r} was enqueued and refused: {(enqueued.message or '').rstrip('.')}.",
        next_step=f"{NEXT_STEP[enqueued.code]} Then `tenure intake retry`.",
    )


async def refuse_body(call: Call) -> None:
    """Raises InvalidRequest when there is a body that says anything."""
    if (await call.body()).strip() not in (b"", b"{}"):
        raise InvalidRequest("This request takes no body.")


async def _wake_when_gone(request: Request, waiter: Waiter) -> None:
    """A client that hung up need not be waited for."""
    with suppress(RuntimeError):
        while (await request.receive())["type"] != "http.disconnect":
            continue
    waiter.woken.set()
