"""How far a look at the queue reads, past tasks that fit nowhere."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from tenure.contract.ids import TaskId
from tenure.coordinator.core.paging import Cursor, Kind, pages, read_on
from tenure.coordinator.core.ranking import Room
from tenure.coordinator.core.rows import TaskRow
from tests.support.rows import PROFILE, TASK, TENANT

MOST = 4
ROOM = Room(TENANT, PROFILE.digest, None, None)
KIND: Kind = (TENANT, PROFILE.digest)


def queue(number: int) -> list[TaskRow]:
    return [
        replace(TASK, task_id=TaskId(f"task-{one:03}"), queued_as_of=one) for one in range(number)
    ]


def look(
    tasks: list[TaskRow], behind: dict[Kind, Cursor], fits: Collection[str], limit: int = MOST
) -> tuple[set[str], dict[Kind, Cursor]]:
    """What a look places, of what fits, and where the next one reads on."""
    read = []
    for page in pages([ROOM], behind, limit, MOST):
        after = page.after or (-1, "")
        found = [one for one in tasks if (one.queued_as_of, one.task_id) > after]
        read.append((page, found[: page.limit]))
    placed = {TaskId(one.task_id) for _, page in read for one in page if one.task_id in fits}
    return {*placed}, read_on(read, placed, behind, MOST)


@pytest.mark.requirement("SCHED-05")
def test_whatever_fits_is_reached_however_many_are_before_it() -> None:
    tasks, behind = queue(40), dict[Kind, Cursor]()
    found = []
    for _ in range(10):
        placed, behind = look(tasks, behind, {"task-037"})
        found.append(placed)
    assert found == [*[set[str]()] * 9, {"task-037"}]


@pytest.mark.requirement("SCHED-05")
def test_what_comes_first_is_looked_at_again_with_every_page() -> None:
    tasks = queue(20)
    _, behind = look(tasks, {}, ())
    _, behind = look(tasks, behind, ())
    placed, after = look(tasks, behind, {"task-001", "task-009"})
    assert placed == {"task-001", "task-009"}
    assert after == behind  # the page had one that fits: perhaps it has others


def test_at_the_end_of_the_queue_it_begins_anew() -> None:
    tasks, behind = queue(10), dict[Kind, Cursor]()
    for _ in range(2):
        _, behind = look(tasks, behind, ())
        assert behind
    _, behind = look(tasks, behind, ())
    assert behind == {}


def test_a_short_page_and_one_of_which_some_fit_are_not_passed() -> None:
    assert look(queue(3), {}, ())[1] == {}
    assert look(queue(9), {}, {"task-002"})[1] == {}
    assert look(queue(9), {}, (), limit=2)[1] == {}  # more of them are read first


def test_no_more_are_read_than_may_begin_unless_those_do_not_fit() -> None:
    limited = replace(ROOM, most=1)
    assert [page.limit for page in pages([limited], {}, 2, MOST)] == [1]
    assert [page.limit for page in pages([limited], {}, MOST, MOST)] == [MOST]
    both = pages([limited], {KIND: (3, TaskId("task-003"))}, 2, MOST)
    assert [(page.after, page.limit) for page in both] == [((3, "task-003"), MOST), (None, MOST)]
