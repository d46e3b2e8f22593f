"""``make chaos``: tasks at a steady rate, while relays die with publishes in flight, and every
process, every server and every wire between them is killed, suspended, cut, slowed, frozen or left
half open.

The books are kept by others than the relays: the log by the database, the arrivals by a witness at
the broker, the writes by the receiver downstream, the submissions by who made them. A run passes
when they agree: every committed event has arrived, in the order of its stream, with its bytes;
every task is done and its effect there once; no write was taken under a token lower than one
before. The seed decides what befalls whom and when; how the machine interleaves it is its own
affair. The last line of the output is JSON.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg

from tenure.client import AsyncClient
from tenure.coordinator.store.verify import verify
from tests.support import books
from tests.support.books import Ledger, Write, read_log
from tests.support.isolation import DatabaseServer, FreshDatabase
from tests.support.services import local_postgres, local_rabbitmq
from tests.trials import ending
from tests.trials.chaos_plan import Odds, plan
from tests.trials.chaos_stack import RELAY_ROWS, Servers, Stack, stack
from tests.trials.processes import logged_errors
from tests.trials.program import ROW, Work
from tests.trials.stack import token
from tests.trials.weather import Weather

EVENTS_A_TASK: Final = 6
"""Of a task that nothing befalls."""
RELAY_KILLS_A_SECOND: Final = 250 / 600
LEAST_SHARE: Final = 0.95
BACKLOG_SECONDS: Final = 30.0
"""How long the relays may take for what is left when the storm is over."""
DRAIN_SECONDS: Final = 120.0
"""How long the last tasks may."""
WITNESS_SECONDS: Final = 60.0
"""And the witness, for what is still in its queue."""
READY_SECONDS: Final = 60.0
PROGRESS_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 300.0
WORK_SECONDS: Final = 0.05
SUBMIT_EVERY_SECONDS: Final = 0.1
REQUESTS_AT_ONCE: Final = 16


@dataclass(frozen=True)
class Asked:
    """What a run is to be. ``rate``: events a second."""

    seed: int
    seconds: float
    rate: float
    strike_every_seconds: float = 3.0
    """Beside the relays' deaths."""

    @property
    def least_relay_kills(self) -> int:
        """Ten minutes have 250 at least; another length in proportion."""
        return int(self.seconds * RELAY_KILLS_A_SECOND)

    @property
    def odds(self) -> Odds:
        """Some relays die before they are ready to, or after the end."""
        return Odds(
            relay_kill_every_seconds=1 / (RELAY_KILLS_A_SECOND * 1.3),
            other_every_seconds=self.strike_every_seconds,
        )


class Submitter:
    """Submits at a rate, whatever becomes of it, and asks until it is answered. What it cannot send
    at once waits: a burst follows each outage."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger()
        self.offered = 0
        self._client = AsyncClient(url, token("shop"), retry_seconds=PATIENCE_SECONDS)
        self._turns = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def submit(self, *, each_second: float, seconds: float) -> None:
        """Returns when the last has been answered."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.TaskGroup() as group:
                while (now := loop.time() - began) < seconds:
                    due = int(now * each_second) + 1
                    group.create_task(self._some([f"key-{n}" for n in range(self.offered, due)]))
                    self.offered = due
                    await asyncio.sleep(SUBMIT_EVERY_SECONDS)
        finally:
            await self._client.close()

    async def _some(self, keys: list[str]) -> None:
        async with self._turns:
            handles = await self._client.submit_many(
                ROW, [Work(key=key, seconds=WORK_SECONDS) for key in keys], idempotency_keys=keys
            )
        for key, handle in zip(keys, handles, strict=True):
            self.ledger.answered(key, handle.task_id)


