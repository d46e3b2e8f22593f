"""What befalls processes, servers and the wires between them: drawn from a seed."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure.cli.chaos.plan import Planned, deal, instants
from tenure.cli.chaos.wires import Poison


class Act(StrEnum):
    """What may happen. Those of the second half end by themselves, after a while."""

    KILL_RELAY = "kill a relay with publishes in flight"
    KILL_EXECUTOR = "kill an executor"
    KILL_COORDINATOR = "kill a coordinator"
    CUT = Poison.CUT.value
    KILL_DATABASE = "kill the database"
    RESTART_BROKER = "kill the broker"

    SUSPEND_RELAY = "suspend a relay"
    SUSPEND_EXECUTOR = "suspend an executor"
    SUSPEND_COORDINATOR = "suspend a coordinator"
    SUSPEND_BROKER = "suspend the broker"
    SLOW = Poison.SLOW.value
    FREEZE = Poison.FREEZE.value
    DROP_ANSWERS = Poison.DROP_ANSWERS.value
    HALF_OPEN = Poison.HALF_OPEN.value


DECK: Final = {
    Act.KILL_EXECUTOR: 3,
    Act.KILL_COORDINATOR: 3,
    Act.SUSPEND_RELAY: 4,
    Act.SUSPEND_EXECUTOR: 2,
    Act.SUSPEND_COORDINATOR: 2,
    Act.SUSPEND_BROKER: 1,
    Act.SLOW: 8,
    Act.CUT: 8,
    Act.FREEZE: 8,
    Act.DROP_ANSWERS: 8,
    Act.HALF_OPEN: 8,
    Act.KILL_DATABASE: 2,
    Act.RESTART_BROKER: 1,
}
"""Dealt from, shuffled again and again, so that every run has some of each. Five kinds of poison,
eight wires."""
LONGEST_SECONDS: Final = 4.0
CALM_SECONDS: Final = 5.0
"""Nothing begins so shortly before the end that it would last beyond it."""


@dataclass(frozen=True)
class Odds:
    """How dense a plan is."""

    relay_kill_every_seconds: float
    other_every_seconds: float


def plan(chance: random.Random, odds: Odds, *, seconds: float, wires: int) -> list[Planned]:
    """All strikes of a run, in the order in which they begin."""
    planned = [
        Planned(at, Act.KILL_RELAY, 0, 0.0)
        for at in instants(chance, odds.relay_kill_every_seconds, seconds)
    ]
    planned += deal(
        chance,
        DECK,
        every_seconds=odds.other_every_seconds,
        seconds=seconds - CALM_SECONDS,
        victims=wires,
        longest_seconds=LONGEST_SECONDS,
    )
    return sorted(planned, key=lambda one: one.at_seconds)
