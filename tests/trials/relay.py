"""A relay that can be told to die with publishes in flight: SIGUSR1, and it kills itself behind a
publish of which it has written the frames and seen no confirm.

``READY`` is a file that grows by a line with each process that has moved a cursor, so that each
life brings the whole a step on; ``STRUCK`` one that grows with each such end: the process, and how
many publishes had no answer.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

from tenure.contract.faultpoints import FaultPoint
from tenure.relay import app
from tenure.relay.config import load_settings

READY: Final = "TRIAL_READY"
STRUCK: Final = "TRIAL_STRUCK"


class WhenTold:
    """Fault points that strike once it was said."""

    parts: app.Parts

    def __init__(self, ready: Path, struck: Path) -> None:
        self.told = False
        self._moved = False
        self._ready = ready
        self._struck = struck

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        """Ends the process behind a publish, if any of it has no answer."""
        if point is FaultPoint.AFTER_CURSOR_MOVE and not self._moved:
            self._moved = True
            _note(self._ready)
        if not self.told or point is not FaultPoint.AFTER_PUBLISH:
            return
        for _ in range(3):  # aiormq's writer gets its turn
            await asyncio.sleep(0)
        session = self.parts.publisher._session
        if session is None or not session.pending or session.blocked:
            return
        self._end(len(session.pending))

    def _end(self, in_flight: int) -> None:
        _note(self._struck, in_flight)
        os.kill(os.getpid(), signal.SIGKILL)


def _note(path: Path, *more: int) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(" ".join(str(one) for one in (os.getpid(), *more)) + "\n")


async def main() -> None:
    """Until SIGTERM, or the strike."""
    settings = load_settings()
    app.configure_logging(settings)
    faults = WhenTold(Path(os.environ[READY]), Path(os.environ[STRUCK]))
    faults.parts = parts = app.build(settings, faults)
    stop = asyncio.Event()

    def asked_to_stop() -> None:
        stop.set()
        parts.wake.set()

    def asked_to_die() -> None:
        faults.told = True

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, asked_to_stop)
    loop.add_signal_handler(signal.SIGUSR1, asked_to_die)
    await parts.work(stop)


if __name__ == "__main__":
    asyncio.run(main())
