"""What befalls the processes of a trial: drawn from a seed, and carried out one after another."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tenure.cli.chaos.plan import Planned
from tests.trials.balancer import Balancer
from tests.trials.processes import Program

DECK: Final = {
    "kill an executor": 9,
    "kill a coordinator": 5,
    "suspend an executor": 2,
    "cut an executor off": 2,
    "suspend a coordinator": 2,
}
"""Strikes are dealt from it, shuffled again and again, so that every run has some of each."""
KILLS: Final = frozenset({"kill an executor", "kill a coordinator"})


def plan(
    chance: random.Random,
    *,
    seconds: float,
    kills: int,
    executors: int,
    coordinators: int,
    lease_seconds: float,
) -> list[Planned]:
    """Strikes over ``seconds`` among which are ``kills``. What is suspended or cut off stays so for
    about as long as a lease: some come back in time."""
    planned: list[tuple[str, int, float]] = []
    cards: list[str] = []
    while sum(act in KILLS for act, _, _ in planned) < kills:
        if not cards:
            cards = chance.sample(list(DECK), sum(DECK.values()), counts=list(DECK.values()))
        act = cards.pop()
        victims = coordinators if act.endswith("coordinator") else executors
        lasting = lease_seconds * chance.uniform(0.5, 2.0)
        planned.append((act, chance.randrange(victims), lasting))
    return [
        Planned(seconds * (number + chance.random()) / len(planned), *one)
        for number, one in enumerate(planned)
    ]


@dataclass
class Storm:
    """Carries a plan out. ``done``: how often which strike hit something that ran."""

    executors: Sequence[Program]
    coordinators: Sequence[Program]
    balancer: Balancer
    done: Counter[str] = field(default_factory=Counter)

    async def rage(self, planned: Sequence[Planned]) -> None:
        """Until everything has befallen them, and is over."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for one in planned:
                await _until(began + one.at_seconds)
                group.create_task(self._strike(one, await self._victim(one)))

    async def _strike(self, one: Planned, victim: Program) -> None:
        self.done[one.act] += 1
        match one.act:
            case "kill an executor" | "kill a coordinator":
                victim.kill()
            case "suspend an executor":
                await victim.suspend()
                await asyncio.sleep(one.seconds)
                victim.resume()
            case "cut an executor off":
                self.balancer.cut(victim.name)
                await asyncio.sleep(one.seconds)
                self.balancer.mend(victim.name)
            case "suspend a coordinator":
                port = self.balancer.ports[self.coordinators.index(victim)]
                await victim.suspend()
                self.balancer.suspend(port)
                await asyncio.sleep(one.seconds)
                self.balancer.resume(port)
                victim.resume()

    async def _victim(self, one: Planned) -> Program:
        """The one that was drawn, or the next that is at work: to kill what has not begun to work
        is nothing. On a slow machine a plan takes longer."""
        programs = self.coordinators if one.act.endswith("coordinator") else self.executors
        while True:
            for number in range(len(programs)):
                program = programs[(one.victim + number) % len(programs)]
                if self._works(program):
                    return program
            await asyncio.sleep(0.05)

    def _works(self, program: Program) -> bool:
        who: str | int = program.name
        if program in self.coordinators:
            who = self.balancer.ports[self.coordinators.index(program)]
        return (
            program.runs
            and not program.suspended
            and who not in self.balancer.cut_off
            and self.balancer.serves_since(who, program.started_at)
        )


async def _until(instant: float) -> None:
    await asyncio.sleep(max(0.0, instant - asyncio.get_running_loop().time()))
