"""``make trial-authority``: tasks through three coordinators and six executors that are killed,
suspended and cut off all the time, while answers get lost and requests arrive twice.

It counts only when enough has happened, and passes when every task has ended or is held with a
reason, every row downstream is there once, every repeated report was answered as the first time,
and ``tenure verify`` finds nothing. The seed decides what befalls whom and when; how the machine
interleaves it is its own affair. The last line of the output is JSON.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg

from tenure.coordinator.store.verify import verify
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase, fresh_space
from tests.support.relays import all_passed
from tests.support.services import BrokerServer, local_postgres, local_rabbitmq
from tests.trials import ending, strikes
from tests.trials.people import Applications, Operators
from tests.trials.processes import logged_errors
from tests.trials.stack import COORDINATORS, EXECUTORS, LEASE_SECONDS, Stack, stack, token

LEAST: Final = {"kills": 100, "expiries": 200, "late_receipts": 50, "repeated_reports": 500}
"""A run of two minutes with less counts for nothing; of another length, in proportion."""
OF_SECONDS: Final = 120.0
PATIENCE_SECONDS: Final = 90.0
"""How long nothing may come to an end once everything is left alone."""
PROGRESS_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Asked:
    """What a run is to be."""

    seed: int
    seconds: float
    tasks: int

    @property
    def least(self) -> dict[str, int]:
        """What has to have happened for the run to count."""
        return {name: round(count * self.seconds / OF_SECONDS) for name, count in LEAST.items()}


async def run(
    asked: Asked, database: FreshDatabase, broker: BrokerSpace, folder: Path
) -> dict[str, Any]:
    """One run; its figures, with ``faults``: what is wrong, and ``counts``: enough happened."""
    chance = random.Random(asked.seed)
    planned = strikes.plan(
        chance,
        seconds=asked.seconds,
        kills=round(asked.least["kills"] * 1.1) + 1,
        executors=EXECUTORS,
        coordinators=COORDINATORS,
        lease_seconds=LEASE_SECONDS,
    )
    loop = asyncio.get_running_loop()
    async with stack(database, broker, folder, random.Random(asked.seed + 1)) as made:
        applications = Applications(made.balancer.url, token("shop"), random.Random(asked.seed + 2))
        operators = Operators(
            made.balancer.url, token("ops"), made.owner, random.Random(asked.seed + 3)
        )
        storm = strikes.Storm(made.executors, made.coordinators, made.balancer)
        await _registered(made.owner)
        began = loop.time()
        telling = asyncio.create_task(_tell(made, storm, applications, began))
        try:
            async with applications, operators:
                meddling = asyncio.create_task(operators.meddle())
                submitting = asyncio.create_task(
                    applications.submit(asked.tasks, over_seconds=asked.seconds * 0.9)
                )
                await storm.rage(planned)
                await submitting
                meddling.cancel()
                await asyncio.gather(meddling, return_exceptions=True)
                await operators.tidy_up()
                left = await _left(made.owner)
            seconds = loop.time() - began
            for program in made.programs:
                if program is made.relay:
                    await all_passed(database.owner_url)
                await program.stop()
        finally:
            telling.cancel()
        figures = await _figures(made, storm)
        faults = [*left, *await _faults(made, applications, asked.tasks)]
        faults += logged_errors(made.programs)
    short = [f"{name}: {figures[name]} of {n}" for name, n in asked.least.items()
             if figures[name] < n]  # fmt: skip
    return {
        "trial": "authority",
        "seed": asked.seed,
        "seconds": round(seconds, 1),
        "tasks": asked.tasks,
        **figures,
        "operators_did": dict(operators.did),
        "counts": not short,
        "too_few": short,
        "faults": faults,
    }


async def _registered(owner: asyncpg.Pool) -> None:
    question = "select count(*) from tenure.incarnations where state = 'active'"
    while await owner.fetchval(question) < EXECUTORS:  # noqa: ASYNC110 - other programs' state
        await asyncio.sleep(0.05)


_UNFINISHED: Final = """
    select count(*) from tenure.tasks
    where ended_at is null and not (state = 'held' and reason is not null)
