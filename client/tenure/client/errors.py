"""What a client can meet.

TenureError                      code, message, what to do next
└── ClientError
    ├── Unreachable              unreachable: no usable answer in time; the outcome is unknown
    ├── Refused                  the server's own code: nothing was changed
    │   └── BatchRefused         some tasks of a batch; ``outcomes`` has the handles of the others
    ├── EnqueueRefused           the code of what is wrong: the transaction gets no task
    ├── UnreadableReply          unreadable_reply: the answer is not what this client knows
    ├── ResultTimeout            result_timeout: the task has not ended yet
    └── NotDelivered             the task will bring no output as it stands
        ├── TaskFailed           task_failed
        ├── TaskCancelled        task_cancelled
        ├── TaskExpired          task_expired: its deadline passed
        ├── TaskHeld             task_held: it waits for a decision of a person
        └── TaskErased           task_erased: it was delivered, and its output was erased since
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.tasks import Problem, TaskResult

if TYPE_CHECKING:
    from tenure.client.handles import AsyncTaskHandle, TaskHandle


class ClientError(TenureError):
    """Base of everything the client raises by itself."""


class Unreachable(ClientError):
    """No usable answer in time. A request with a key may or may not have been carried out:
    repeating it with the same key is safe and tells."""

    code = "unreachable"


class Refused(ClientError):
    """The server said no; nothing was changed.

    ``code`` is the server's (``tenure.contract.codes``), ``status`` the HTTP status.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, next_step=problem.next_step, code=problem.code)
        self.problem = problem
        self.status = problem.status


class BatchRefused(Refused):
    """Some tasks of a batch were refused, the others exist.

    ``outcomes`` has one entry for each task in the order given: its handle, or why there is none.
    """

    def __init__(
        self,
        problem: Problem,
        outcomes: "Sequence[TaskHandle[Any] | AsyncTaskHandle[Any] | ClientError]",
    ) -> None:
        super().__init__(problem)
        self.outcomes = tuple(outcomes)


class EnqueueRefused(ClientError):
    """The database refuses the task; ``code`` says why (``tenure.contract.codes``).

    When the database has seen it, the transaction can only be rolled back, to a savepoint at least.
    """

    code = Code.INVALID_FIELD


class UnreadableReply(ClientError):
    """The answer does not have the form that this client knows."""

    code = "unreadable_reply"


class ResultTimeout(ClientError):
    """The task had not ended within the time given. Waiting again is fine."""

    code = "result_timeout"


class NotDelivered(ClientError):
    """The task will bring no output as it stands.

    ``reason`` says why, ``attempt_id`` is the attempt that ended it, if one did, and ``result`` is
    the server's last word.
    """

    code = "not_delivered"

    def __init__(self, result: TaskResult, *, next_step: str = "") -> None:
        words = [f"task {result.task_id} is {result.state.value}"]
        if result.reason:
            words.append(f"({result.reason})")
        text = " ".join(words)
        super().__init__(
            f"{text}: {result.message}" if result.message else text, next_step=next_step
        )
        self.result = result
        self.reason = result.reason
        self.attempt_id = result.attempt_id


class TaskFailed(NotDelivered):
    """Every permitted attempt failed, or the handler said that no other would help."""

    code = "task_failed"


class TaskCancelled(NotDelivered):
    """Somebody cancelled it and the cancellation is confirmed."""

    code = "task_cancelled"


class TaskExpired(NotDelivered):
    """Its deadline passed first."""

    code = "task_expired"


class TaskHeld(NotDelivered):
    """It waits for a decision of a person; the reason says why."""

    code = "task_held"


class TaskErased(NotDelivered):
    """It was delivered, and an operator has erased its output since."""

    code = "task_erased"
