"""Cores and memory as Kubernetes writes them: exact, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tenure.contract.quantities import (
    MAX_CPU_MILLIS,
    MAX_MEMORY_BYTES,
    cpu_millis,
    cpu_text,
    memory_bytes,
    memory_text,
)
from tenure.contract.reports import Resources


@pytest.mark.parametrize(
    ("text", "millis"),
    [("500m", 500), ("2", 2000), (2, 2000), ("0.5", 500), (1.5, 1500), ("0", 0), ("1500m", 1500)],
)
def test_cores_are_thousandths(text: str | int | float, millis: int) -> None:
    assert cpu_millis(text) == millis


@pytest.mark.parametrize(
    ("text", "number"),
    [("2Gi", 2 * 2**30), ("512M", 512_000_000), ("1.5Ki", 1536), (1024, 1024), ("1k", 1000)],
)
def test_memory_is_bytes(text: str | int, number: int) -> None:
    assert memory_bytes(text) == number


@pytest.mark.parametrize(
    "text", ["", "-1", "0.5m", "1Gi", "1e3", "½", "٣", " 1", "1 ", "nan", "2000000", "9" * 50, True]
)
def test_what_is_no_number_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cores|core"):
        cpu_millis(text)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0.5", "1m", "2gi", "2GiB", "1e3", "2048Pi"])
def test_what_is_no_amount_of_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"memory|bytes|unit"):
        memory_bytes(text)


@given(millis=st.integers(0, MAX_CPU_MILLIS), number=st.integers(0, MAX_MEMORY_BYTES))
def test_amounts_are_written_exactly(millis: int, number: int) -> None:
    assert cpu_millis(cpu_text(millis)) == millis
    assert memory_bytes(memory_text(number)) == number


def test_a_declaration_takes_quantities_in_python_and_in_json() -> None:
    expected = Resources(cpu_millis=500, memory_bytes=2 * 2**30)
    assert Resources.of(cpu="500m", memory="2Gi") == expected
    assert Resources.model_validate_json('{"cpu":"500m","memory":"2Gi"}', strict=True) == expected


@pytest.mark.parametrize(
    "text",
    ['{"cpu":"500m","cpu_millis":1}', '{"cpu":1}', '{"memory":"2 GB"}', '{"memory":null}'],
)
def test_an_ambiguous_or_wrong_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        Resources.model_validate_json(text, strict=True)
