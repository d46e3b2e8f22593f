"""Carries a plan of chaos out."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tenure.cli.local import processes
from tests.support.toxic import Side, ToxicProxy
from tests.trials.chaos_plan import Act
from tests.trials.chaos_stack import Stack
from tests.trials.processes import Program
from tests.trials.strikes import Planned

SLOW_SECONDS: Final = 0.15
"""What a slow wire adds to each direction."""
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
                await self._kill_relay(one)
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

    async def _kill_relay(self, one: Planned) -> None:
        """One that hears it, and was not told before."""
        while True:
            ready = self.stack.relays_ready() - self._told
            for number in range(len(self.stack.relays)):
                victim = self.stack.relays[(one.victim + number) % len(self.stack.relays)]
                if victim.runs and not victim.suspended and victim.pid in ready:
                    self._told.add(victim.pid)
                    victim.end_by(signal.SIGUSR1)
                    return
            await asyncio.sleep(0.05)

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
        name = list(self.stack.wires)[one.victim % len(self.stack.wires)]
        if name in self._busy:
            return False
        self._busy.add(name)
        try:
            await _poison(self.stack.wires[name], act, one.seconds)
        finally:
            self._busy.discard(name)
        self.poisoned[f"{act.value}: {name}"] += 1
        self.republishing += name.startswith("relay")
        return True


async def _poison(wire: ToxicProxy, act: Act, seconds: float) -> None:
    directions = (wire.to_server, wire.to_client)
    match act:
        case Act.CUT:
            wire.cut()
        case Act.HALF_OPEN:
            wire.leave_half_open(Side.SERVER)
        case Act.FREEZE:
            wire.freeze()
            await asyncio.sleep(seconds)
            wire.thaw()
        case Act.SLOW:
            for direction in directions:
                direction.latency_seconds = SLOW_SECONDS
            await asyncio.sleep(seconds)
            for direction in directions:
                direction.latency_seconds = 0.0
        case Act.DROP_ANSWERS:
            wire.to_client.dropping = True
            await asyncio.sleep(seconds)
            with suppress(OSError):
                wire.cut()  # what follows would be read in the middle of something
            wire.to_client.dropping = False
