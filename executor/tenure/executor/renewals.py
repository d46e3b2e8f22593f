"""Renewals and heartbeat, from a thread of its own with a blocking client of its own.

A blocked event loop, a busy CPU or a stream of reports that waits cannot starve it. A refused
renewal ends the authority at once, in this thread; the event loop is told so that it ends the
handler. An unanswered one is unknown: it is repeated soon, and the deadline stays where it was.
"""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from tenure.contract.codes import Code
from tenure.contract.ids import AttemptId, IncarnationId, NodeId
from tenure.contract.reports import (
    MAX_RENEWALS_PER_REQUEST,
    HeldLease,
    RenewalReplies,
    RenewalReply,
    Renewals,
)
from tenure.contract.states import NodeState
from tenure.executor.blocking_calls import in_own_thread
from tenure.executor.clock import Clock
from tenure.executor.errors import CoordinatorError, CoordinatorRefused, NodeGone
from tenure.executor.lease import Lease
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition, jitter_seconds

log = structlog.get_logger("tenure.executor")


class Renewing(Protocol):
    """The coordinator, as this thread uses it."""

    def renew(self, node_id: NodeId, renewals: Renewals) -> RenewalReplies:
        """One batch; an empty one is a heartbeat. Raises CoordinatorError."""

    def close(self) -> None:
        """Called by the thread when it ends."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What to call on the event loop: a lease was refused, its task is to be cancelled, the
    incarnation is not known or has ended, the node is drained by an operator."""

    lease_refused: Callable[[AttemptId], None]
    cancel_requested: Callable[[AttemptId], None]
    unknown_node: Callable[[], None]
    node_gone: Callable[[], None]
    draining: Callable[[], None]


class Renewer:
    """``hold`` a lease while its attempt works; the thread does the rest until ``stop``."""

    def __init__(
        self,
        coordinator: Renewing,
        *,
        node_id: NodeId,
        incarnation: IncarnationId,
        interval_seconds: float,
        clock: Clock,
        condition: Condition,
        metrics: ExecutorMetrics,
        heard: Heard,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._incarnation = incarnation
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._condition = condition
        self._metrics = metrics
        self._heard = heard
        self._loop = loop
        self._lock = threading.Lock()
        self._leases: dict[AttemptId, Lease] = {}
        self._stopping = threading.Event()
        self._due = threading.Event()
        # Not joined at the interpreter's end: a request to a server that is away may be under way.
        self._thread = threading.Thread(target=self._run, name="tenure-renewals", daemon=True)
        self.heard_at = clock()

    def start(self) -> None:
        """Begin, with a heartbeat at once."""
        self._thread.start()

    async def stop(self, timeout_seconds: float) -> None:
        """Ask the thread to end, and wait for it for a while."""
        self._stopping.set()
        self._due.set()
        await in_own_thread(lambda: self._thread.join(timeout_seconds))

    def hold(self, lease: Lease) -> None:
        """Renew this lease until it is let go or refused."""
        with self._lock:
            self._leases[lease.attempt_id] = lease
        if lease.renewal_interval_seconds < self._interval_seconds:
            self._due.set()  # the pause that is under way would be too long for this one

    def let_go(self, attempt_id: AttemptId) -> None:
        """The attempt has ended: its lease is renewed no longer."""
        with self._lock:
            self._leases.pop(attempt_id, None)

    def silent_seconds(self) -> float:
        """Since the coordinator last took this incarnation for alive."""
        return (self._clock() - self.heard_at) / 1_000_000

    def _run(self) -> None:
        failures = 0
        try:
            while True:
                failures = 0 if self._round() else failures + 1
                self._due.wait(self._pause_seconds(failures))
                self._due.clear()
                if self._stopping.is_set():
                    return
        except Exception:
            log.exception("renewals ended by a fault; authority will run out")
            self._tell(self._heard.node_gone)
        finally:
            self._coordinator.close()

    def _pause_seconds(self, failures: int) -> float:
        with self._lock:
            intervals = [lease.renewal_interval_seconds for lease in self._leases.values()]
        # Each lease by the terms that it was granted under, the heartbeat by those in force.
        interval = min([self._interval_seconds, *intervals])
        if failures == 0:
            return interval * random.uniform(0.8, 1.0)
        return jitter_seconds(failures, cap_seconds=interval / 2)

    def _round(self) -> bool:
        """Renew everything that is held. Whether every lease was answered."""
        with self._lock:
            # What was given up here is left to run out.
            leases = [lease for lease in self._leases.values() if lease.ended is None]
        answered = True
        for first in range(0, max(1, len(leases)), MAX_RENEWALS_PER_REQUEST):
            batch = leases[first : first + MAX_RENEWALS_PER_REQUEST]
            try:
                answered = self._renew(batch) and answered
            except NodeGone:
                self._end_all()
                return True
            except CoordinatorError as error:
                self._metrics.renewal_rounds.labels(outcome="unanswered").inc()
                self._condition.trouble(error)
                if isinstance(error, CoordinatorRefused) and error.code == Code.UNKNOWN_NODE:
                    self._tell(self._heard.unknown_node)
                answered = False
        return answered

    def _renew(self, leases: Sequence[Lease]) -> bool:
        request = Renewals(
            incarnation=self._incarnation,
            leases=tuple(
                HeldLease(
                    task_id=lease.task_id,
                    attempt_id=lease.attempt_id,
                    fencing_token=lease.fencing_token,
                )
                for lease in leases
            ),
        )
        sent_at = self._clock()
        answer = self._coordinator.renew(self._node_id, request)
        self._condition.well()
        self._metrics.renewal_rounds.labels(outcome="answered").inc()
        replies = {reply.attempt_id: reply for reply in answer.replies}
        settled = [self._apply(lease, replies.get(lease.attempt_id), sent_at) for lease in leases]
        if answer.node_state is NodeState.GONE:
            self._end_all()
            return True
        self.heard_at = self._clock()
        self._metrics.heard()
        if answer.lease is not None:
            self._interval_seconds = answer.lease.renewal_interval_seconds
        if answer.node_state is NodeState.DRAINING:
            self._tell(self._heard.draining)
        return all(settled)

    def _apply(self, lease: Lease, reply: RenewalReply | None, sent_at: int) -> bool:
        """Whether the lease was answered."""
        if reply is None or reply.outcome == "retry":
            self._metrics.renewals.labels(outcome="retry").inc()
            return False
        self._metrics.renewals.labels(outcome=reply.outcome).inc()
        if reply.outcome == "refused":
            with self._lock:
                held = self._leases.pop(lease.attempt_id, None) is not None
            if held:  # an attempt that has ended meanwhile needs no lease
                lease.end(reply.code or "refused")
                self._tell(self._heard.lease_refused, lease.attempt_id)
            return True
        if reply.remaining_seconds is not None and reply.expires_at is not None:
            lease.renew(
                sent_at=sent_at,
                remaining_seconds=reply.remaining_seconds,
                expires_at=reply.expires_at,
            )
        if reply.cancel_requested:
            self._tell(self._heard.cancel_requested, lease.attempt_id)
        return True

    def _end_all(self) -> None:
        """This incarnation has ended: nothing of it may act, also while the loop is blocked."""
        with self._lock:
            leases = list(self._leases.values())
            self._leases.clear()
        for lease in leases:
            lease.end(Code.NODE_GONE)
        self._tell(self._heard.node_gone)

    def _tell(self, callback: Callable[..., None], *arguments: AttemptId) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it whom to tell
            self._loop.call_soon_threadsafe(callback, *arguments)
