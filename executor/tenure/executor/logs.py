"""How executors and consumers log: their handlers' ``logging`` is let through at the same level."""

import logging
from typing import Final, Literal

from tenure.settings.given_up import expect_given_up
from tenure.settings.logs import configure

_SILENCED: Final = ("aio_pika", "aiormq", "httpx2")
"""They report every failed attempt; ``Condition`` says the same once a minute."""


def configure_logs(log_format: Literal["auto", "console", "json"], level: str) -> None:
    """Set up the process's log. See ``configure`` of ``tenure.settings.logs``."""
    configure(log_format, level, silenced=_SILENCED, libraries_from=logging.DEBUG)
    expect_given_up()
