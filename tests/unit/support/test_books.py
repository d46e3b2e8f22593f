"""The checker of the books finds each kind of fault, and only faults."""

import dataclasses
from collections.abc import Callable

import pytest

from tests.support.books import Arrival, Committed, Ledger, Write, faults
from tests.support.log_rows import Stream

STREAM, OTHER = Stream(), Stream()
ROWS = [STREAM.next(), STREAM.next(), OTHER.next()]
COMMITTED = [
    Committed(
        str(row.event_id),
        f"task/{row.stream.entity_id}",
        1,
        row.sequence,
        str(row.stream.entity_id),
        row.body,
    )
    for row in ROWS
]
ARRIVALS = [Arrival(row.event_id, row.body) for row in COMMITTED]
TASK, ANOTHER = str(STREAM.entity_id), str(OTHER.entity_id)
WRITES = [Write(TASK, "row", 1), Write(ANOTHER, "row", 2)]


def ledger() -> Ledger:
    kept = Ledger()
    kept.answered("a", TASK)
    kept.answered("a", TASK)
    kept.answered("b", ANOTHER)
    return kept


def test_books_that_agree_have_no_faults() -> None:
    assert (
        faults(
            committed=COMMITTED,
            arrivals=[ARRIVALS[0], *ARRIVALS, ARRIVALS[0]],  # duplicates are no fault
            ledger=ledger(),
            writes=WRITES,
            effects=[TASK, ANOTHER],
        )
        == []
    )


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        (lambda: ARRIVALS[:2], "never arrived"),
        (lambda: [ARRIVALS[1], ARRIVALS[0], ARRIVALS[2]], "showed (1, 1) after (1, 2)"),
        (
            lambda: [*ARRIVALS, dataclasses.replace(ARRIVALS[0], body=ARRIVALS[1].body)],
            "with other bytes",
        ),
        (lambda: [*ARRIVALS, Arrival("x", b"")], "never committed"),
    ],
    ids=["lost", "out of order", "other bytes", "invented"],
)
def test_a_fault_of_what_arrived_is_found(
    arrivals: Callable[[], list[Arrival]], words: str
) -> None:
    (found,) = faults(committed=COMMITTED, arrivals=arrivals())
    assert words in found


def test_a_hole_in_a_stream_of_the_log_is_found() -> None:
    (found,) = faults(committed=[COMMITTED[1], COMMITTED[2]])
    assert "counts [2]" in found


def test_a_promise_that_was_not_recorded_is_found() -> None:
    kept = ledger()
    kept.answered("c", "lost")
    (found,) = faults(committed=COMMITTED, ledger=kept)
    assert found == "task lost was promised and not recorded"


def test_a_task_that_nobody_asked_for_is_found() -> None:
    kept = Ledger()
    kept.answered("a", TASK)
    (found,) = faults(committed=COMMITTED, ledger=kept)
    assert found == f"task {ANOTHER} was recorded and never asked for"


def test_two_answers_to_one_key_are_found() -> None:
    kept = ledger()
    kept.answered("a", ANOTHER)
    (found,) = faults(committed=COMMITTED, ledger=kept)
    assert found.startswith("key a was answered with")


@pytest.mark.parametrize(
    ("writes", "words"),
    [
        ([*WRITES, Write(TASK, "other", 0)], "under 0 after 1"),
        ([*WRITES, Write(TASK, "row", 1)], "written 2 times"),
        (WRITES[:1], "never written"),
        ([*WRITES, Write("stranger", "row", 1)], "written unasked"),
    ],
    ids=["lower token", "twice", "missing", "unasked"],
)
def test_a_fault_of_what_was_written_is_found(writes: list[Write], words: str) -> None:
    (found,) = faults(writes=writes, effects=[TASK, ANOTHER])
    assert words in found
