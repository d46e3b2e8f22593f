"""Whether the database's clock was set is told from how much time passed here meanwhile."""

import pytest

from tenure.coordinator.clock import SLACK_MICROSECONDS, ClockWatch, Reading

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("moved", "step"),
    [
        (2 * SECOND, 0),
        (2 * SECOND + SLACK_MICROSECONDS, 0),
        (2 * SECOND - SLACK_MICROSECONDS, 0),
        # The first answer took a tenth of a second: so much nobody can tell.
        (2 * SECOND - SLACK_MICROSECONDS - 100_000, 0),
        (2 * SECOND - SLACK_MICROSECONDS - 100_001, -SLACK_MICROSECONDS - 1),
        (2 * SECOND + SLACK_MICROSECONDS + 1, SLACK_MICROSECONDS + 1),
        (-1800 * SECOND, -1802 * SECOND + 100_000),
        (7200 * SECOND, 7198 * SECOND),
    ],
)
def test_a_clock_that_was_set_is_noticed_beyond_what_the_questions_took(
    moved: int, step: int
) -> None:
    watch = ClockWatch()
    assert watch.observe(Reading(0, 5 * SECOND, 100_000)) == 0
    later = Reading(2 * SECOND, 5 * SECOND + moved, 2 * SECOND)
    assert watch.observe(later) == step
    assert (watch.backward_steps, watch.forward_steps) == (step < 0, step > 0)


def test_a_step_is_counted_once() -> None:
    watch = ClockWatch()
    for second, clock in enumerate((100, 101, 50, 51, 52, 500, 501)):
        watch.observe(Reading(second * SECOND, clock * SECOND, second * SECOND))
    assert (watch.backward_steps, watch.forward_steps) == (1, 1)
    assert watch.last_step_microseconds == 447 * SECOND
