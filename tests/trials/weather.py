"""Carries a plan of chaos out."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tenure.cli.chaos.plan import Planned
from tenure.cli.chaos.wires import Poison
from tenure.cli.local import processes
from tests.trials.chaos_plan import Act
from tests.trials.chaos_stack import Stack
from tests.trials.processes import Program

REPUBLISHING: Final = frozenset({Act.SUSPEND_RELAY, Act.KILL_DATABASE, Act.RESTART_BROKER,
                                 Act.SUSPEND_BROKER})  # fmt: skip
"""What makes relays publish again what they had published, for each of them once at most; so does
poison on their wires."""


@dataclass
class Weather:
    """``done``: how often what happened; ``poisoned``: the same by wire."""

    stack: Stack
    say: Callable[[str], None]
    done: Counter[str] = field(default_factory=Counter)
    poisoned: Counter[str] = field(default_factory=Counter)
    republishing: int = 0
    _busy: set[str] = field(default_factory=set)
    _told: set[int] = field(default_factory=set)

    async def rage(self, planned: Sequence[Planned]) -> None:
        """Until everything has happened, and is over."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for one in planned:
                await asyncio.sleep(
                    max(0.0, began + one.at_seconds - asyncio.get_running_loop().time())
                )
                group.create_task(self._strike(one))

    async def _strike(self, one: Planned) -> None:
        act = Act(one.act)
        match act:
            case Act.KILL_RELAY:
                if not self._kill_relay():
                    return
            case Act.KILL_EXECUTOR:
                (await self._one_of(self.stack.executors, one.victim)).kill()
            case Act.KILL_COORDINATOR:
                (await self._one_of(self.stack.coordinators, one.victim)).kill()
            case Act.SUSPEND_RELAY:
                await self._suspend(self.stack.relays, one)
            case Act.SUSPEND_EXECUTOR:
                await self._suspend(self.stack.executors, one)
            case Act.SUSPEND_COORDINATOR:
                await self._suspend(self.stack.coordinators, one)
            case Act.KILL_DATABASE | Act.RESTART_BROKER | Act.SUSPEND_BROKER:
                if not await self._strike_server(act, one):
                    return
            case _:
                if not await self._poison(act, one):
                    return
        self.done[act.value] += 1
        self.republishing += act in REPUBLISHING

    def _kill_relay(self) -> bool:
        """Of those that hear it, the one that has lived longest; False when there is none. Waiting
        for one would end each relay as soon as it is of use."""
        ready = [pid for pid in self.stack.relays_ready() if pid not in self._told]
        living = {relay.pid: relay for relay in self.stack.relays
                  if relay.runs and not relay.suspended}  # fmt: skip
        for pid in ready:
            if pid in living:
                self._told.add(pid)
                living[pid].end_by(signal.SIGUSR1)
                return True
        return False

    async def _suspend(self, programs: Sequence[Program], one: Planned) -> None:
        victim = await self._one_of(programs, one.victim)
        await victim.suspend()
        await asyncio.sleep(one.seconds)
        victim.resume()

    async def _one_of(self, programs: Sequence[Program], first: int) -> Program:
        """The one that was drawn, or the next that runs."""
        while True:
            for number in range(len(programs)):
                program = programs[(first + number) % len(programs)]
                if program.runs and not program.suspended:
                    return program
            await asyncio.sleep(0.05)

    async def _strike_server(self, act: Act, one: Planned) -> bool:
        """False when the server is being struck already."""
        name = "database" if act is Act.KILL_DATABASE else "broker"
        if name in self._busy:
            return False
        self._busy.add(name)
        servers = self.stack.servers
        try:
            match act:
                case Act.KILL_DATABASE:
                    servers.postgres.kill()
                    await asyncio.sleep(one.seconds / 4)
                    await servers.postgres.start()
                case Act.RESTART_BROKER:
                    servers.rabbitmq.kill()
                    await servers.rabbitmq.start()
                case _:
                    pid = servers.rabbitmq.pid
                    processes.send(pid, signal.SIGSTOP)
                    await asyncio.sleep(one.seconds)
                    processes.send(pid, signal.SIGCONT)
        finally:
            self._busy.discard(name)
        self.say(f"{act.value}: over")
        return True

    async def _poison(self, act: Act, one: Planned) -> bool:
        """False when that wire is poisoned already."""
        names = list(self.stack.wires.urls)
        name = names[one.victim % len(names)]
        if name in self._busy:
            return False
        self._busy.add(name)
        try:
            await self.stack.wires.poison(name, Poison(act.value), one.seconds)
        finally:
            self._busy.discard(name)
        self.poisoned[f"{act.value}: {name}"] += 1
        self.republishing += name.startswith("relay")
        return True
