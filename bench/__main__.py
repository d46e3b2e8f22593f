"""``make bench``: Tenure measured, beside its peers where there are any.

The pieces, each with servers of its own; ``--only`` runs some of them:

end-to-end   tasks a second and processor time a task, beside FastStream, Dramatiq, Celery,
             Procrastinate and DBOS
latency      from submission to handler at a steady rate, beside the same
relay        confirmed publishes a second from a prepared log, beside a C client
memory       of every process: idle, under full load, and of the relay with a large backlog

Each prints its table and the line about the machine, and writes a JSON file of its own.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import end_to_end, latency, memory, relay, report
from bench.stack import PEERS

Figures = tuple[str, Mapping[str, Sequence[Any]], str]
"""The machine, what was measured by name, and the table."""


async def _end_to_end(directory: Path, arguments: argparse.Namespace) -> Figures:
    machine, runs = await end_to_end.measure(
        directory, arguments.peers, arguments.tasks, arguments.rounds
    )
    return machine, {"runs": runs}, report.end_to_end(runs, os.cpu_count() or 1)


async def _latency(directory: Path, arguments: argparse.Namespace) -> Figures:
    machine, found, on_the_way = await latency.measure(
        directory, arguments.peers, arguments.seconds, arguments.rounds
    )
    table = f"{report.latency(found)}\n\n{report.stages(on_the_way)}"
    return machine, {"latencies": found, "stages": on_the_way}, table


async def _relay(directory: Path, arguments: argparse.Namespace) -> Figures:
    machine, runs = await relay.measure(
        directory, arguments.relay_rows, arguments.rounds, arguments.relays
    )
    return machine, {"runs": runs}, report.relay(runs)


async def _memory(directory: Path, arguments: argparse.Namespace) -> Figures:
    machine, held, rates, drained = await memory.measure(
        directory, arguments.load_seconds, arguments.backlog_rows
    )
    table = f"{report.memory(held)}\n\n{report.load(rates)}\n\nThe backlog:\n\n"
    found: dict[str, Sequence[Any]] = {
        "held": held,
        "drained": [drained],
        "load": [{"handled_per_second": rate} for rate in rates],
    }
    return machine, found, table + report.relay([drained])


PIECES: Final[Mapping[str, Callable[[Path, argparse.Namespace], Coroutine[Any, Any, Figures]]]] = {
    "end-to-end": _end_to_end,
    "latency": _latency,
    "relay": _relay,
    "memory": _memory,
}


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(
        prog="make bench", description="Measure Tenure, beside its peers."
    )
    parser.add_argument("--only", nargs="+", choices=PIECES, default=list(PIECES), help="pieces")
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=list(PEERS), help="beside whom"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of everything but memory")
    parser.add_argument("--tasks", type=int, default=5000, help="of each end-to-end run")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each latency run")
    parser.add_argument("--relay-rows", type=int, default=100_000, help="of each relay run")
    parser.add_argument("--relays", type=int, default=1, help="beside one: so many at once")
    parser.add_argument("--load-seconds", type=float, default=60.0, help="of the load for memory")
    parser.add_argument("--backlog-rows", type=int, default=1_000_000, help="for the memory")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="folder for JSON")
    return parser.parse_args(words)


def main() -> None:
    """Measure the pieces one after the other; prints and writes what each finds."""
    arguments = parsed()
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
            directory = Path(folder)
            directory.chmod(0o711)  # the server may run under another account
            machine, found, table = uvloop.run(PIECES[name](directory, arguments))
        print(f"\n{machine}\n\n{table}\n", flush=True)
        figures = {what: [_plain(one) for one in several] for what, several in found.items()}
        file = arguments.output / f"{name}.json"
        file.write_text(json.dumps({"machine": machine, **figures}, indent=1) + "\n")
        print(f"written to {file}", flush=True)


def _plain(one: Any) -> Any:
    return one if isinstance(one, dict) else asdict(one)


if __name__ == "__main__":
    main()
