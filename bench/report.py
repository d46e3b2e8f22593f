"""The figures as Markdown, a table for each piece."""

from collections.abc import Mapping, Sequence

from bench.end_to_end import Run
from bench.figures import each, medians, ratios
from bench.latency import RATE, Latency
from bench.memory import Held
from bench.relay import C_CLIENT, RELAY, Drained
from bench.stack import TENURE
from bench.stages import Stage


def end_to_end(runs: Sequence[Run], cores: int) -> str:
    """Rates, ratios and costs; what so many cores allow at these costs, if nothing else ran."""
    lines = [
        "| side | handled/s (each run) | settled/s (each run) | idle sides' cores | others' |",
        "|---|---|---|---|---|",
    ]
    sides = {side: [run for run in runs if run.side == side] for side in _sides(runs)}
    for side, own in sides.items():
        handled = each([run.handled_per_second for run in own])
        settled = each([run.settled_per_second for run in own])
        idle = each([run.idle_sides_cores for run in own], ".2f")
        others = each([run.other_cores for run in own], ".2f")
        lines.append(f"| {side} | {handled} | {settled} | {idle} | {others} |")
    rates = {side: [run.settled_per_second for run in own] for side, own in sides.items()}
    ours = rates.pop(TENURE)
    if rates:
        lines += ["", "Settled tasks/s of Tenure as a share of each peer's, round by round:"]
        lines += [
            f"- {peer}: {each(ratios(ours, theirs), '.2f')}" for peer, theirs in rates.items()
        ]
    lines += ["", *_costs("task", sides), ""]
    for side, own in sides.items():
        cost = sum(medians([run.core_microseconds for run in own]).values())
        lines.append(f"- {side}: {cores} cores to itself allow at most {cores / cost * 1e6:,.0f}/s")
    return "\n".join(lines)


def latency(found: Sequence[Latency]) -> str:
    """Percentiles, round by round."""
    lines = [
        f"| latency at {RATE} tasks/s | p50 ms | p95 | p99 | samples a round | others' cores |",
        "|---|---|---|---|---|---|",
    ]
    sides = {side: [one for one in found if one.side == side] for side in _sides(found)}
    for side, own in sides.items():
        cells = [
            each([one.p50 for one in own], ".1f"),
            each([one.p95 for one in own], ".1f"),
            each([one.p99 for one in own], ".1f"),
            str(own[0].samples),
            each([one.other_cores for one in own], ".2f"),
        ]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    lines += ["", *_costs("task", sides)]
    return "\n".join(lines)


def stages(on_the_way: Sequence[Stage]) -> str:
    """Where the time of Tenure goes, over all rounds."""
    lines = ["| stage of a task in Tenure | p50 ms | p95 |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.p50:.1f} | {one.p95:.1f} |" for one in on_the_way]
    return "\n".join(lines)


def relay(runs: Sequence[Drained]) -> str:
    """Rates of the relay and of the C client, and what they cost."""
    lines = [
        "| publisher | messages | confirmed/s (each run) | its cores | others' cores |",
        "|---|---|---|---|---|",
    ]
    sides = {side: [run for run in runs if run.side == side] for side in _sides(runs)}
    for side, own in sides.items():
        cells = [
            f"{own[0].messages:,}",
            each([one.per_second for one in own]),
            each([one.cores for one in own], ".2f"),
            each([one.other_cores for one in own], ".2f"),
        ]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    if {RELAY, C_CLIENT} <= sides.keys():
        rates = ([one.per_second for one in sides[side]] for side in (RELAY, C_CLIENT))
        share = each(ratios(*rates), ".2f")
        lines += ["", f"The relay as a share of the C client, round by round: {share}"]
    lines += ["", *_costs("message", sides)]
    return "\n".join(lines)


def memory(held: Sequence[Held]) -> str:
    """What was resident."""
    lines = [
        "| resident, MiB | when | most | second quarter | last quarter |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.process} | {one.when} | {one.most:.0f} | {one.second_quarter:.0f}"
        f" | {one.last_quarter:.0f} |"
        for one in held
    ]
    return "\n".join(lines)


def load(rates: Sequence[float]) -> str:
    """Whether the rate under full load stays."""
    return f"Tasks/s under full load, part by part of the time: {each(rates) if rates else 'none'}"


def _costs(
    unit: str,
    sides: Mapping[str, Sequence[Run]]
    | Mapping[str, Sequence[Latency]]
    | Mapping[str, Sequence[Drained]],
) -> list[str]:
    """Processor time by process, medians over the rounds."""
    costs = {side: medians([run.core_microseconds for run in own]) for side, own in sides.items()}
    names = list(dict.fromkeys(name for cost in costs.values() for name in cost))
    lines = [
        f"| processor time a {unit}, microseconds | {' | '.join(names)} | all |",
        "|---" * (len(names) + 2) + "|",
    ]
    for side, cost in costs.items():
        cells = [f"{cost[name]:.0f}" if name in cost else "" for name in names]
        lines.append(f"| {side} | {' | '.join(cells)} | {sum(cost.values()):.0f} |")
    return lines


def _sides(found: Sequence[Run] | Sequence[Latency] | Sequence[Drained]) -> list[str]:
    """In the order in which they took their turns."""
    return list(dict.fromkeys(one.side for one in found))
