"""The client of applications whose threads wait."""

from collections.abc import Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self, overload

from tenure.client import calls
from tenure.client.handles import TaskHandle, all_or_refusal, as_it_is, output_reader
from tenure.client.http import Http, Token
from tenure.client.settings import (
    DEFAULT_MAX_CONNECTIONS,
    DEFAULT_RETRY_SECONDS,
    DEFAULT_URL,
    connection_from_environment,
)
from tenure.client.sync_operations import Operations
from tenure.contract.reports import Resources
from tenure.contract.scope import Scope
from tenure.contract.tasks import TaskList
from tenure.contract.tasktype import InputT, OutputT, TaskType, named


class Client(Operations):
    """Submits tasks and waits for results.

        with Client("http://127.0.0.1:8420", token) as client:
            handle = client.submit(Sha256, HashIn(path="a.txt"))
            output = handle.result(timeout=60)

    One client serves any number of threads and keeps its connections; connections do not outlive a
    fork, so each child makes a client of its own. Whatever it sends may safely be sent again, and
    it does so with jittered back-off until ``retry_seconds`` have passed; a submission without a
    key of its own gets a random one first.

    Every method raises Refused, Unreachable and UnreadableReply (see ``tenure.client.errors``).
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: Token = "",
        *,
        retry_seconds: float = DEFAULT_RETRY_SECONDS,
        max_connections: int = DEFAULT_MAX_CONNECTIONS,
    ) -> None:
        self._http = Http(url, token, retry_seconds=retry_seconds, max_connections=max_connections)

    @classmethod
    def from_environment(cls, *, retry_seconds: float = DEFAULT_RETRY_SECONDS) -> Self:
        """A client for ``TENURE_URL`` with ``TENURE_TOKEN`` or ``TENURE_TOKEN_FILE``; where none of
        them is set, for the local stack that `tenure up` runs in the working directory.

        Raises NotConfigured.
        """
        connection = connection_from_environment()
        return cls(connection.url, connection.current_token, retry_seconds=retry_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Handles of this client can no longer be used."""
        self._http.close()

    # Submitting

    def submit(
        self,
        task_type: TaskType[InputT, OutputT],
        input: InputT,
        *,
        idempotency_key: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        resources: Resources | None = None,
        concurrency_key: str | None = None,
        traceparent: str | None = None,
        scope: Scope | None = None,
    ) -> TaskHandle[OutputT]:
        """Make a durable task. When this returns, the task is recorded and will be worked on.

        The same ``idempotency_key`` with the same content gives the same task, for as long as the
        coordinator keeps outcomes (30 days, unless set otherwise); with other content it is refused
        (``idempotency_conflict``). Instants need a time zone. The ``concurrency_key`` is what it
        counts with under limits that operators state, like a customer's name; its events and its
        handler get the ``traceparent`` (W3C Trace Context). The ``scope`` narrows what its leases
        permit: an effect has to fit both it and the scope of the type.

        Raises TypeError for an input that is not the one that the type declares.
        """
        task = calls.submission(
            *named(task_type, input),
            idempotency_key=idempotency_key,
            priority=priority,
            not_before=not_before,
            deadline=deadline,
            resources=resources,
            concurrency_key=concurrency_key,
            traceparent=traceparent,
            scope=scope,
        )
        made = self._http.run(calls.submit(task))
        read_output = output_reader(task_type.output)
        return TaskHandle(self._http, made.task_id, read_output, replayed=made.replayed)

    def submit_json(
        self,
        type_name: str,
        input: Any,
        *,
        idempotency_key: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        resources: Resources | None = None,
        concurrency_key: str | None = None,
        traceparent: str | None = None,
        scope: Scope | None = None,
    ) -> TaskHandle[Any]:
        """As ``submit``, for callers that know the type by name only: input and output are JSON."""
        task = calls.submission(
            type_name,
            input,
            idempotency_key=idempotency_key,
            priority=priority,
            not_before=not_before,
            deadline=deadline,
            resources=resources,
            concurrency_key=concurrency_key,
            traceparent=traceparent,
            scope=scope,
        )
        made = self._http.run(calls.submit(task))
        return TaskHandle(self._http, made.task_id, as_it_is, replayed=made.replayed)

    def submit_many(
        self,
        task_type: TaskType[InputT, OutputT],
        inputs: Iterable[InputT],
        *,
        idempotency_keys: Iterable[str] | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        resources: Resources | None = None,
        concurrency_key: str | None = None,
        traceparent: str | None = None,
        scope: Scope | None = None,
    ) -> list[TaskHandle[OutputT]]:
        """Make many tasks in few requests; handles in the order of the inputs.

        ``idempotency_keys`` gives one key for each input. Each task is decided by itself: when some
        are refused, BatchRefused tells which, and has the handles of the others. Unreachable leaves
        open which tasks exist; calling again with the same keys tells.

        Raises ValueError when there are fewer keys than inputs.
        """
        tasks = calls.submissions(
            task_type,
            inputs,
            idempotency_keys,
            priority=priority,
            not_before=not_before,
            deadline=deadline,
            resources=resources,
            concurrency_key=concurrency_key,
            traceparent=traceparent,
            scope=scope,
        )
        read_output = output_reader(task_type.output)
        return all_or_refusal(
            self._http.run(calls.submit_many(tasks)),
            lambda made: TaskHandle[OutputT](
                self._http, made.task_id, read_output, replayed=made.replayed
            ),
        )

    # Reading and deciding

    @overload
    def task(self, task_id: str, task_type: TaskType[Any, OutputT]) -> TaskHandle[OutputT]: ...

    @overload
    def task(self, task_id: str) -> TaskHandle[Any]: ...

    def task(self, task_id: str, task_type: TaskType[Any, Any] | None = None) -> TaskHandle[Any]:
        """The handle of a task that exists already; asks nothing. Without ``task_type`` its result
        is plain JSON."""
        read_output = as_it_is if task_type is None else output_reader(task_type.output)
        return TaskHandle(self._http, task_id, read_output, replayed=False)

    def tasks(
        self,
        *,
        state: str | None = None,
        phase: str | None = None,
        type_name: str | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> TaskList:
        """One page of tasks, newest first; its ``next`` is the ``after`` of the following page.
        ``created_before`` needs a time zone."""
        return self._http.run(
            calls.tasks(
                state=state,
                phase=phase,
                type_name=type_name,
                created_before=created_before,
                limit=limit,
                after=after,
            )
        )
