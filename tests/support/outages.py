"""Ways in which a private PostgreSQL goes down under its clients."""

import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tests.support.waiting import eventually

Outage = Callable[[PrivatePostgres], Coroutine[Any, Any, None]]


async def killed(server: PrivatePostgres) -> None:
    """Its clients see their connections end."""
    server.kill()


async def stopped_immediately(server: PrivatePostgres) -> None:
    """As ``pg_ctl stop -m immediate``: clients are told, nothing is written, no commit waited for.
    The next start recovers."""
    os.kill(server.pid, signal.SIGQUIT)
    await eventually(lambda: not server.running)
    server.kill()


EVERY_OUTAGE = pytest.mark.parametrize(
    "outage", [killed, stopped_immediately], ids=lambda outage: outage.__name__
)
