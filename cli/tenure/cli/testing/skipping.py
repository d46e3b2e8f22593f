"""What cannot be done on real servers as it is in memory."""

from typing import NoReturn


def skip(reason: str) -> NoReturn:
    """End the test as skipped. Only tests get here, and with them pytest is there."""
    import pytest

    pytest.skip(reason)
