"""Fault points that strike: each strike waits for its point and then acts, once.

Whoever watches from outside reads ``SIGN`` in the strike's folder, which is there before the act.
Several processes may share a folder: then one of them is struck, whichever comes first.
"""

import asyncio
import json
import os
import signal
import threading
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from tenure.contract.faultpoints import FaultPoint

SIGN: Final = "reached.json"
GO: Final = "go"
LOOK_SECONDS: Final = 0.01


class Act(StrEnum):
    """What happens at the point."""

    KILL = "kill"  # SIGKILL to itself
    STOP = "stop"  # SIGSTOP to itself, until somebody continues it
    RAISE = "raise"  # StruckError
    WAIT = "wait"  # stands still there, everything else goes on, until GO is in the folder


class StruckError(Exception):
    """Raised at a point that was told to raise."""


@dataclass(frozen=True)
class Reached:
    """The sign: which process got there, with what."""

    pid: int
    point: str
    subject: str


@dataclass(frozen=True)
class Strike:
    """``act`` the ``nth`` time that ``point`` is reached (with ``subject``, where one is given)."""

    point: FaultPoint
    act: Act
    folder: Path
    nth: int = 1
    subject: str | None = None

    @classmethod
    def from_json(cls, text: str) -> Self:
        """As ``as_json`` wrote it. Raises ValueError, KeyError or TypeError for anything else."""
        fields = json.loads(text)
        return cls(
            FaultPoint(fields["point"]),
            Act(fields["act"]),
            Path(fields["folder"]),
            int(fields["nth"]),
            fields["subject"],
        )

    def as_json(self) -> str:
        """For a child's environment."""
        return json.dumps(asdict(self), default=str)

    def sign(self) -> Reached | None:
        """What was written when the point was reached; None before."""
        try:
            text = (self.folder / SIGN).read_text("utf-8")
        except FileNotFoundError:
            return None
        return Reached(**json.loads(text)) if text.endswith("\n") else None

    def go(self) -> None:
        """Let what waits at the point go on."""
        (self.folder / GO).touch()


class Armed:
    """FaultPoints with one strike."""

    def __init__(self, strike: Strike) -> None:
        self._strike = strike
        self._left = strike.nth

    async def reach(self, point: FaultPoint, subject: str = "") -> None:
        """Strike when it is time. Raises StruckError."""
        strike = self._strike
        if point is not strike.point or strike.subject not in (None, subject) or self._left <= 0:
            return
        self._left -= 1
        if self._left or not self._leave_sign(subject):
            return
        match strike.act:
            case Act.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Act.STOP:
                # To this thread, so that it stops in here and not some instructions later.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case Act.RAISE:
                raise StruckError(f"struck at {point}")
            case Act.WAIT:
                while not (strike.folder / GO).exists():  # noqa: ASYNC110 - another process's act
                    await asyncio.sleep(LOOK_SECONDS)

    def _leave_sign(self, subject: str) -> bool:
        """False when somebody else was struck before."""
        try:
            with (self._strike.folder / SIGN).open("x", encoding="utf-8") as file:
                json.dump(asdict(Reached(os.getpid(), self._strike.point, subject)), file)
                file.write("\n")
        except FileExistsError:
            return False
        return True
