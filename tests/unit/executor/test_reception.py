"""Messages and comparisons come in the same way, and each attempt is started once."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel

from tenure.contract.codec import encode_unstamped, stamp, unstamped
from tenure.contract.codes import Reason
from tenure.contract.events import Event, EventData, event_type
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.contract.ids import IncarnationId, NodeId
from tenure.contract.reports import Assignment as Listed
from tenure.contract.states import AttemptState, EntityType
from tenure.executor import Context, Executor, TaskType
from tenure.executor.core.intake import Ack, Assignment
from tenure.executor.execution import Execution
from tenure.executor.inbox import Inbox, inbox_path
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.reception import Reception
from tenure.executor.work import Work
from tests.support.attempts import assignment, new_id


class Nothing(BaseModel):
    pass


ECHO = TaskType("echo", input=Nothing, output=Nothing)


async def echo(input: Nothing, context: Context[None]) -> Nothing:
    return input


@dataclass
class Recording:
    """A pipeline that only notes what it was given."""

    ran: list[str] = field(default_factory=list)
    rejected: list[tuple[str, Reason]] = field(default_factory=list)

    async def run(self, execution: Execution) -> None:
        self.ran.append(execution.assignment.attempt_id)

    async def reject(self, given: Assignment, reason: Reason) -> None:
        self.rejected.append((given.attempt_id, reason))

    async def acknowledge_cancel(self, given: Assignment) -> None:
        pass


class Bench:
    def __init__(
        self, folder: Path, *, faults: Callable[[Work], FaultPoints] = lambda _: NO_FAULTS
    ) -> None:
        app = Executor("bench", version="1")
        app.task(ECHO)(echo)
        metrics = ExecutorMetrics()
        self.incarnation = IncarnationId(new_id())
        self.inbox = Inbox(
            inbox_path(folder, NodeId("n")), retention_seconds=60, on_replaced=lambda: None
        )
        self.pipeline = Recording()
        self.work = Work(app.handlers, slots=1, metrics=metrics, ended=self.inbox.close_attempt)
        self.work.use(self.pipeline)
        self.reception = Reception(
            incarnation=self.incarnation,
            task_types=app.handlers.keys(),
            inbox=self.inbox,
            work=self.work,
            metrics=metrics,
            faults=faults(self.work),
        )

    def event(self, given: Assignment, **changes: object) -> bytes:
        """The message that assigns ``given``."""
        fields: dict[str, object] = {
            "id": given.event_id,
            "type": event_type(EntityType.ATTEMPT, AttemptState.SUBMITTED),
            "subject": given.attempt_id,
            "tenant": "default",
            "entitytype": EntityType.ATTEMPT,
            "taskid": given.task_id,
            "attemptid": given.attempt_id,
            "epoch": 1,
            "sequence": 1,
            "actor": "scheduler",
            "data": EventData(
                previous_state=None,
                next_state=AttemptState.SUBMITTED,
                task_type=given.task_type,
                incarnation=self.incarnation,
                fencing_token=given.fencing_token,
                ordinal=1,
            ),
            **changes,
        }
        return stamp(encode_unstamped(unstamped(**fields)), datetime(2026, 12, 1, tzinfo=UTC))

    def cancellation(self, given: Assignment) -> bytes:
        return self.event(
            given,
            id=new_id(),
            type=event_type(EntityType.TASK, "open"),
            entitytype=EntityType.TASK,
            subject=given.task_id,
            data=EventData(
                previous_state="open",
                next_state="open",
                cancel_requested=True,
                incarnation=self.incarnation,
            ),
        )

    def listed(self, given: Assignment, state: AttemptState = AttemptState.SUBMITTED) -> Listed:
        return Listed(
            task_id=given.task_id,
            attempt_id=given.attempt_id,
            fencing_token=given.fencing_token,
            task_type=given.task_type,
            state=state,
            event_id=given.event_id,
        )


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    made.inbox.start()
    yield made
    await made.inbox.stop(10)


@pytest.mark.requirement("EVENT-03")
async def test_an_assignment_is_started_once_however_often_it_comes(bench: Bench) -> None:
    given = assignment()
    body = bench.event(given)
    assert await bench.reception.messages([body, body]) == [Ack.AFTER_STORING] * 2
    await bench.reception.messages([body])
    await bench.reception.listed([bench.listed(given)])
    await bench.work.idle()
    assert bench.pipeline.ran == [given.attempt_id]


@pytest.mark.requirement("OPS-01")
async def test_an_assignment_that_no_message_brought_is_found_by_the_comparison(
    bench: Bench,
) -> None:
    given = assignment()
    await bench.reception.listed([bench.listed(given)])
    await bench.reception.messages([bench.event(given)])  # the message comes after all
    await bench.work.idle()
    assert bench.pipeline.ran == [given.attempt_id]


async def test_what_is_running_by_the_record_and_unknown_here_is_not_started(
    bench: Bench,
) -> None:
    await bench.reception.listed([bench.listed(assignment(), AttemptState.RUNNING)])
    await bench.work.idle()
    assert bench.pipeline.ran == []


async def test_unknown_types_are_handed_back(bench: Bench) -> None:
    given = assignment("other")
    assert await bench.reception.messages([bench.event(given)]) == [Ack.NOW]
    await bench.work.idle()
    assert bench.pipeline.rejected == [(given.attempt_id, Reason.UNKNOWN_TYPE)]


async def test_what_arrives_during_a_drain_is_handed_back(bench: Bench) -> None:
    bench.work.drain()
    given = assignment()
    await bench.reception.messages([bench.event(given)])
    await bench.work.idle()
    assert bench.pipeline.rejected == [(given.attempt_id, Reason.NODE_DRAINING)]


class DrainedOnceStored:
    """Its node begins to drain while it writes."""

    def __init__(self, work: Work) -> None:
        self.work = work

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        self.work.drain()


async def test_what_was_stored_when_a_drain_began_is_handed_back_and_not_left_to_the_next_start(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, faults=DrainedOnceStored)
    bench.inbox.start()
    given = assignment()
    await bench.reception.messages([bench.event(given)])
    await bench.work.idle()
    await bench.inbox.stop(10)
    assert bench.pipeline.rejected == [(given.attempt_id, Reason.NODE_DRAINING)]
    with closing(sqlite3.connect(inbox_path(tmp_path, NodeId("n")))) as connection:
        assert connection.execute("select state from inbox").fetchall() == [("ended",)]


async def test_messages_that_cannot_be_read_are_dead_letters_and_hold_nothing_up(
    bench: Bench,
) -> None:
    given = assignment()
    newer = bench.event(assignment(), schemaversion=99)
    acks = await bench.reception.messages([b"\xff", newer, bench.event(given)])
    assert acks == [Ack.DEAD_LETTER, Ack.DEAD_LETTER, Ack.AFTER_STORING]
    await bench.work.idle()
    assert bench.pipeline.ran == [given.attempt_id]


async def test_a_cancellation_of_an_attempt_that_is_not_here_is_let_go(bench: Bench) -> None:
    assert await bench.reception.messages([bench.cancellation(assignment())]) == [Ack.NOW]


def test_the_event_of_these_tests_is_a_valid_one(tmp_path: Path) -> None:
    body = Bench(tmp_path).event(assignment())
    assert Event.model_validate_json(body).next_state == "submitted"
