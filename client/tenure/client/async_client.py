"""The asynchronous client of applications."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import repeat
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tenure.client.errors import BatchRefused, ClientError, Refused, Unreachable
from tenure.client.handles import TaskHandle, output_reader
from tenure.client.http import LATER_CODES, Http, Reply, problem
from tenure.client.settings import DEFAULT_URL, connection_from_environment
from tenure.contract.codec import encode_json
from tenure.contract.codes import Code
from tenure.contract.reports import Resources
from tenure.contract.tasks import (
    IDEMPOTENCY_KEY_HEADER,
    MAX_TASKS_PER_REQUEST,
    BatchReply,
    IntakeList,
    IntakeRetried,
    NodeList,
    OutboxStatus,
    Submitted,
    TaskList,
    TaskSubmission,
)
from tenure.contract.tasktype import InputT, OutputT, TaskType

ModelT = TypeVar("ModelT", bound=BaseModel)

DEFAULT_RETRY_SECONDS: Final = 30.0
BATCH_BYTES: Final = 1024 * 1024
"""A batch is sent once it has this size, whatever the number of its tasks."""
_NO_LOCAL_LIMIT: Final = 2**62
"""How large an input may be is the server's setting: it says so."""


class AsyncClient:
    """Submits tasks and waits for results.

        async with AsyncClient("http://127.0.0.1:8420", token) as client:
            handle = await client.submit(Sha256, HashIn(path="a.txt"))
            output = await handle.result(timeout=60)

    One client serves any number of concurrent tasks of one event loop and keeps its connections.
    Whatever it sends may safely be sent again, and it does so with jittered back-off until
    ``retry_seconds`` have passed; a submission without a key of its own gets a random one first.

    Every method raises Refused, Unreachable and UnreadableReply (see ``tenure.client.errors``).
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str = "",
        *,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        max_connections: int = 64,
    ) -> None:
        self._http = Http(url, token, retry_seconds=retry_seconds, max_connections=max_connections)

    @classmethod
    def from_environment(cls, *, retry_seconds: float = DEFAULT_RETRY_SECONDS) -> Self:
        """A client for ``TENURE_URL`` with ``TENURE_TOKEN`` or ``TENURE_TOKEN_FILE``; where none of
        them is set, for the local stack that `tenure up` runs in the working directory.

        Raises NotConfigured.
        """
        connection = connection_from_environment()
        return cls(connection.url, connection.token, retry_seconds=retry_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Handles of this client can no longer be used."""
        await self._http.close()

    # Submitting

    async def submit(
        self,
        task_type: TaskType[InputT, OutputT],
        input: InputT,
        *,
        idempotency_key: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        resources: Resources | None = None,
    ) -> TaskHandle[OutputT]:
        """Make a durable task. When this returns, the task is recorded and will be worked on.

        The same ``idempotency_key`` with the same content gives the same task, for ever; with other
        content it is refused (``idempotency_conflict``). Instants need a time zone.
        """
        submission = _submission(
            task_type.name,
            _plain(input),
            idempotency_key=idempotency_key,
            priority=priority,
            not_before=not_before,
            deadline=deadline,
            resources=resources,
        )
        return await self._submit(submission, output_reader(task_type.output))

    async def submit_json(
        self,
        type_name: str,
        input: Any,
        *,
        idempotency_key: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        resources: Resources | None = None,
    ) -> TaskHandle[Any]:
        """As ``submit``, for callers that know the type by name only: input and output are JSON."""
        submission = _submission(
            type_name,
            input,
            idempotency_key=idempotency_key,
            priority=priority,
            not_before=not_before,
            deadline=deadline,
            resources=resources,
        )
        return await self._submit(submission, _as_it_is)

    async def submit_many(
        self,
        task_type: TaskType[InputT, OutputT],
        inputs: Iterable[InputT],
        *,
        idempotency_keys: Iterable[str] | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        resources: Resources | None = None,
    ) -> list[TaskHandle[OutputT]]:
        """Make many tasks in few requests; handles in the order of the inputs.

        ``idempotency_keys`` gives one key for each input. Each task is decided by itself: when some
        are refused, BatchRefused tells which, and has the handles of the others. Unreachable leaves
        open which tasks exist; calling again with the same keys tells.

        Raises ValueError when there are fewer keys than inputs.
        """
        keys: Iterator[str | None] = (
            repeat(None) if idempotency_keys is None else iter(idempotency_keys)
        )
        read_output = output_reader(task_type.output)
        outcomes: list[TaskHandle[OutputT] | ClientError] = []
        chunk: list[bytes] = []
        chunk_bytes = 0

        async def send() -> None:
            nonlocal chunk_bytes
            if chunk:
                outcomes.extend(await self._submit_chunk(chunk, read_output))
            chunk.clear()
            chunk_bytes = 0

        for one in inputs:
            try:
                key = next(keys)
            except StopIteration:
                raise ValueError("there are fewer idempotency keys than inputs") from None
            body = _encode(
                _submission(
                    task_type.name,
                    _plain(one),
                    idempotency_key=key,
                    priority=priority,
                    not_before=not_before,
                    deadline=deadline,
                    resources=resources,
                )
            )
            if len(chunk) == MAX_TASKS_PER_REQUEST or chunk_bytes + len(body) > BATCH_BYTES:
                await send()
            chunk.append(body)
            chunk_bytes += len(body)
        await send()

        handles = [outcome for outcome in outcomes if isinstance(outcome, TaskHandle)]
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                raise BatchRefused(outcome.problem, outcomes)
        return handles

    async def _submit(
        self, submission: TaskSubmission, read_output: Callable[[Any], OutputT]
    ) -> TaskHandle[OutputT]:
        key = submission.idempotency_key or ""
        reply = await self._http.request(
            "POST",
            "/v1/tasks",
            body=_encode(submission.model_copy(update={"idempotency_key": None})),
            headers={IDEMPOTENCY_KEY_HEADER: key},
        )
        made = reply.read(Submitted)
        return TaskHandle(self._http, made.task_id, read_output, replayed=made.replayed)

    async def _submit_chunk(
        self, bodies: Sequence[bytes], read_output: Callable[[Any], OutputT]
    ) -> list[TaskHandle[OutputT] | ClientError]:
        reply = await self._http.request(
            "POST",
            "/v1/tasks/batch",
            body=b'{"tasks":[' + b",".join(bodies) + b"]}",
            again=_entries_to_repeat,
        )
        outcomes: list[TaskHandle[OutputT] | ClientError] = []
        for entry in reply.read(BatchReply).results:
            if entry.submitted is not None:
                made = entry.submitted
                outcomes.append(
                    TaskHandle(self._http, made.task_id, read_output, replayed=made.replayed)
                )
            else:
                outcomes.append(Refused(entry.problem or _NEITHER))
        return outcomes

    # Reading and deciding

    @overload
    def task(self, task_id: str, task_type: TaskType[Any, OutputT]) -> TaskHandle[OutputT]: ...

    @overload
    def task(self, task_id: str) -> TaskHandle[Any]: ...

    def task(self, task_id: str, task_type: TaskType[Any, Any] | None = None) -> TaskHandle[Any]:
        """The handle of a task that exists already; asks nothing. Without ``task_type`` its result
        is plain JSON."""
        read_output = _as_it_is if task_type is None else output_reader(task_type.output)
        return TaskHandle(self._http, task_id, read_output, replayed=False)

    async def tasks(
        self,
        *,
        state: str | None = None,
        phase: str | None = None,
        type_name: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> TaskList:
        """One page of tasks, newest first; its ``next`` is the ``after`` of the following page."""
        query = {
            "state": state,
            "phase": phase,
            "type": type_name,
            "limit": None if limit is None else str(limit),
            "after": after,
        }
        return await self._get("/v1/tasks", TaskList, query)

    async def nodes(self) -> NodeList:
        """The executors' processes that the coordinator knows."""
        return await self._get("/v1/nodes", NodeList, {})

    async def intake(
        self, *, state: str | None = None, limit: int | None = None, after: int | None = None
    ) -> IntakeList:
        """One page of what was enqueued in transactions, newest first; its ``next`` is the
        ``after`` of the following page."""
        query = {
            "state": state,
            "limit": None if limit is None else str(limit),
            "after": None if after is None else str(after),
        }
        return await self._get("/v1/intake", IntakeList, query)

    async def retry_intake(
        self, *, code: str | None = None, type_name: str | None = None
    ) -> IntakeRetried:
        """Let refused rows be decided anew, of one code or type or all: for operators."""
        given = {"code": code, "type": type_name}
        body = {name: value for name, value in given.items() if value is not None}
        reply = await self._http.request("POST", "/v1/intake/retry", body=to_json(body))
        return reply.read(IntakeRetried)

    async def outbox(self) -> OutboxStatus:
        """How far publishing is behind the log."""
        return await self._get("/v1/outbox", OutboxStatus, {})

    async def _get(self, path: str, model: type[ModelT], query: dict[str, str | None]) -> ModelT:
        given = {name: value for name, value in query.items() if value is not None}
        reply = await self._http.request("GET", path, query=given)
        return reply.read(model)


_NEITHER: Final = problem(
    502, Code.INTERNAL_ERROR, "the batch entry says neither that there is a task nor why not."
)


def _as_it_is(output: Any) -> Any:
    return output


def _plain(value: BaseModel) -> Any:
    """What the executor will read back as the same model."""
    return value.model_dump(mode="json", by_alias=True, round_trip=True)


def _submission(type_name: str, value: Any, **settings: Any) -> TaskSubmission:
    """Raises Refused and InvalidPayload for what the server would refuse anyway: an error that is
    found here names the same code."""
    settings["idempotency_key"] = settings["idempotency_key"] or uuid4().hex
    encode_json(value, limit_bytes=_NO_LOCAL_LIMIT, what="the input")
    try:
        return TaskSubmission(type=type_name, input=value, **settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Refused(problem(422, Code.INVALID_FIELD, f"{field}: {first['msg']}.")) from error


def _encode(submission: TaskSubmission) -> bytes:
    return submission.model_dump_json(exclude_defaults=True).encode()


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
