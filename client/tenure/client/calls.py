"""What a client asks for and how it reads the answers, without doing either.

Each operation is a plan: a generator that yields calls and is sent their replies. ``Client`` and
``AsyncClient`` follow the same plans, each in its own way of waiting (``http.py``), so a rule
exists once: which chunk a task travels in, which answers are not final, how long a result is
waited for.
"""

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from secrets import token_hex
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import quote
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tenure.client.errors import ClientError, Refused, ResultTimeout, Unreachable, UnreadableReply
from tenure.contract.codec import encode_json
from tenure.contract.codes import Code
from tenure.contract.dead_letters import DeadLetterList, DeadLetterState
from tenure.contract.parking import ParkedList, ParkedReason, ParkedState
from tenure.contract.replay import ReplayDetail, ReplayList, ReplayOrder, ReplayReply, ReplayRequest
from tenure.contract.scheduling import Explained, Why
from tenure.contract.states import TaskState
from tenure.contract.tasks import (
    IDEMPOTENCY_KEY_HEADER,
    MAX_TASKS_PER_REQUEST,
    MAX_WAIT_SECONDS,
    BatchReply,
    CancelReply,
    Erasure,
    IntakeList,
    IntakeRetried,
    InterventionReply,
    Problem,
    ReceiptList,
    RetryReply,
    Submitted,
    TaskList,
    TaskResult,
    TaskSubmission,
    TaskView,
)
from tenure.contract.tasktype import InputT, TaskType, named

T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

BATCH_BYTES: Final = 1024 * 1024
"""A batch is sent once it has this size, whatever the number of its tasks."""
SHORTEST_ROUND_SECONDS: Final = 0.5
"""A coordinator that stops answers waiting requests early: it is not asked in a tight loop."""
LATER_CODES: Final = frozenset({Code.UNAVAILABLE.value, Code.OVERLOADED.value})
"""The outcome is open: the same request may be sent again, and should be."""
_NO_LOCAL_LIMIT: Final = 2**62
"""How large an input may be is the server's setting: it says so."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a 2xx status."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    _read: dict[type[BaseModel], BaseModel] = field(default_factory=dict, repr=False, compare=False)

    def read(self, model: type[ModelT]) -> ModelT:
        """The body as ``model``, which is made once. Raises UnreadableReply."""
        known = self._read.get(model)
        if isinstance(known, model):
            return known
        try:
            made = model.model_validate_json(self.body)
        except ValidationError as error:
            raise UnreadableReply(
                f"the answer is no {model.__name__} that this client knows"
                f" ({error.error_count()} fields are wrong).",
                next_step="Use a client of the server's release.",
            ) from error
        self._read[model] = made
        return made


@dataclass(frozen=True, slots=True)
class Call:
    """One request. It may be sent any number of times, with the same bytes each time (LATE-04).

    ``pause_seconds`` pass before it is sent, ``wait_seconds`` the server itself may wait before it
    answers, and tries end after ``retry_seconds`` (None: as the client is set up). ``again`` may
    find in an answer why it is not final: what it returns is raised when no time is left.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_seconds: float = 0.0
    wait_seconds: float = 0.0
    retry_seconds: float | None = None
    again: Callable[[Reply], ClientError | None] | None = None


Plan: TypeAlias = Generator[Call, Reply, T]


# Submitting


