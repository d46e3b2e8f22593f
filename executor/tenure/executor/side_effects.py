"""What an attempt does to the world outside, one entry for each effect that it begins."""

import threading
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Final, Protocol, Self
from uuid import UUID, uuid5

from tenure.contract.faultpoints import FaultPoint, FaultPoints
from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.executor.scope import GrantedScope

MAX_NAME_CHARACTERS: Final = 200
_NAMESPACE: Final = UUID("6f1c5a4e-93f5-4d52-9d2b-5a8b0c7d2e11")


class EffectState(StrEnum):
    """How far an effect came."""

    BEGUN = "begun"  # it may have happened
    DONE = "done"  # its block ended well
    FAILED = "failed"  # its block raised: it may have happened all the same


class Authority(Protocol):
    """What an effect needs to know of its attempt."""

    @property
    def task_id(self) -> TaskId:
        """The task."""

    @property
    def attempt_id(self) -> AttemptId:
        """The attempt."""

    @property
    def faults(self) -> FaultPoints:
        """Where a crash test strikes."""

    @property
    def fencing_token(self) -> FencingToken:
        """The attempt's token."""

    @property
    def scope(self) -> GrantedScope:
        """What the lease permits."""

    def check_authority(self) -> None:
        """Raises AuthorityOver."""


class SideEffect:
    """One effect of an attempt, as a block: ``with`` in a thread, ``async with`` on the event loop.

    Entering it raises AuthorityOver when the attempt may act no longer (LEASE-09), and OutOfScope
    for an operation (its name) on an object (its key) that the lease does not permit (LEASE-11).
    """

    def __init__(self, authority: Authority, name: str, key: str, entries: "SideEffects") -> None:
        self._authority = authority
        self._entries = entries
        self.name = name
        self.key = key
        self.id = effect_id(authority.task_id, name, key)
        self.state: EffectState | None = None

    @property
    def fencing_token(self) -> FencingToken:
        """For receivers that compare."""
        return self._authority.fencing_token

    def __enter__(self) -> Self:
        self._authority.check_authority()
        self._authority.scope.check(self.name, self.key)
        self.state = EffectState.BEGUN
        self._entries.add(self)
        self._entries.tell(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.state = EffectState.DONE if error is None else EffectState.FAILED
        self._entries.tell(self)

    async def __aenter__(self) -> Self:
        self.__enter__()
        await self._authority.faults.reach(FaultPoint.BEFORE_EFFECT, self._authority.attempt_id)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(exc_type, error, traceback)


class SideEffects:
    """The effects that an attempt has begun, in order. Safe for threads."""

    def __init__(self, tell: Callable[[SideEffect], None] = lambda _: None) -> None:
        """``tell`` is called before each begins, and when its block has ended."""
        self.tell = tell
        self._lock = threading.Lock()
        self._begun: list[SideEffect] = []

    def add(self, effect: SideEffect) -> None:
        """One has begun."""
        with self._lock:
            self._begun.append(effect)

    def begun(self) -> tuple[SideEffect, ...]:
        """All that have begun so far."""
        with self._lock:
            return tuple(self._begun)


def effect_id(task_id: TaskId, name: str, key: str = "") -> str:
    """The identifier of an effect of a task: the same in every attempt (a UUID of version 5).

    Raises ValueError for a name that is empty or too long.
    """
    if not name or len(name) > MAX_NAME_CHARACTERS or len(key) > MAX_NAME_CHARACTERS:
        raise ValueError(
            f"the name of an effect has 1 to {MAX_NAME_CHARACTERS} characters, its key at most"
            f" {MAX_NAME_CHARACTERS}: {name!r}, {key!r}"
        )
    # Lengths, so that no two pairs of name and key read the same.
    return str(uuid5(_NAMESPACE, f"{task_id} {len(name)} {name} {key}"))
