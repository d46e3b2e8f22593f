"""What a scope permits: patterns of operations and objects, with fields of the task's input."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tenure.contract.scope import UNLIMITED, Scope
from tests.support.scope_cases import SCOPE_CASES


@pytest.mark.requirement("LEASE-11")
@pytest.mark.parametrize(("patterns", "target", "input", "fits"), SCOPE_CASES)
def test_one_pattern_has_to_fit(
    patterns: tuple[str, ...], target: str, input: dict[str, Any], fits: bool
) -> None:
    assert Scope(objects=patterns).permits("write", target, input=input) is fits


def test_many_stars_are_soon_tried() -> None:
    """As a regular expression, five of them take minutes over such an object."""
    scope = Scope(objects=("*a" * 100 + "*b",))
    assert not scope.permits("write", "a" * 200)
    assert scope.permits("write", "a" * 199 + "b")


@given(
    literals=st.lists(st.text("ab", max_size=2), min_size=1, max_size=5),
    text=st.text("ab", max_size=8),
)
def test_a_pattern_fits_what_a_regular_expression_of_its_stars_fits(
    literals: list[str], text: str
) -> None:
    pattern = "*".join(literals) or "*"
    expected = re.fullmatch(pattern.replace("*", ".*"), text) is not None
    assert Scope(objects=(pattern,)).permits("write", text) is expected


def test_operation_and_object_have_to_fit_both() -> None:
    scope = Scope(operations=("read", "write-*"), objects=("a",))
    assert scope.permits("read", "a")
    assert scope.permits("write-row", "a")
    assert not scope.permits("delete", "a")
    assert not scope.permits("read", "b")
    assert UNLIMITED.permits("delete", "b")


@pytest.mark.parametrize("pattern", ["", "{", "a}", "{a-b}", "{}", "a\nb", "x" * 301])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError):
        Scope(objects=(pattern,))


def test_a_scope_that_permits_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        Scope(operations=())
