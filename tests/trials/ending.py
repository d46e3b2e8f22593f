"""The end of a trial that is told to stop. SIGTERM and SIGINT end it as its own end would: what it
started, servers too, goes with it."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(trial: Coroutine[Any, Any, int]) -> int:
    """Run a trial to its end; its exit status. Told to stop it is cancelled, and the status is 128
    and the signal's number, as shells count. Told again it is cancelled again, wherever it is.

    The signals are listened to whatever was set before: ``nohup``, and a shell without job control,
    start programs that ignore SIGINT.
    """
    return asyncio.run(_until_told(trial))


async def _until_told(trial: Coroutine[Any, Any, int]) -> int:
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(trial)
    told: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        told.append(number)
        print(f"told to stop by {number.name}", file=sys.stderr, flush=True)
        running.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    await asyncio.wait({running})
    if not told:
        return running.result()
    if not running.cancelled() and (error := running.exception()) is not None:
        print(f"it ended with {error!r}", file=sys.stderr, flush=True)
    return 128 + told[0]
