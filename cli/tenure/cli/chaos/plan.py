"""When what befalls whom: dealt from a deck, by a seed."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

ActT = TypeVar("ActT", bound=StrEnum)


@dataclass(frozen=True)
class Planned:
    """One strike: when, what, whom, and for how long where it has an end."""

    at_seconds: float
    act: str
    victim: int
    seconds: float


def deal(
    chance: random.Random,
    deck: Mapping[ActT, int],
    *,
    every_seconds: float,
    seconds: float,
    victims: int,
    longest_seconds: float,
) -> list[Planned]:
    """Strikes over ``seconds``, one about ``every_seconds``. ``deck``: how many of each act. It is
    shuffled again and again, so that every run has some of each, and each of ``victims`` suffers an
    act before any suffers it again."""
    planned: list[Planned] = []
    cards: list[ActT] = []
    dealt = {act: chance.randrange(victims) for act in deck}
    for at in instants(chance, every_seconds, seconds):
        if not cards:
            cards = chance.sample(list(deck), sum(deck.values()), counts=list(deck.values()))
        act = cards.pop()
        dealt[act] += 1
        planned.append(Planned(at, act, dealt[act], chance.uniform(0.5, longest_seconds)))
    return planned


def instants(chance: random.Random, every_seconds: float, seconds: float) -> list[float]:
    """One in each interval of ``every_seconds``, at random in it."""
    number = max(0, round(seconds / every_seconds))
    return [every_seconds * (n + chance.random()) for n in range(number)]
