"""How errors read."""

import pytest

from tenure.contract.errors import TenureError


@pytest.mark.parametrize(
    ("message", "next_step", "text"),
    [
        ("no such task", "Check the id.", "no such task. Check the id."),
        ("no such task.", "Check the id.", "no such task. Check the id."),
        ("no such task", "", "no such task"),
        ("", "Check the id.", "Check the id."),
    ],
)
def test_what_is_wrong_and_what_to_do_are_two_sentences(
    message: str, next_step: str, text: str
) -> None:
    assert str(TenureError(message, next_step=next_step)) == text
