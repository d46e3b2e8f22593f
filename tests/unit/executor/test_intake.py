"""What is done with a message, and when it may be acknowledged."""

from dataclasses import replace

import pytest

from tenure.contract.codes import Reason
from tenure.contract.ids import AttemptId, EventId, FencingToken, IncarnationId, TaskId
from tenure.executor.core.intake import (
    UNDECODABLE,
    Ack,
    Kind,
    Notice,
    Situation,
    Step,
    judge,
    may_start,
)

HERE = IncarnationId("i-1")
SITUATION = Situation(incarnation=HERE, task_types=frozenset({"sha256"}), draining=False)
ASSIGNMENT = Notice(
    kind=Kind.ASSIGNMENT,
    event_id=EventId("e-1"),
    task_id=TaskId("t-1"),
    attempt_id=AttemptId("a-1"),
    fencing_token=FencingToken(2**32 + 1),
    task_type="sha256",
    incarnation=HERE,
    ordinal=1,
)


@pytest.mark.requirement("OPS-01")
def test_an_assignment_is_acknowledged_only_after_it_was_stored() -> None:
    intake = judge(ASSIGNMENT, SITUATION)
    assert (intake.step, intake.ack) == (Step.START, Ack.AFTER_STORING)
    assert intake.assignment is not None
    assert intake.assignment.attempt_id == "a-1"


@pytest.mark.requirement("EVENT-03")
def test_only_the_first_copy_that_this_process_has_not_got_is_run() -> None:
    assert may_start(stored_now=True, known_here=False)
    assert not may_start(stored_now=False, known_here=False)
    assert not may_start(stored_now=True, known_here=True), "the inbox file was lost meanwhile"


def test_a_message_for_another_incarnation_is_dropped() -> None:
    intake = judge(replace(ASSIGNMENT, incarnation=IncarnationId("i-0")), SITUATION)
    assert (intake.step, intake.ack, intake.why) == (Step.NOTHING, Ack.NOW, "other_incarnation")


def test_a_cancellation_names_the_attempt_to_end() -> None:
    notice = Notice(Kind.CANCELLATION, EventId("e-2"), TaskId("t-1"), AttemptId("a-1"))
    intake = judge(notice, SITUATION)
    assert (intake.step, intake.ack, intake.attempt_id) == (Step.CANCEL, Ack.NOW, "a-1")


def test_a_cancellation_without_attempt_and_other_events_are_not_for_executors() -> None:
    for notice in (Notice(Kind.CANCELLATION, EventId("e")), Notice(Kind.OTHER, EventId("e"))):
        assert judge(notice, SITUATION).step is Step.NOTHING
        assert judge(notice, SITUATION).ack is Ack.NOW


@pytest.mark.parametrize(
    "notice",
    [
        replace(ASSIGNMENT, task_id=None),
        replace(ASSIGNMENT, attempt_id=None),
        replace(ASSIGNMENT, fencing_token=None),
        replace(ASSIGNMENT, task_type=None),
    ],
)
def test_an_assignment_that_lacks_a_field_goes_to_the_dead_letters(notice: Notice) -> None:
    assert judge(notice, SITUATION) == UNDECODABLE
    assert UNDECODABLE.ack is Ack.DEAD_LETTER


def test_an_unknown_type_is_rejected_so_that_another_node_may_have_it() -> None:
    intake = judge(replace(ASSIGNMENT, task_type="other"), SITUATION)
    assert (intake.step, intake.why) == (Step.REJECT, Reason.UNKNOWN_TYPE)


@pytest.mark.requirement("OPS-03")
def test_a_draining_node_rejects_what_it_has_not_started() -> None:
    intake = judge(ASSIGNMENT, replace(SITUATION, draining=True))
    assert (intake.step, intake.why) == (Step.REJECT, Reason.NODE_DRAINING)
