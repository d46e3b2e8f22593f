"""The arithmetic of the figures: nothing here measures."""

import itertools
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence


def percentile(values: Iterable[float], percent: int) -> float:
    """The value that ``percent`` of a hundred values lie below. Raises IndexError without values.

    No interpolation: it is one of the values.
    """
    ordered = sorted(values)
    return ordered[len(ordered) * percent // 100]


def each(values: Sequence[float], form: str = ",.0f") -> str:
    """The median, and every value in the order in which they were measured."""
    return f"{statistics.median(values):{form}} ({' '.join(f'{one:{form}}' for one in values)})"


def medians(maps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name, the median over maps that have the same names."""
    return {name: statistics.median(one[name] for one in maps) for name in maps[0]}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours as a share of theirs, round by round: what disturbs a round disturbs both."""
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def spent_between(
    before: Mapping[str, float], after: Mapping[str, float], busy: float
) -> tuple[dict[str, float], float]:
    """Seconds that each process used, and what of ``busy`` seconds others used.

    Clocks of processes and machine are read one after the other, so the rest may come out below
    zero on a quiet machine; it is zero then.
    """
    used = {name: after[name] - before[name] for name in before}
    return used, max(0.0, busy - sum(used.values()))


def passed(positions: Mapping[int, Sequence[int]], cursors: Mapping[int, int]) -> int:
    """How many rows lie at or before the cursor of their shard. ``positions``: of each shard,
    ascending."""
    return sum(bisect_right(rows, cursors[shard]) for shard, rows in positions.items())


def quarter_medians(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the second and of the last quarter: what still grows differs in them.

    The first quarter is left out, since caches and pools fill then.
    """
    size = len(values)
    second = values[size // 4 : max(size // 2, size // 4 + 1)]
    last = values[min(size * 3 // 4, size - 1) :]
    return statistics.median(second), statistics.median(last)


def rates(looks: Sequence[tuple[float, int]], parts: int) -> list[float]:
    """How many a second in each of so many equal parts of the looks: (seconds, how many by then).

    Empty when there are fewer looks than that.
    """
    if len(looks) <= parts:
        return []
    edges = [looks[number * (len(looks) - 1) // parts] for number in range(parts + 1)]
    return [
        (count - before) / (at - since)
        for (since, before), (at, count) in itertools.pairwise(edges)
    ]
