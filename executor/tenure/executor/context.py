"""What a handler knows about the attempt it runs in."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.contract.scope import UNLIMITED, Scope
from tenure.executor.errors import AuthorityOver
from tenure.executor.lease import Lease
from tenure.executor.scope import GrantedScope
from tenure.executor.side_effects import SideEffect, SideEffects

ResourcesT = TypeVar("ResourcesT")


class Recorder(Protocol):
    """Whom an attempt tells how far it is. Every method is safe for threads."""

    def note(self, lease: Lease, fraction: float | None, message: str | None) -> None:
        """It is so far; told some time soon."""

    async def save(self, lease: Lease, data: Any) -> None:
        """Save a checkpoint; on the event loop."""

    def save_from_thread(self, lease: Lease, data: Any) -> None:
        """The same, and wait; not on the event loop."""


class Context(Generic[ResourcesT]):
    """Identity, authority and resources of one attempt; passed to its handler.

    ``resources`` is what the executor's lifespan yielded (None without one). ``ordinal`` is the
    attempt's number within the task, from 1, where the coordinator said it. ``last_checkpoint`` is
    what an attempt of the task saved last, this one before it was called excluded; None: nothing.
    ``traceparent`` (W3C Trace Context) is the submission's, for what the handler calls; None: it
    had none.
    """

    def __init__(
        self,
        *,
        lease: Lease,
        task_type: str,
        resources: ResourcesT,
        ordinal: int | None = None,
        scope: Scope = UNLIMITED,
        input: Mapping[str, Any] | None = None,
        narrowed: Scope | None = None,
        traceparent: str | None = None,
        last_checkpoint: Any = None,
        recorder: Recorder | None = None,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        """``input`` is the task's, which the patterns of ``scope`` and of ``narrowed``, the
        submission's, may name fields of. ``faults``: reached by effects, for crash tests only."""
        self.faults = faults
        self._recorder = recorder
        self.last_checkpoint = last_checkpoint
        self._lease = lease
        self._cancelled = threading.Event()
        self._effects = SideEffects()
        self._elsewhere: dict[str, tuple[str, str]] = {}
        self._to_tell: list[Callable[[], None]] = []
        self.task_type = task_type
        self.ordinal = ordinal
        self.resources = resources
        self.scope = GrantedScope(scope, input or {}, narrowed)
        self.traceparent = traceparent

    @property
    def task_id(self) -> TaskId:
        """The logical request; the same in every attempt."""
        return self._lease.task_id

    @property
    def attempt_id(self) -> AttemptId:
        """This execution opportunity."""
        return self._lease.attempt_id

    @property
    def fencing_token(self) -> FencingToken:
        """The number that receivers compare: higher for every later attempt of the task."""
        return self._lease.fencing_token

    @property
    def idempotency_key(self) -> str:
        """For receivers that deduplicate by a key: the task id, the same in every attempt."""
        return self._lease.task_id

    @property
    def expires_at(self) -> datetime:
        """End of the lease on the authority's clock, as granted last. For receivers that check it;
        this process judges by ``remaining_authority_seconds``."""
        return self._lease.expires_at

    @property
    def clock_tolerance_seconds(self) -> float:
        """How far clocks may differ, by the policy that the lease was granted under."""
        return self._lease.tolerance_seconds

    def remaining_authority_seconds(self) -> float:
        """Seconds until nothing new may begin; grows with renewals, 0 when authority is over."""
        return self._lease.remaining_seconds()

    def check_authority(self) -> None:
        """Call it before an external side effect that no guard checks (LEASE-09).

        Raises AuthorityOver.
        """
        if not self._lease.may_act():
            why = self._lease.ended
            raise AuthorityOver(
                f"attempt {self.attempt_id} of task {self.task_id} may act no longer"
                f" ({'its time is up' if why is None else why})."
            )

    def side_effect(self, name: str, *, key: str = "") -> SideEffect:
        """A block around something that this attempt does to the world outside.

            async with context.side_effect("welcome-mail") as effect:  # plain `with` in a thread
                await send(message, idempotency_key=effect.id)

        Entering it raises AuthorityOver when the attempt may act no longer, and OutOfScope when the
        lease's scope permits no operation ``name`` on the object ``key``. ``effect.id`` is the
        same in every attempt of the task; ``key`` tells several effects of one name apart. What
        was begun is kept in ``side_effects``. Guards do this by themselves.

        Raises ValueError for a name that is empty, or a name or key above 200 characters.
        """
        return SideEffect(self, name, key, self._effects)

    @property
    def side_effects(self) -> tuple[SideEffect, ...]:
        """The effects that this attempt has begun, in order, and how far each came."""
        return self._effects.begun()

    def note_effect(self, name: str, effect_id: str, state: str) -> None:
        """Called by the runtime: the attempt's own process begins an effect, or has ended one."""
        self._elsewhere[effect_id] = (name, state)

    def effects_in_words(self) -> list[str]:
        """What was begun here or in the attempt's own process, and how far each came: for logs."""
        here = [f"{each.name} {each.id} {each.state}" for each in self.side_effects]
        there = [f"{name} {key} {state}" for key, (name, state) in self._elsewhere.items()]
        return here + there

    def progress(self, fraction: float | None = None, message: str | None = None) -> None:
        """Say how far the work is: ``fraction`` of 1, and a word for people. Costs nothing: it is
        told soon, the newest for all. From any thread. Raises TypeError or ValueError for a
        fraction that is no number."""
        if self._recorder is not None:
            self._recorder.note(self._lease, fraction, message)

    async def checkpoint(self, data: Any) -> None:
        """Save what the next attempt may go on from: any JSON but null, or a model; at most 64 KiB.
        It is durable when this returns, and ``last_checkpoint`` of the next attempt.

        For coroutines; in threads and processes call ``checkpoint_blocking``. Raises AuthorityOver
        when the attempt may act no longer, InvalidPayload, CheckpointRefused.
        """
        self.check_authority()
        if self._recorder is not None:
            await self._recorder.save(self._lease, data)

    def checkpoint_blocking(self, data: Any) -> None:
        """``checkpoint`` for plain functions, in threads and processes. Raises as it does."""
        self.check_authority()
        if self._recorder is not None:
            self._recorder.save_from_thread(self._lease, data)

    @property
    def cancelled(self) -> bool:
        """Whether the handler was asked to end: cancellation, end of authority, or the end of a
        drain. Handlers on the event loop also get CancelledError; those in threads must look."""
        return self._cancelled.is_set()

    def wait_cancelled(self, timeout_seconds: float) -> bool:
        """For handlers in threads: wait until asked to end, at most ``timeout_seconds``."""
        return self._cancelled.wait(timeout_seconds)

    def end_if_cancelled(self) -> None:
        """For handlers in threads: end here when asked to. Raises asyncio.CancelledError."""
        if self._cancelled.is_set():
            raise asyncio.CancelledError

    def ask_to_end(self) -> None:
        """Called by the runtime; handlers see ``cancelled``."""
        self._cancelled.set()
        for tell in self._to_tell:
            tell()

    @contextmanager
    def told_to_end(self, tell: Callable[[], None]) -> Iterator[None]:
        """Used by the runtime: within the block ``tell`` is called when the handler is asked to
        end, on the event loop."""
        self._to_tell.append(tell)
        try:
            yield
        finally:
            self._to_tell.remove(tell)
