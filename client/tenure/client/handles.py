"""A task as its submitter holds it."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from tenure.client.errors import (
    NotDelivered,
    ResultTimeout,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskHeld,
    UnreadableReply,
)
from tenure.client.http import Http
from tenure.contract.states import TaskState
from tenure.contract.tasks import MAX_WAIT_SECONDS, CancelReply, TaskResult, TaskView

OutputT = TypeVar("OutputT")

SHORTEST_ROUND_SECONDS: Final = 0.5
"""A coordinator that stops answers waiting requests early: it is not asked in a tight loop."""


class TaskHandle(Generic[OutputT]):
    """A durable task. Handles are cheap: they hold the task's id and the client they came from.

    ``replayed`` is true when the idempotency key had been seen and nothing new was created.
    """

    def __init__(
        self, http: Http, task_id: str, read_output: Callable[[Any], OutputT], *, replayed: bool
    ) -> None:
        self.task_id = task_id
        self.replayed = replayed
        self._http = http
        self._read_output = read_output

    def __repr__(self) -> str:
        return f"<TaskHandle {self.task_id}>"

    async def result(self, *, timeout: float | None = None) -> OutputT:
        """The output, once the task is delivered.

        ``timeout`` in seconds; None waits as long as it takes. A coordinator that is away in the
        meantime is waited for, within the timeout.

        Raises TaskFailed, TaskCancelled, TaskExpired, TaskHeld, ResultTimeout, Refused,
        Unreachable, and UnreadableReply when the output does not fit the declared model.
        """
        result = await self.outcome(timeout=timeout)
        if result.state is TaskState.DELIVERED:
            return self._read_output(result.output)
        raise not_delivered(result)

    async def outcome(self, *, timeout: float | None = None) -> TaskResult:
        """The server's last word on the task once it has ended or is held, whatever it is.

        Raises ResultTimeout, Refused, Unreachable, UnreadableReply.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            asked = time.monotonic()
            left = MAX_WAIT_SECONDS if deadline is None else max(0.0, deadline - asked)
            wait = min(MAX_WAIT_SECONDS, left)
            reply = await self._http.request(
                "GET",
                f"/v1/tasks/{_segment(self.task_id)}/result",
                query={"wait": f"{wait:.3f}"},
                wait_seconds=wait,
            )
            result = reply.read(TaskResult)
            if result.state is not TaskState.OPEN:
                return result
            answered = time.monotonic()
            if deadline is not None and answered >= deadline:
                raise ResultTimeout(
                    f"task {self.task_id} is {result.phase.value} after {timeout:g} s.",
                    next_step="Wait again, or see `tenure task show` for what it waits for.",
                )
            early = min(SHORTEST_ROUND_SECONDS, wait) - (answered - asked)
            if early > 0:
                await asyncio.sleep(early * random.uniform(0.5, 1.0))

    async def view(self) -> TaskView:
        """The whole story: state, attempts with leases, receipts, timeline.

        Raises Refused, Unreachable, UnreadableReply.
        """
        reply = await self._http.request("GET", f"/v1/tasks/{_segment(self.task_id)}")
        return reply.read(TaskView)

    async def cancel(self) -> CancelReply:
        """Ask for cancellation. What runs must confirm it first, or lose its lease.

        Raises Refused, Unreachable, UnreadableReply.
        """
        reply = await self._http.request("POST", f"/v1/tasks/{_segment(self.task_id)}/cancel")
        return reply.read(CancelReply)


def not_delivered(result: TaskResult) -> NotDelivered:
    """The error for a task that ended, or is held, without an output."""
    match result.state:
        case TaskState.FAILED:
            return TaskFailed(result)
        case TaskState.CANCELLED:
            return TaskCancelled(result)
        case TaskState.EXPIRED:
            return TaskExpired(result)
        case TaskState.HELD:
            return TaskHeld(result, next_step="An operator has to decide; see `tenure task show`.")
        case _:
            return NotDelivered(result)


def output_reader(model: type[BaseModel]) -> Callable[[Any], Any]:
    """Reads an output as the declared model. The reader raises UnreadableReply."""

    def read(output: Any) -> Any:
        try:
            return model.model_validate(output)
        except ValidationError as error:
            raise UnreadableReply(
                f"the output is no {model.__name__}: {error.error_count()} fields are wrong.",
                next_step="Do the application and the executor declare the same task type?",
            ) from error

    return read


def _segment(task_id: str) -> str:
    """One segment of a path, whatever the caller passed as an id."""
    return quote(task_id, safe="")
