"""Queues that are there and of no use: of nodes that cannot consume them, and without a leader.

A quorum queue whose broker was killed within a moment of its declaration may come back without a
leader: it can be declared and deleted, and nothing else. So is one whose majority is away, for as
long as it is.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from tenure.contract.broker_report import Fitness, TopologyFinding

log = structlog.get_logger()

LOOK_SECONDS: Final = 30.0
"""How often queues are looked at whose messages nobody sends again by himself."""


class Lonely:
    """Queues of nodes without a consumer, and since when. One node that is heard all the while
    cannot consume."""

    def __init__(self, seconds: float) -> None:
        """``seconds``: for how long a queue is given time."""
        self._seconds = seconds
        self._since: dict[str, float] = {}

    def seen(self, queue: str, consumers: int) -> None:
        """As it was declared now."""
        if consumers:
            self._since.pop(queue, None)
        else:
            self._since.setdefault(queue, asyncio.get_running_loop().time())

    def forget(self, queue: str) -> None:
        """Begin anew with it, or nothing is known of it."""
        self._since.pop(queue, None)

    def due(self, queues: Mapping[str, bool]) -> list[str]:
        """Those whose time is over, among the ``queues`` that must exist."""
        now = asyncio.get_running_loop().time()
        self._since = {queue: since for queue, since in self._since.items() if queues.get(queue)}
        return [queue for queue, since in self._since.items() if now - since >= self._seconds]

    def __contains__(self, queue: str) -> bool:
        return queue in self._since


class SilenceWatch:
    """Looks at the queues of subscriptions and at the dead-letter queue, which nobody makes anew
    without being asked: what is in them may be nowhere else."""

    def __init__(
        self,
        look: Callable[[], Awaitable[Sequence[TopologyFinding]]],
        *,
        passing: tuple[type[Exception], ...],
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """``look`` examines them; it raises what is ``passing`` while the broker is away."""
        self._look = look
        self._passing = passing
        self._look_seconds = look_seconds
        self._silent: frozenset[str] = frozenset()

    @property
    def silent(self) -> Collection[str]:
        """Those that did not answer when they were looked at last."""
        return self._silent

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds * random.uniform(0.8, 1.2))
            try:
                findings = await self._look()
            except self._passing as error:
                log.debug("the broker's queues cannot be looked at", error=str(error))
            else:
                self._compare(findings)

    def _compare(self, findings: Sequence[TopologyFinding]) -> None:
        silent = {one.name: one for one in findings if one.fitness is Fitness.SILENT}
        for name in silent.keys() - self._silent:
            log.warning("queue does not answer", queue=name, next_step=silent[name].next_step)
        for name in self._silent - silent.keys():
            log.info("queue answers again", queue=name)
        self._silent = frozenset(silent)
