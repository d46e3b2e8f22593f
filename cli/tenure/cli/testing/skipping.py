"""What cannot be done on real servers as it is in memory."""

from typing import Final, NoReturn

MOST_REAL_SECONDS: Final = 30.0


def skip(reason: str) -> NoReturn:
    """End the test as skipped. Only tests get here, and with them pytest is there."""
    import pytest

    pytest.skip(reason)


def check_wait(seconds: float) -> None:
    """End the test as skipped where nobody would want to wait so long."""
    if seconds > MOST_REAL_SECONDS:
        skip(f"on real servers {seconds:.0f} s take {seconds:.0f} s: run it in memory")