async def run(
    asked: Asked, servers: Servers, database: FreshDatabase, folder: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """One run; its figures, with ``faults``: what is wrong, and ``too_little``: where it falls
    short of what it takes to count, which may be the machine's fault."""
    loop = asyncio.get_running_loop()
    async with stack(servers, database, folder) as made:
        planned = plan(
            random.Random(asked.seed),
            asked.odds,
            seconds=asked.seconds,
            wires=len(made.wires.urls),
        )
        say(f"{len(planned)} strikes are planned")
        weather = Weather(made, say)
        submitter = Submitter(made.wires.urls["application to coordinator"])
        await _ready(made)
        telling = asyncio.create_task(_tell(made, weather, submitter, loop.time(), say))
        try:
            submitting = asyncio.create_task(
                submitter.submit(each_second=asked.rate / EVENTS_A_TASK, seconds=asked.seconds)
            )
            await asyncio.gather(weather.rage(planned), asyncio.sleep(asked.seconds))
            window_ended = time.time()
            over = loop.time()
            await submitting
            left = await _unfinished(made)
            backlog_seconds = await _backlog_gone(made, over)
            telling.cancel()
            for program in made.programs:
                await program.stop()
        finally:
            telling.cancel()
        say("the books are compared")
        return await _figures(asked, made, weather, submitter, window_ended, backlog_seconds, left)


async def _ready(made: Stack) -> None:
    """Every executor is registered, every shard has a relay, and the witness listens."""
    question = (
        "select (select count(*) from tenure.incarnations where state = 'active')"
        f" = {len(made.executors)}"
        " and not exists (select from tenure.relay_shards where relay_id is null)"
    )
    async with asyncio.timeout(READY_SECONDS):
        while not await made.value(f"select ({question})::integer"):  # noqa: ASYNC110
            await asyncio.sleep(0.2)


async def _until_zero(made: Stack, question: str, seconds: float) -> int:
    """What the question's answer was at last: 0, unless the time was too short."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = await made.value(question)
        if found == 0 or asyncio.get_running_loop().time() > deadline:
            return found
        await asyncio.sleep(0.2)


async def _unfinished(made: Stack) -> int:
    return await _until_zero(
        made, "select count(*) from tenure.tasks where ended_at is null", DRAIN_SECONDS
    )


async def _backlog_gone(made: Stack, since: float) -> float:
    """How long after an instant nothing is left: each cursor has passed the last row of its shard,
    and the witness has seen all there is."""
    await _until_zero(
        made,
        "select count(*) from tenure.log l join tenure.relay_shards s using (shard)"
        ' where l."position" > s."position"',
        DRAIN_SECONDS,
    )
    committed = await made.value(
        f"select count(*) from tenure.log where exchange = '{made.exchange}'"
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WITNESS_SECONDS
    while made.book.copies().events < committed:
        if loop.time() > deadline:
            break
        await asyncio.sleep(0.2)
    return loop.time() - since


async def _figures(
    asked: Asked, made: Stack, weather: Weather, submitter: Submitter,
    window_ended: float, backlog_seconds: float, left: int,
) -> dict[str, Any]:  # fmt: skip
    owner = await asyncpg.connect(made.database.owner_url)
    try:
        committed = await read_log(owner, made.exchange)
    finally:
        await owner.close()
    copies = made.book.copies()
    kills = made.in_flight_at_kills()
    share = made.book.count(before=window_ended) / (asked.rate * asked.seconds)
    bound = RELAY_ROWS * (len(kills) + weather.republishing)
    writes = [
        Write(str(row["task_id"]), "row", row["fencing_token"])
        for row in await made.receiver.owner.fetch(
            'select task_id, fencing_token from effects order by "position"'
        )
    ]
    tasks = list(submitter.ledger.tasks.values())
    faults = books.faults(
        committed=committed,
        arrivals=made.book.arrivals(),
        ledger=submitter.ledger,
        writes=writes,
        effects=tasks,
    )[:20]
    findings = await verify(made.database.owner_url)
    faults += [f"verify: {name}: {found}" for name, found in findings.broken.items()]
    faults += [surprise for program in made.programs for surprise in program.surprises]
    faults += logged_errors([one for one in made.programs if one is not made.witness])
    if left:
        faults.append(f"{left} tasks have not ended, {DRAIN_SECONDS:.0f} s after the storm")
    if copies.duplicates > bound:
        faults.append(f"{copies.duplicates} duplicates, more than {bound}")
    too_little = []
    if share < LEAST_SHARE:
        too_little.append(f"{share:.3f} of the events offered were seen while they were offered")
    if len(kills) < asked.least_relay_kills:
        too_little.append(f"{len(kills)} of {asked.least_relay_kills} relays died in flight")
    if backlog_seconds > BACKLOG_SECONDS:
        too_little.append(f"the backlog was gone after {backlog_seconds:.1f} s")
    return {
        "trial": "chaos",
        "seed": asked.seed,
        "seconds": asked.seconds,
        "offered_events_per_second": asked.rate,
        "achieved_share": round(share, 3),
        "tasks": len(tasks),
        "events_committed": len(committed),
        "events_seen": copies.events,
        "events_lost": len({row.event_id for row in committed} - made.book.event_ids()),
        "relay_kills_in_flight": len(kills),
        "in_flight_at_kills": {"least": min(kills, default=0), "most": max(kills, default=0),
                               "sum": sum(kills)},
        "duplicates": copies.duplicates,
        "duplicates_bound": bound,
        "backlog_gone_after_seconds": round(backlog_seconds, 1),
        "strikes": dict(weather.done),
        "poisoned": dict(weather.poisoned),
        "counts": not too_little,
        "too_little": too_little,
        "faults": faults,
    }  # fmt: skip


async def _tell(
    made: Stack, weather: Weather, submitter: Submitter, began: float, say: Callable[[str], None]
) -> None:
    """Say how far it is, again and again."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        seen = await asyncio.to_thread(made.book.copies)
        say(
            f"{asyncio.get_running_loop().time() - began:4.0f} s:"
            f" {submitter.offered} tasks offered, {len(submitter.ledger.tasks)} answered;"
            f" {seen.events} events seen, {seen.duplicates} duplicates;"
            f" {len(made.in_flight_at_kills())} relays died in flight,"
            f" {weather.done.total()} strikes"
        )


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="drawn, when none is given")
    parser.add_argument("--seconds", type=float, default=600.0, help="of storm")
    parser.add_argument("--rate", type=float, default=500.0, help="events a second")
    parser.add_argument("--logs", type=Path, default=None, help="folder to keep the logs in")
    return parser.parse_args(words)


def _say(words: str) -> None:
    print(words, flush=True)


async def main(arguments: argparse.Namespace) -> int:
    """Run it on servers of its own; 0 when nothing is wrong."""
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    asked = Asked(seed, arguments.seconds, arguments.rate)
    _say(f"seed {seed}: {asked.rate:.0f} events a second for {asked.seconds:.0f} s")
    with tempfile.TemporaryDirectory(prefix="tenure-chaos-") as temporary:
        directory = Path(temporary)
        os.chmod(directory, 0o711)
        logs = arguments.logs or directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        async with (
            local_postgres(directory) as postgres,
            local_rabbitmq(directory) as rabbitmq,
            local_postgres(directory) as receiver,
        ):
            server = DatabaseServer(postgres.url())
            await server.prepare()
            database = await server.create_migrated("chaos")
            found = await run(asked, Servers(postgres, rabbitmq, receiver), database, logs, _say)
    for fault in found["faults"]:
        _say(f"WRONG: {fault}")
    for short in found["too_little"]:
        _say(f"does not count: {short}")
    _say(json.dumps(found))
    return 0 if found["counts"] and not found["faults"] else 1


if __name__ == "__main__":
    sys.exit(ending.run(main(parsed())))
