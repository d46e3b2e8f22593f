"""What tests do to every command, they do to every command."""

from typing import get_args

from tenure.coordinator.core.commands import AnyCommand
from tests.support.every_command import EVERY


def test_there_is_a_situation_for_every_command() -> None:
    """Add one to tests/support/every_command.py: its connection will be cut around the commit."""
    assert set(EVERY.values()) == set(get_args(AnyCommand))
