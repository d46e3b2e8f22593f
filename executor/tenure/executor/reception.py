"""From messages and comparisons to runs: decode, judge, store in the inbox, start.

The same way in for both sources. A message may be lost, doubled or late; the comparison with the
coordinator's list finds what no message brought (OPS-01).
"""

from collections.abc import Sequence, Set
from typing import Protocol

import structlog

from tenure.contract.codec import decode_event
from tenure.contract.codes import Reason
from tenure.contract.errors import UndecodableEvent
from tenure.contract.events import Event
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.contract.ids import AttemptId, EventId, FencingToken, IncarnationId, TaskId
from tenure.contract.reports import Assignment as ListedAssignment
from tenure.contract.states import AttemptState, EntityType, TaskState
from tenure.executor.core.intake import (
    UNDECODABLE,
    Ack,
    Assignment,
    Intake,
    Kind,
    Notice,
    Situation,
    Step,
    judge,
    may_start,
)
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.work import Work

log = structlog.get_logger("tenure.executor")


class Storing(Protocol):
    """The inbox, as this module uses it."""

    async def store(
        self, assignments: Sequence[Assignment], incarnation: IncarnationId
    ) -> list[bool]:
        """Make the assignments durable; of each whether it was new. Raises InboxUnavailable."""


class Reception:
    """Takes in what this incarnation is told."""

    def __init__(
        self,
        *,
        incarnation: IncarnationId,
        task_types: Set[str],
        inbox: Storing,
        work: Work,
        metrics: ExecutorMetrics,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        self._incarnation = incarnation
        self._task_types = task_types
        self._inbox = inbox
        self._work = work
        self._metrics = metrics
        self._faults = faults

    async def messages(self, bodies: Sequence[bytes]) -> list[Ack]:
        """Take in a batch of messages; how each leaves the queue.

        Raises InboxUnavailable: none of them may leave.
        """
        intakes = [self._judge_message(body) for body in bodies]
        await self._carry_out(intakes, source="message")
        return [intake.ack for intake in intakes]

    async def listed(self, assignments: Sequence[ListedAssignment]) -> None:
        """Take in what the coordinator believes this incarnation has.

        Raises InboxUnavailable.
        """
        situation = self._situation()
        missed = [each for each in assignments if not self._work.knows(AttemptId(each.attempt_id))]
        await self._carry_out(
            [judge(self._listed_notice(each), situation) for each in missed], source="comparison"
        )
        for each in assignments:
            if each.cancel_requested:
                self._work.cancel(AttemptId(each.attempt_id))

    def _judge_message(self, body: bytes) -> Intake:
        try:
            event = decode_event(body)
        except UndecodableEvent as error:
            log.error("message cannot be read", error=str(error))
            return UNDECODABLE
        return judge(_notice(event), self._situation())

    async def _carry_out(self, intakes: Sequence[Intake], *, source: str) -> None:
        for intake in intakes:
            self._metrics.messages.labels(source=source, why=intake.why).inc()
        starting = [
            intake.assignment
            for intake in intakes
            if intake.step is Step.START and intake.assignment is not None
        ]
        if starting:
            stored = await self._inbox.store(starting, self._incarnation)
            await self._faults.reach(FaultPoint.AFTER_INBOX)
            for assignment, new in zip(starting, stored, strict=True):
                self._start(assignment, stored_now=new)
        for intake in intakes:
            if intake.step is Step.CANCEL and intake.attempt_id is not None:
                self._work.cancel(intake.attempt_id)
            elif intake.step is Step.REJECT and intake.assignment is not None:
                self._work.reject(intake.assignment, Reason(intake.why))

    def _start(self, assignment: Assignment, *, stored_now: bool) -> None:
        known = self._work.knows(assignment.attempt_id)
        if not may_start(stored_now=stored_now, known_here=known):
            self._metrics.duplicates.inc()
        elif self._work.draining:  # the drain began while the inbox wrote
            self._work.hand_back(assignment)
        else:
            self._work.start(assignment)

    def _situation(self) -> Situation:
        return Situation(
            incarnation=self._incarnation,
            task_types=self._task_types,
            draining=self._work.draining,
        )

    def _listed_notice(self, listed: ListedAssignment) -> Notice:
        # What runs by the coordinator's record and is not known here was started by nobody alive:
        # only an attempt that has not started is news.
        fresh = listed.state in (AttemptState.SUBMITTED, AttemptState.ACCEPTED)
        return Notice(
            kind=Kind.ASSIGNMENT if fresh else Kind.OTHER,
            event_id=EventId(listed.event_id),
            task_id=TaskId(listed.task_id),
            attempt_id=AttemptId(listed.attempt_id),
            fencing_token=FencingToken(listed.fencing_token),
            task_type=listed.task_type,
            incarnation=self._incarnation,
            ordinal=listed.ordinal,
        )


def _notice(event: Event) -> Notice:
    """The event as the core judges it."""
    data = event.data
    if event.entity_type is EntityType.ATTEMPT and event.next_state == AttemptState.SUBMITTED:
        kind = Kind.ASSIGNMENT
    elif (
        event.entity_type is EntityType.TASK
        and event.next_state == TaskState.OPEN
        and data.cancel_requested
    ):
        kind = Kind.CANCELLATION
    else:
        kind = Kind.OTHER
    return Notice(
        kind=kind,
        event_id=EventId(event.event_id),
        task_id=None if event.task_id is None else TaskId(event.task_id),
        attempt_id=None if event.attempt_id is None else AttemptId(event.attempt_id),
        fencing_token=None if data.fencing_token is None else FencingToken(data.fencing_token),
        task_type=data.task_type,
        incarnation=None if data.incarnation is None else IncarnationId(data.incarnation),
        ordinal=data.ordinal,
    )
