"""A task as its submitter holds it: the one for ``Client``, and the one for ``AsyncClient``."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from tenure.client import calls
from tenure.client.errors import (
    BatchRefused,
    NotDelivered,
    Refused,
    TaskCancelled,
    TaskErased,
    TaskExpired,
    TaskFailed,
    TaskHeld,
    UnreadableReply,
)
from tenure.client.http import AsyncHttp, Http
from tenure.contract.scheduling import Why
from tenure.contract.states import TaskState
from tenure.contract.tasks import (
    CancelReply,
    Erasure,
    InterventionReply,
    ReceiptList,
    RetryReply,
    Submitted,
    TaskResult,
    TaskView,
)

OutputT = TypeVar("OutputT")
HandleT = TypeVar("HandleT", bound="TaskHandle[Any] | AsyncTaskHandle[Any]")


class _Handle(Generic[OutputT]):
    def __init__(
        self, task_id: str, read_output: Callable[[Any], OutputT], *, replayed: bool
    ) -> None:
        self.task_id = task_id
        self.replayed = replayed
        self._read_output = read_output

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id}>"

    def _output(self, result: TaskResult) -> OutputT:
        if result.state is TaskState.DELIVERED and not result.erased:
            return self._read_output(result.output)
        raise not_delivered(result)


class TaskHandle(_Handle[OutputT]):
    """A durable task, for threads that wait. Handles are cheap: they hold the task's id and the
    connections of the client they came from.

    ``replayed`` is true when the idempotency key had been seen and nothing new was created: also
    when the request had to be repeated because its first answer was lost.
    """

    def __init__(
        self, http: Http, task_id: str, read_output: Callable[[Any], OutputT], *, replayed: bool
    ) -> None:
        super().__init__(task_id, read_output, replayed=replayed)
        self._http = http

    def result(self, *, timeout: float | None = None) -> OutputT:
        """The output, once the task is delivered.

        ``timeout`` in seconds; None waits as long as it takes. A coordinator that is away in the
        meantime is waited for: until the timeout, without one for the client's ``retry_seconds``.

        Raises TaskFailed, TaskCancelled, TaskExpired, TaskHeld, TaskErased, ResultTimeout, Refused,
        Unreachable, and UnreadableReply when the output does not fit the declared model.
        """
        return self._output(self.outcome(timeout=timeout))

    def outcome(self, *, timeout: float | None = None) -> TaskResult:
        """The server's last word on the task once it has ended or is held, whatever it is.

        Raises ResultTimeout, Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.outcome(self.task_id, timeout))

    def status(self) -> TaskResult:
        """State and phase as they are, without waiting.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.status(self.task_id))

    def view(self) -> TaskView:
        """The whole story: state, attempts with leases, receipts, timeline.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.view(self.task_id))

    def why(self) -> Why:
        """Why the task is not running: what each filter says of each node, and its turn.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.why(self.task_id))

    def cancel(self) -> CancelReply:
        """Ask for cancellation. What runs must confirm it first, or lose its lease.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.cancel(self.task_id))

    def hold(self, reason: str) -> InterventionReply:
        """Begin nothing of it until it is released; ``reason`` is for people. For operators.

        Raises Refused (``wrong_state`` when a node is at it), Unreachable, UnreadableReply.
        """
        return self._http.run(calls.hold(self.task_id, reason))

    def move_profile(self, digest: str | None = None) -> InterventionReply:
        """Freeze another profile of its type in it while it waits; None: the one that new tasks
        get. For operators.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.move_profile(self.task_id, digest))

    def release(self) -> InterventionReply:
        """Let it wait for a node again after it was held. For operators.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.release(self.task_id))

    def retry(self) -> RetryReply:
        """Try it again now: a held or waiting one itself, one that has ended without a delivery as
        a new task, the same one however often this is asked. For operators.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.retry(self.task_id))

    def erase(self, reason: str) -> Erasure:
        """Erase its input, outputs and messages for good once it has ended; its record stays, with
        who erased it and why. For operators.

        Raises Refused (``wrong_state`` while it goes on), Unreachable, UnreadableReply.
        """
        return self._http.run(calls.erase(self.task_id, reason))

    def receipts(self) -> ReceiptList:
        """Every delivery submission with its content: the active one, and what is evidence.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return self._http.run(calls.receipts(self.task_id))


