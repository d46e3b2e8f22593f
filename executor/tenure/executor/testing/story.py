"""What became of a task, as a test sees it and as a failing test shows it."""

from dataclasses import dataclass
from typing import Any

from tenure.contract.states import AttemptState, TaskState


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. ``began``: its handler had control; ``raised`` is what it ended with, None where
    it returned or goes on. From a process come the exceptions of ``tenure.executor``; every other
    end without an output is ``RunEnded``, with its words."""

    ordinal: int
    attempt_id: str
    node_id: str
    fencing_token: int
    state: AttemptState
    reason: str | None
    message: str | None
    began: bool
    raised: BaseException | None

    def __str__(self) -> str:
        words = [f"attempt {self.ordinal}", f"on {self.node_id}", f"token {self.fencing_token}"]
        words.append(self.state.value + (f" ({self.reason})" if self.reason else ""))
        if self.raised is not None:
            words.append(f"handler raised {type(self.raised).__name__}: {self.raised}")
        elif not self.began:
            words.append("handler never began")
        elif self.message:
            words.append(self.message)
        return "  ".join(words)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A delivery as the authority recorded it: the admitted one, or evidence with the ``code`` that
    says why it is not active (LATE-02)."""

    receipt_id: str
    attempt_id: str
    ordinal: int
    admitted: bool
    code: str | None
    output: Any

    def __str__(self) -> str:
        what = "admitted" if self.admitted else f"evidence only ({self.code})"
        return f"receipt of attempt {self.ordinal}: {what}"


@dataclass(frozen=True, slots=True)
class Happening:
    """One event. ``seconds``: since the task was submitted, by the authority's clock. ``ordinal``:
    the attempt that it is about; None: the task."""

    seconds: float
    event_id: str
    ordinal: int | None
    previous_state: str | None
    next_state: str
    reason: str | None
    fencing_token: int | None

    def __str__(self) -> str:
        about = "task" if self.ordinal is None else f"attempt {self.ordinal}"
        words = f"{self.seconds:10.3f} s  {about} {self.next_state}"
        return words + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Story:
    """A task's whole history. ``output`` is JSON, of the admitted receipt."""

    task_id: str
    task_type: str
    state: TaskState
    reason: str | None
    message: str | None
    output: Any
    attempts: tuple[Attempt, ...]
    receipts: tuple[Receipt, ...]
    events: tuple[Happening, ...]

    @property
    def evidence(self) -> tuple[Receipt, ...]:
        """Deliveries that were kept and are not active."""
        return tuple(each for each in self.receipts if not each.admitted)

    def attempt(self, ordinal: int) -> Attempt:
        """The attempt with that number, from 1. Raises IndexError when there is none."""
        for each in self.attempts:
            if each.ordinal == ordinal:
                return each
        raise IndexError(f"no attempt {ordinal}\n{self}")

    def __str__(self) -> str:
        what = self.state.value + (f" ({self.reason})" if self.reason else "")
        lines = [f"task {self.task_id} of type {self.task_type} is {what}"]
        if self.message:
            lines.append(f"  {self.message}")
        lines += [f"  {each}" for each in (*self.attempts, *self.receipts)]
        lines += ["  events:", *(f"  {each}" for each in self.events)]
        return "\n".join(lines)
