"""Which times of keeping make sense together (OPS-08)."""

import pytest

from tenure.contract.states import RetentionKind
from tenure.coordinator.core.retention import contradiction

DAY = 86_400
DEFAULTS: dict[RetentionKind, int | None] = {
    RetentionKind.COMMANDS: 30 * DAY,
    RetentionKind.INTAKE: 30 * DAY,
    RetentionKind.TASKS: 90 * DAY,
}


@pytest.mark.requirement("OPS-08")
def test_what_is_named_is_kept_as_long_as_what_names_it() -> None:
    assert contradiction(DEFAULTS) is None
    assert contradiction({}) is None  # everything for ever
    assert contradiction(DEFAULTS | {RetentionKind.TASKS: None}) is None
    for change in (
        {RetentionKind.TASKS: 29 * DAY},
        {RetentionKind.COMMANDS: 31 * DAY},
        {RetentionKind.COMMANDS: None},
        {RetentionKind.INTAKE: 91 * DAY},
        {RetentionKind.INTAKE: None},
        {RetentionKind.INTAKE: None, RetentionKind.COMMANDS: 91 * DAY},
    ):
        assert contradiction(DEFAULTS | change) is not None, change


def test_nothing_is_kept_for_less_than_an_hour() -> None:
    assert contradiction({RetentionKind.LOG: 3599}) is not None
    assert contradiction({RetentionKind.LOG: 3600}) is None
