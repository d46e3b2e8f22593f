"""The arithmetic behind the tables of ``make bench``."""

import pytest

from bench import figures


@pytest.mark.parametrize(("percent", "value"), [(0, 1), (50, 51), (95, 96), (99, 100)])
def test_a_percentile_is_the_value_that_so_many_lie_below(percent: int, value: int) -> None:
    assert figures.percentile(reversed(range(1, 101)), percent) == value


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert figures.percentile([7.0], 99) == 7.0


def test_a_cell_shows_the_median_and_every_run_in_its_order() -> None:
    assert figures.each([1200.4, 900.0, 1100.0]) == "1,100 (1,200 900 1,100)"
    assert figures.each([0.25, 0.75], ".2f") == "0.50 (0.25 0.75)"


def test_medians_are_taken_name_by_name() -> None:
    rounds = [{"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 7.0}, {"a": 2.0, "b": 8.0}]
    assert figures.medians(rounds) == {"a": 2.0, "b": 8.0}


def test_ratios_compare_within_a_round() -> None:
    assert figures.ratios([50.0, 10.0], [100.0, 40.0]) == [0.5, 0.25]


def test_ratios_of_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        figures.ratios([1.0], [1.0, 2.0])


def test_what_nobody_measured_used_is_others() -> None:
    used, others = figures.spent_between({"a": 1.0, "b": 2.0}, {"a": 1.5, "b": 4.0}, 3.0)
    assert used == {"a": 0.5, "b": 2.0}
    assert others == 0.5


def test_others_never_use_less_than_nothing() -> None:
    assert figures.spent_between({"a": 0.0}, {"a": 1.01}, 1.0)[1] == 0.0


def test_rows_up_to_and_at_a_cursor_have_passed() -> None:
    positions = {0: [10, 12, 14], 1: [11], 2: []}
    assert figures.passed(positions, {0: 9, 1: 0, 2: 5}) == 0
    assert figures.passed(positions, {0: 12, 1: 11, 2: 5}) == 3
    assert figures.passed(positions, {0: 99, 1: 99, 2: 99}) == 4


def test_growth_shows_between_the_second_and_the_last_quarter() -> None:
    filling = [0.0, 50.0]
    assert figures.quarter_medians([*filling, 60.0, 60.0, 61.0, 60.0, 60.0, 60.0]) == (60.0, 60.0)
    assert figures.quarter_medians([float(value) for value in range(8)]) == (2.5, 6.5)


@pytest.mark.parametrize("values", [[5.0], [5.0, 5.0], [5.0, 5.0, 5.0]])
def test_few_looks_have_quarters_too(values: list[float]) -> None:
    assert figures.quarter_medians(values) == (5.0, 5.0)


def test_a_rate_belongs_to_its_part_of_the_time() -> None:
    looks = [(10.0, 0), (11.0, 50), (12.0, 100), (13.0, 110), (14.0, 120)]
    assert figures.rates(looks, 2) == [50.0, 10.0]


def test_too_few_looks_have_no_rates() -> None:
    assert figures.rates([(1.0, 0), (2.0, 5)], 2) == []
