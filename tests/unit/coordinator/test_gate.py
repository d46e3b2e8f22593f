"""Only so much may wait at once."""

from contextlib import ExitStack

import pytest

from tenure.coordinator.api.gate import Gate
from tenure.coordinator.errors import Overloaded


def test_requests_beyond_the_number_are_refused() -> None:
    gate = Gate(max_requests=2, max_bytes=1000)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(gate.admit(1))
        with pytest.raises(Overloaded), gate.admit(1):
            pass
    with gate.admit(1):
        assert gate.requests == 1
    assert (gate.requests, gate.bytes) == (0, 0)


def test_requests_beyond_the_bytes_are_refused() -> None:
    gate = Gate(max_requests=10, max_bytes=100)
    with gate.admit(60), pytest.raises(Overloaded), gate.admit(41):
        pass
    with gate.admit(60), gate.admit(40):
        assert gate.bytes == 100


def test_a_lone_large_request_is_let_in() -> None:
    gate = Gate(max_requests=10, max_bytes=100)
    with gate.admit(500):
        assert gate.bytes == 500


def test_a_request_that_fails_leaves_its_room() -> None:
    gate = Gate(max_requests=1, max_bytes=100)
    with pytest.raises(ZeroDivisionError), gate.admit(1):
        raise ZeroDivisionError
    assert (gate.requests, gate.bytes) == (0, 0)