def submission(type_name: str, value: Any, **settings: Any) -> TaskSubmission:
    """A task as it is sent; without a key it gets a random one, here and once for all tries.

    Raises Refused and InvalidPayload for what the server would refuse anyway: an error that is
    found here names the same code.
    """
    settings["idempotency_key"] = settings["idempotency_key"] or token_hex(16)
    encode_json(value, limit_bytes=_NO_LOCAL_LIMIT, what="the input")
    try:
        return TaskSubmission(type=type_name, input=value, **settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(problem(422, Code.INVALID_FIELD, f"{where}: {first['msg']}.")) from error


def submissions(
    task_type: TaskType[InputT, Any],
    inputs: Iterable[InputT],
    keys: Iterable[str] | None,
    **settings: Any,
) -> Iterator[TaskSubmission]:
    """One submission for each input, made when it is asked for.

    Raises ValueError when there are fewer keys than inputs, and what ``named`` and ``submission``
    raise.
    """
    each_key: Iterator[str | None] = repeat(None) if keys is None else iter(keys)
    for one in inputs:
        try:
            key = next(each_key)
        except StopIteration:
            raise ValueError("there are fewer idempotency keys than inputs") from None
        yield submission(*named(task_type, one), idempotency_key=key, **settings)


def submit(task: TaskSubmission) -> Plan[Submitted]:
    """One task."""
    reply = yield Call(
        "POST",
        "/v1/tasks",
        body=_encode(task.model_copy(update={"idempotency_key": None})),
        headers={IDEMPOTENCY_KEY_HEADER: task.idempotency_key or ""},
    )
    return reply.read(Submitted)


def submit_many(tasks: Iterable[TaskSubmission]) -> Plan[list[Submitted | Refused]]:
    """Tasks in chunks, each bounded in number and in bytes; outcomes in the order of the tasks."""
    outcomes: list[Submitted | Refused] = []
    for chunk in _chunks(tasks):
        reply = yield Call(
            "POST",
            "/v1/tasks/batch",
            body=b'{"tasks":[' + b",".join(chunk) + b"]}",
            again=_entries_to_repeat,
        )
        outcomes.extend(
            entry.submitted or Refused(entry.problem or _NEITHER)
            for entry in reply.read(BatchReply).results
        )
    return outcomes


def _encode(task: TaskSubmission) -> bytes:
    return task.model_dump_json(exclude_defaults=True).encode()


def _chunks(tasks: Iterable[TaskSubmission]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for task in tasks:
        body = _encode(task)
        if chunk and (len(chunk) == MAX_TASKS_PER_REQUEST or size + len(body) > BATCH_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield chunk


def _entries_to_repeat(reply: Reply) -> ClientError | None:
    """Tasks of a batch about which the server could not say anything: the whole batch is sent
    again, its keys make that safe."""
    for entry in reply.read(BatchReply).results:
        if entry.problem is not None and entry.problem.code in LATER_CODES:
            return Unreachable(
                f"the coordinator could not take the whole batch: {entry.problem.detail}",
                next_step="Repeat it with the same keys.",
            )
    return None


# One task


def outcome(task_id: str, timeout: float | None) -> Plan[TaskResult]:
    """The server's last word on a task, once it has ended or is held. Raises ResultTimeout.

    With a ``timeout`` in seconds a coordinator that is away is asked until that has passed.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = 0.0
    while True:
        asked = time.monotonic() + pause
        left = None if deadline is None else max(0.0, deadline - asked)
        wait = MAX_WAIT_SECONDS if left is None else min(MAX_WAIT_SECONDS, left)
        reply = yield Call(
            "GET",
            task_path(task_id, "/result"),
            query={"wait": f"{wait:.3f}"},
            pause_seconds=pause,
            wait_seconds=wait,
            retry_seconds=left,
        )
        result = reply.read(TaskResult)
        if result.state is not TaskState.OPEN:
            return result
        answered = time.monotonic()
        if deadline is not None and answered >= deadline:
            raise ResultTimeout(
                f"task {task_id} is {result.phase.value} after {timeout:g} s.",
                next_step=f"Wait again; `tenure task show {task_id}` says more.",
            )
        early = min(SHORTEST_ROUND_SECONDS, wait) - (answered - asked)
        pause = max(0.0, early) * random.uniform(0.5, 1.0)


def status(task_id: str) -> Plan[TaskResult]:
    """The state as it is, without waiting."""
    reply = yield Call("GET", task_path(task_id, "/result"), query={"wait": "0"})
    return reply.read(TaskResult)


def view(task_id: str) -> Plan[TaskView]:
    """The whole story of a task."""
    return (yield Call("GET", task_path(task_id))).read(TaskView)


def why(task_id: str) -> Plan[Why]:
    """Why a task is where it is."""
    return (yield Call("GET", task_path(task_id, "/why"))).read(Why)


def cancel(task_id: str) -> Plan[CancelReply]:
    """Ask for the cancellation of a task."""
    return (yield Call("POST", task_path(task_id, "/cancel"))).read(CancelReply)


def hold(task_id: str, reason: str) -> Plan[InterventionReply]:
    """Begin nothing of a task until it is released."""
    body = to_json({"reason": reason})
    return (yield Call("POST", task_path(task_id, "/hold"), body=body)).read(InterventionReply)


def erase(task_id: str, reason: str) -> Plan[Erasure]:
    """Erase what an ended task was about."""
    body = to_json({"reason": reason})
    return (yield Call("POST", task_path(task_id, "/erase"), body=body)).read(Erasure)


def release(task_id: str) -> Plan[InterventionReply]:
    """Let a held task wait for a node again."""
    return (yield Call("POST", task_path(task_id, "/release"))).read(InterventionReply)


def move_profile(task_id: str, digest: str | None) -> Plan[InterventionReply]:
    """Freeze another profile in a waiting task."""
    body = to_json({"digest": digest})
    return (yield Call("POST", task_path(task_id, "/profile"), body=body)).read(InterventionReply)


def explain(task: TaskSubmission) -> Plan[Explained]:
    """What would become of a task."""
    body = _encode(task.model_copy(update={"idempotency_key": None}))
    return (yield Call("POST", "/v1/tasks/explain", body=body)).read(Explained)


def executable_path(digest: str) -> str:
    """Where a program is."""
    return f"/v1/executables/{quote(digest, safe='')}"


def retry(task_id: str) -> Plan[RetryReply]:
    """Try a task again now, an ended one as a new task."""
    return (yield Call("POST", task_path(task_id, "/retry"))).read(RetryReply)


def receipts(task_id: str) -> Plan[ReceiptList]:
    """Every delivery submission of a task."""
    return (yield Call("GET", task_path(task_id, "/receipts"))).read(ReceiptList)


def task_path(task_id: str, rest: str = "") -> str:
    """The id is one segment of the path, whatever the caller passed."""
    return f"/v1/tasks/{quote(task_id, safe='')}{rest}"


# Lists


def read(path: str, model: type[ModelT], query: Mapping[str, str | None]) -> Plan[ModelT]:
    """One document; parameters that are None are not sent."""
    given = {name: value for name, value in query.items() if value is not None}
    return (yield Call("GET", path, query=given)).read(model)


def send(path: str, body: BaseModel, model: type[ModelT]) -> Plan[ModelT]:
    """One request with what its body sets; absent fields are not sent."""
    content = to_json(body.model_dump(mode="json", exclude_unset=True))
    return (yield Call("POST", path, body=content)).read(model)


def drain_node(node_id: str, incarnation: str) -> Plan[None]:
    """Give a start of a node nothing new."""
    body = to_json({"incarnation": incarnation})
    yield Call("POST", node_path(node_id, "/drain"), body=body)


def release_node(node_id: str) -> Plan[None]:
    """Let a quarantined node back."""
    yield Call("POST", node_path(node_id, "/release"))


def tasks(
    *,
    state: str | None = None,
    phase: str | None = None,
    type_name: str | None = None,
    created_before: datetime | None = None,
    limit: int | None = None,
    after: str | None = None,
) -> Plan[TaskList]:
    """One page of tasks."""
    bounds = {
        "created_before": None if created_before is None else created_before.isoformat(),
        "limit": _text(limit),
        "after": after,
    }
    return read("/v1/tasks", TaskList, {"state": state, "phase": phase, "type": type_name} | bounds)


def intake(
    *, state: str | None = None, limit: int | None = None, after: int | None = None
) -> Plan[IntakeList]:
    """One page of what was enqueued in transactions."""
    query = {"state": state, "limit": _text(limit), "after": _text(after)}
    return read("/v1/intake", IntakeList, query)


def retry_intake(*, code: str | None = None, type_name: str | None = None) -> Plan[IntakeRetried]:
    """Let refused rows of the intake be decided anew."""
    given = {"code": code, "type": type_name}
    body = {name: value for name, value in given.items() if value is not None}
    return (yield Call("POST", "/v1/intake/retry", body=to_json(body))).read(IntakeRetried)


def dead_letters(
    *,
    state: DeadLetterState | None = None,
    queue: str | None = None,
    limit: int | None = None,
    after: int | None = None,
) -> Plan[DeadLetterList]:
    """One page of what queues gave up."""
    query = {"state": state, "queue": queue, "limit": _text(limit), "after": _text(after)}
    return read("/v1/dead-letters", DeadLetterList, query)


def parked(
    *,
    state: ParkedState | None = None,
    reason: ParkedReason | None = None,
    limit: int | None = None,
    after: int | None = None,
) -> Plan[ParkedList]:
    """One page of what the relay could not publish."""
    query = {"state": state, "reason": reason, "limit": _text(limit), "after": _text(after)}
    return read("/v1/outbox/parked", ParkedList, query)


def dead_letter_path(dead_letter_id: int, rest: str = "") -> str:
    """Where a dead letter is."""
    return f"/v1/dead-letters/{dead_letter_id}{rest}"


def replay(request: ReplayRequest) -> Plan[ReplayReply]:
    """A replay, or what it would be; it gets an id here, once for all tries."""
    if request.replay_id is None:
        request = request.model_copy(update={"replay_id": str(uuid4())})
    return send("/v1/replays", request, ReplayReply)


def replays(
    *, state: str | None = None, limit: int | None = None, after: str | None = None
) -> Plan[ReplayList]:
    """One page of replays."""
    return read("/v1/replays", ReplayList, {"state": state, "limit": _text(limit), "after": after})


def replay_detail(replay_id: str) -> Plan[ReplayDetail]:
    """One replay and its history."""
    return read(_replay_path(replay_id), ReplayDetail, {})


def change_replay(
    replay_id: str, change: Literal["pause", "resume", "cancel"], order: ReplayOrder
) -> Plan[ReplayDetail]:
    """Pause, resume or cancel a replay."""
    return send(f"{_replay_path(replay_id)}/{change}", order, ReplayDetail)


def _replay_path(replay_id: str) -> str:
    return f"/v1/replays/{quote(replay_id, safe='')}"


def tenant_path(tenant: str) -> str:
    """Where a tenant is. The name is one segment, whatever the caller passed."""
    return f"/v1/tenants/{quote(tenant, safe='')}"


def node_path(node_id: str, rest: str = "") -> str:
    """Where a node is."""
    return f"/v1/nodes/{quote(node_id, safe='')}{rest}"


def change(path: str, body: BaseModel, reply: type[ModelT]) -> Plan[ModelT]:
    """State what was set in ``body`` and nothing else. Saying it again changes nothing more."""
    text = body.model_dump_json(exclude_unset=True)
    return (yield Call("PATCH", path, body=text.encode())).read(reply)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def problem(status: int, code: Code, detail: str, next_step: str = "") -> Problem:
    """A problem that was found on this side."""
    return Problem(
        type="about:blank",
        title=code.value,
        status=status,
        code=code.value,
        detail=detail,
        next_step=next_step,
    )


_NEITHER: Final = problem(
    502, Code.INTERNAL_ERROR, "the batch entry says neither that there is a task nor why not."
)
