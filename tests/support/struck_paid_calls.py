"""The executor of the example ``paid_calls``, which dies once it has the answer to a call."""

import os
import signal
from typing import Any

import httpx2

from paid_calls import executor as example
from tenure.executor import Context
from tenure.executor.guards.http import HttpGuard


class DyingGuard(HttpGuard):
    """Nobody learns what was answered."""

    async def request(self, context: Context[Any], *words: Any, **options: Any) -> httpx2.Response:
        await super().request(context, *words, **options)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it goes on")


vars(example)["HttpGuard"] = DyingGuard
app = example.app
