"""What befalls a local stack: processes and servers are killed or suspended, wires are poisoned."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from tenure.cli.chaos import records
from tenure.cli.chaos.plan import Planned, deal
from tenure.cli.chaos.wires import Poison, Wires
from tenure.cli.local import processes
from tenure.cli.local.programs import Program
from tenure.cli.local.stack import Stack

LOOK_SECONDS: Final = 0.05
MIDDLE_SECONDS: Final = 0.5
"""So long has a handler run that is struck: what it does first it has probably done."""
PATIENCE_SECONDS: Final = 2.0
"""How long one is looked for that has."""


class Server(Protocol):
    """A private server, as this module uses it."""

    @property
    def running(self) -> bool: ...

    def kill(self) -> None: ...


class Act(StrEnum):
    """What may happen. Suspensions, and all poison but a cut, end after a while."""

    KILL_EXECUTOR = "kill an executor in the middle of its work"
    SUSPEND_EXECUTOR = "suspend an executor in the middle of its work"
    KILL_COORDINATOR = "kill the coordinator"
    KILL_RELAY = "kill the relay"
    KILL_DATABASE = "kill the database"
    KILL_BROKER = "kill the broker"
    CUT = Poison.CUT.value
    SLOW = Poison.SLOW.value
    FREEZE = Poison.FREEZE.value
    DROP_ANSWERS = Poison.DROP_ANSWERS.value
    HALF_OPEN = Poison.HALF_OPEN.value


DECK: Final = {
    Act.KILL_EXECUTOR: 7,
    Act.SUSPEND_EXECUTOR: 4,
    Act.KILL_COORDINATOR: 2,
    Act.KILL_RELAY: 2,
    Act.KILL_DATABASE: 1,
    Act.KILL_BROKER: 1,
    Act.CUT: 2,
    Act.SLOW: 2,
    Act.FREEZE: 2,
    Act.DROP_ANSWERS: 2,
    Act.HALF_OPEN: 2,
}
"""Mostly what interrupts handlers: that is what is on trial."""


def plan(
    chance: random.Random, *, seconds: float, every_seconds: float, longest_seconds: float
) -> list[Planned]:
    """All strikes of a run. The first one kills an executor in its work, however short the run."""
    dealt = deal(
        chance,
        DECK,
        every_seconds=every_seconds,
        seconds=seconds,
        victims=6,
        longest_seconds=longest_seconds,
    )
    return [Planned(0.0, Act.KILL_EXECUTOR, chance.randrange(6), 0.0), *dealt[1:]]


class Storm:
    """Carries a plan out. ``done``: how often what happened; ``kills``: whom we killed."""

    def __init__(
        self,
        stack: Stack,
        wires: Wires,
        executors: Sequence[str],
        say: Callable[[str, str], None],
    ) -> None:
        self.done: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self._stack = stack
        self._wires = wires
        self._executors = list(executors)
        self._say = say
        self._busy: set[str] = set()
        self.calm = asyncio.Event()
        """Set when nothing is left to be done: nobody is at work any more."""

    async def rage(self, planned: Sequence[Planned]) -> None:
        """Until everything has happened, and is over. Cancelled it leaves nothing suspended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for one in planned:
                await asyncio.sleep(max(0.0, began + one.at_seconds - loop.time()))
                group.create_task(self._strike(one))

    async def _strike(self, one: Planned) -> None:
        act = Act(one.act)
        match act:
            case Act.KILL_EXECUTOR:
                victim = await self._at_work(one.victim)
                if victim is None or not self._kill(victim):
                    return
            case Act.SUSPEND_EXECUTOR:
                victim = await self._at_work(one.victim)
                if victim is None:
                    return
                await self._alone(victim.name, self._suspend(victim, one.seconds))
            case Act.KILL_COORDINATOR | Act.KILL_RELAY:
                name = "coordinator" if act is Act.KILL_COORDINATOR else "relay"
                if not self._kill(self._stack.processes[name]):
                    return
            case Act.KILL_DATABASE:
                self._kill_server("postgres", self._stack.postgres)
            case Act.KILL_BROKER:
                self._kill_server("rabbitmq", self._stack.rabbitmq)
            case _:
                wire = list(self._wires.urls)[one.victim % len(self._wires.urls)]
                if wire in self._busy:
                    return
                await self._alone(wire, self._wires.poison(wire, Poison(act.value), one.seconds))
                self._say("chaos", f"{act.value}: {wire}")
        self.done[act.value] += 1

    async def _alone(self, name: str, striking: Awaitable[None]) -> None:
        self._busy.add(name)
        try:
            await striking
        finally:
            self._busy.discard(name)

    async def _at_work(self, first: int) -> Program | None:
        """The executor that was drawn, or the next one, that is in the middle of a handler; None:
        it is over. Handlers that never take so long are struck at any instant of theirs."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not self.calm.is_set():
            seconds = MIDDLE_SECONDS if loop.time() - began < PATIENCE_SECONDS else 0.0
            working = await records.nodes_at_work(self._stack.connection().database_url, seconds)
            for number in range(len(self._executors)):
                name = self._executors[(first + number) % len(self._executors)]
                program = self._stack.processes[name]
                if name in working - self._busy and program.pid is not None:
                    return program
            await asyncio.sleep(LOOK_SECONDS)
        return None

    def _kill(self, program: Program) -> bool:
        """False where it does not run: it was killed a moment ago."""
        pid = program.pid
        if pid is None:
            return False
        processes.send(pid, signal.SIGKILL)
        self.kills[program.name] += 1
        self._say("chaos", f"{program.name} is killed")
        return True

    def _kill_server(self, name: str, server: Server) -> None:
        if server.running:
            server.kill()
            self.kills[name] += 1
            self._say("chaos", f"{name} is killed")

    async def _suspend(self, program: Program, seconds: float) -> None:
        pid = program.pid
        if pid is None:
            return
        self._say("chaos", f"{program.name} is suspended for {seconds:.1f} s")
        processes.send(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            if program.pid == pid:
                processes.send(pid, signal.SIGCONT)