"""


async def _left(owner: asyncpg.Pool) -> list[str]:
    """Wait for the last task. What is wrong when they do not come to an end."""
    loop = asyncio.get_running_loop()
    fewest, since = -1, loop.time()
    while number := int(await owner.fetchval(_UNFINISHED)):
        if fewest < 0 or number < fewest:
            fewest, since = number, loop.time()
        if loop.time() - since > PATIENCE_SECONDS:
            return [f"{number} tasks neither end nor are they held"]
        await asyncio.sleep(0.2)
    return []


async def _figures(made: Stack, storm: strikes.Storm) -> dict[str, Any]:
    books = made.balancer.books
    states = await made.owner.fetch("select state, count(*) from tenure.tasks group by 1")
    reasons = await made.owner.fetch(
        "select reason, count(*) from tenure.tasks where state = 'held' group by 1"
    )
    return {
        "kills": sum(program.kills for program in made.programs),
        "expiries": await made.owner.fetchval(
            "select count(*) from tenure.attempts where state = 'expired'"
        ),
        "late_receipts": await made.owner.fetchval(
            "select count(*) from tenure.receipts where not admitted"
        ),
        "repeated_reports": books.repeated_reports,
        "strikes": dict(storm.done),
        "attempts": await made.owner.fetchval("select count(*) from tenure.attempts"),
        "states": {row["state"]: row["count"] for row in states},
        "held": {row["reason"]: row["count"] for row in reasons},
        "requests": books.requests,
        "answers_lost": books.answers_lost,
        "handed_over_twice": books.handed_over_twice,
        "without_answer": books.without_answer,
        "longest_answer_seconds": round(books.longest_answer_seconds, 3),
        "longest_beside_a_suspended_one_seconds": round(
            books.longest_beside_a_suspended_one_seconds, 3
        ),
    }


async def _faults(made: Stack, applications: Applications, tasks: int) -> list[str]:
    """What is wrong after a run."""
    faults = [*made.balancer.books.disagreements[:5], *applications.faults]
    faults += [surprise for program in made.programs for surprise in program.surprises]
    stored = await made.owner.fetchval("select count(*) from tenure.tasks")
    if not stored == len(set(applications.task_ids.values())) == tasks:
        faults.append(f"{tasks} tasks were submitted, {stored} are stored")
    findings = await verify(made.database.owner_url)
    faults += [f"verify: {name}: {found}" for name, found in findings.broken.items()]
    effects = await made.receiver.owner.fetch("select task_id, count(*) from effects group by 1")
    faults += [f"task {row['task_id']} wrote {row['count']} rows" for row in effects
               if row["count"] != 1][:5]  # fmt: skip
    delivered = await made.owner.fetch(
        "select task_id from tenure.tasks where type = 'row' and state = 'delivered'"
    )
    without = {row["task_id"] for row in delivered} - {row["task_id"] for row in effects}
    if without:
        faults.append(f"{len(without)} delivered tasks wrote no row, like {min(without)}")
    refused = await made.owner.fetchval(
        "select count(*) from tenure.receipts where code = 'internal_refused'"
    )
    if refused:
        faults.append(f"{refused} receipts refused by a fault of the coordinator")
    return faults


async def _tell(
    made: Stack, storm: strikes.Storm, applications: Applications, began: float
) -> None:
    """Say how far it is, again and again."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        row = await made.owner.fetchrow(
            "select count(*) filter (where ended_at is not null) as ended,"
            " count(*) filter (where state = 'held') as held,"
            " (select count(*) from tenure.attempts where state = 'expired') as expired"
            " from tenure.tasks"
        )
        assert row is not None
        print(
            f"{loop.time() - began:4.0f} s: {len(applications.task_ids)} submitted,"
            f" {row['ended']} ended, {row['held']} held; {storm.done.total()} strikes,"
            f" {row['expired']} expiries, {made.balancer.books.repeated_reports} repeated reports",
            flush=True,
        )


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(prog="make trial-authority", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="drawn, when none is given")
    parser.add_argument("--seconds", type=float, default=OF_SECONDS, help="of strikes")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--logs", type=Path, default=None, help="folder to keep the logs in")
    return parser.parse_args(words)


async def main(arguments: argparse.Namespace) -> int:
    """Run it on servers of its own; 0 when it counts and nothing is wrong."""
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    asked = Asked(seed, arguments.seconds, arguments.tasks)
    print(f"seed {seed}: {asked.tasks} tasks, {asked.seconds:.0f} s of strikes", flush=True)
    with tempfile.TemporaryDirectory(prefix="tenure-trial-") as temporary:
        directory = Path(temporary)
        os.chmod(directory, 0o711)
        logs = arguments.logs or directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        async with local_postgres(directory) as postgres, local_rabbitmq(directory) as rabbitmq:
            server = DatabaseServer(postgres.url())
            await server.prepare()
            database = await server.create_migrated("trial")
            broker = BrokerServer(rabbitmq.url(), rabbitmq.management_url())
            async with fresh_space(broker) as space:
                found = await run(asked, database, space, logs)
    for fault in found["faults"]:
        print(f"WRONG: {fault}")
    for short in found["too_few"]:
        print(f"does not count: {short}")
    print(json.dumps(found))
    return 0 if found["counts"] and not found["faults"] else 1


if __name__ == "__main__":
    sys.exit(ending.run(main(parsed())))