class AsyncTaskHandle(_Handle[OutputT]):
    """As ``TaskHandle``, for tasks of an event loop."""

    def __init__(
        self,
        http: AsyncHttp,
        task_id: str,
        read_output: Callable[[Any], OutputT],
        *,
        replayed: bool,
    ) -> None:
        super().__init__(task_id, read_output, replayed=replayed)
        self._http = http

    async def result(self, *, timeout: float | None = None) -> OutputT:
        """The output, once the task is delivered.

        ``timeout`` in seconds; None waits as long as it takes. A coordinator that is away in the
        meantime is waited for: until the timeout, without one for the client's ``retry_seconds``.

        Raises TaskFailed, TaskCancelled, TaskExpired, TaskHeld, TaskErased, ResultTimeout, Refused,
        Unreachable, and UnreadableReply when the output does not fit the declared model.
        """
        return self._output(await self.outcome(timeout=timeout))

    async def outcome(self, *, timeout: float | None = None) -> TaskResult:
        """The server's last word on the task once it has ended or is held, whatever it is.

        Raises ResultTimeout, Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.outcome(self.task_id, timeout))

    async def status(self) -> TaskResult:
        """State and phase as they are, without waiting.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.status(self.task_id))

    async def view(self) -> TaskView:
        """The whole story: state, attempts with leases, receipts, timeline.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.view(self.task_id))

    async def why(self) -> Why:
        """Why the task is not running: what each filter says of each node, and its turn.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.why(self.task_id))

    async def cancel(self) -> CancelReply:
        """Ask for cancellation. What runs must confirm it first, or lose its lease.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.cancel(self.task_id))

    async def hold(self, reason: str) -> InterventionReply:
        """Begin nothing of it until it is released; ``reason`` is for people. For operators.

        Raises Refused (``wrong_state`` when a node is at it), Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.hold(self.task_id, reason))

    async def move_profile(self, digest: str | None = None) -> InterventionReply:
        """Freeze another profile of its type in it while it waits; None: the one that new tasks
        get. For operators.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.move_profile(self.task_id, digest))

    async def release(self) -> InterventionReply:
        """Let it wait for a node again after it was held. For operators.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.release(self.task_id))

    async def retry(self) -> RetryReply:
        """Try it again now: a held or waiting one itself, one that has ended without a delivery as
        a new task, the same one however often this is asked. For operators.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.retry(self.task_id))

    async def erase(self, reason: str) -> Erasure:
        """Erase its input, outputs and messages for good once it has ended; its record stays, with
        who erased it and why. For operators.

        Raises Refused (``wrong_state`` while it goes on), Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.erase(self.task_id, reason))

    async def receipts(self) -> ReceiptList:
        """Every delivery submission with its content: the active one, and what is evidence.

        Raises Refused, Unreachable, UnreadableReply.
        """
        return await self._http.run(calls.receipts(self.task_id))


def not_delivered(result: TaskResult) -> NotDelivered:
    """The error for a task that ended, or is held, without an output."""
    match result.state:
        case TaskState.DELIVERED:
            return TaskErased(result)
        case TaskState.FAILED:
            return TaskFailed(result)
        case TaskState.CANCELLED:
            return TaskCancelled(result)
        case TaskState.EXPIRED:
            return TaskExpired(result)
        case TaskState.HELD:
            return TaskHeld(
                result, next_step="An operator decides: `tenure task release`, `retry` or `cancel`."
            )
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


def as_it_is(output: Any) -> Any:
    """Reads an output of a task whose type is known by name only."""
    return output


def all_or_refusal(
    outcomes: Sequence[Submitted | Refused], handle: Callable[[Submitted], HandleT]
) -> list[HandleT]:
    """The handles of a batch. Raises BatchRefused when some of its tasks were refused."""
    each = [one if isinstance(one, Refused) else handle(one) for one in outcomes]
    for one in each:
        if isinstance(one, Refused):
            raise BatchRefused(one.problem, each)
    return [one for one in each if not isinstance(one, Refused)]
