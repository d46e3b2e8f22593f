"""A relay that is killed when it is told to: ``python -m tenure.cli.drills.struck_relay FOLDER``.

It works as any other until there is a file ``ARM`` in the folder. Then it takes that away and kills
itself at the next instant at which the broker has confirmed something that no cursor says yet.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

from tenure.contract.faultpoints import FaultPoint

ARM: Final = "kill-after-confirm"


class KilledWhenTold:
    """FaultPoints of such a relay."""

    def __init__(self, folder: Path) -> None:
        self._arm = folder / ARM

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        """Implements FaultPoints."""
        if point is FaultPoint.AFTER_CONFIRM and self._arm.exists():
            self._arm.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path) -> None:
    """Run until SIGTERM, or killed."""
    from tenure.relay.app import run
    from tenure.relay.config import load_settings

    asyncio.run(run(load_settings(), KilledWhenTold(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
