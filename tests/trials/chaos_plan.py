"""What befalls processes, servers and the wires between them: drawn from a seed."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.trials.strikes import Planned
from tests.trials.wires import Poison


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
        for at in _instants(chance, odds.relay_kill_every_seconds, seconds)
    ]
    cards: list[Act] = []
    dealt = {act: chance.randrange(wires) for act in DECK}
    for at in _instants(chance, odds.other_every_seconds, seconds - CALM_SECONDS):
        if not cards:
            cards = chance.sample(list(DECK), sum(DECK.values()), counts=list(DECK.values()))
        act = cards.pop()
        dealt[act] += 1  # each wire is poisoned in each way before any is again
        planned.append(Planned(at, act, dealt[act], chance.uniform(0.5, LONGEST_SECONDS)))
    return sorted(planned, key=lambda one: one.at_seconds)


def _instants(chance: random.Random, every_seconds: float, seconds: float) -> list[float]:
    number = max(0, round(seconds / every_seconds))
    return [every_seconds * (n + chance.random()) for n in range(number)]
