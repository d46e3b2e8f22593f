"""Where the time of a task goes, for `make bench`."""

import pytest

from bench.stages import STAGES, Times, stages


def test_each_stage_lasts_from_the_one_before_on_one_clock() -> None:
    offset = 1_000_000_000  # the wall clock is a second ahead
    task = Times(sent=5_000_000, recorded=1_007_000, given=1_008_500, taken=1_012_000)
    found = stages({5_000_000: 13_000_000}, [task], offset)
    assert [stage.name for stage in found] == list(STAGES)
    assert [stage.p50 for stage in found] == pytest.approx([2.0, 1.5, 3.5, 1.0])
    assert {stage.samples for stage in found} == {1}


def test_a_task_of_another_round_does_not_count() -> None:
    known, unknown = Times(1, 2, 3, 4), Times(9, 9, 9, 9)
    assert {stage.samples for stage in stages({1: 10_000}, [known, unknown], 0)} == {1}
