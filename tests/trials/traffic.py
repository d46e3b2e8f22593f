"""Work that goes on at a steady rate while something else happens to the database.

Three replicas of the authority share it, as behind a balancer. Tasks are submitted when their time
comes, whatever became of those before them, and one node does them: how long a submission takes is
counted from when it was due.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from bench.figures import percentile
from tenure.contract.ids import AttemptId, FencingToken, IncarnationId, NodeId, TaskId
from tenure.coordinator.core.commands import Take
from tests.support.authority import Bench, Held, replica
from tests.support.isolation import FreshDatabase

EVENTS_OF_A_TASK: Final = 6
SLOTS: Final = 2000
LOOK_SECONDS: Final = 0.02
HEARTBEAT_SECONDS: Final = 3.0
_ASSIGNED: Final = """
    select task_id, attempt_id, node_id, incarnation, fencing_token from tenure.attempts
    where incarnation = $1 and ended_at is null and state = 'submitted' limit 200
"""


@dataclass
class Counted:
    """What became of the tasks of one phase."""

    waits: list[float] = field(default_factory=list)
    """Seconds from when a submission was due until it was answered."""
    refused: list[str] = field(default_factory=list)

    seconds: float = 0.0
    """How long it went on."""

    def milliseconds(self, percent: int) -> float:
        """What so many percent of the submissions took at most."""
        return round(1000 * percentile(self.waits, percent), 1)

    @property
    def per_second(self) -> float:
        """Submissions that were answered."""
        return len(self.waits) / self.seconds


class Traffic:
    """Submissions by the clock, and the node that does them. ``submitted``: all that were recorded,
    ``delivered``: those of them that are done."""

    def __init__(self, benches: Sequence[Bench], incarnation: IncarnationId) -> None:
        self.benches = benches
        self.delivered: set[TaskId] = set()
        self.submitted: set[TaskId] = set()
        self._turns = itertools.cycle(benches)
        self._incarnation = incarnation

    async def submit(self, events_per_second: float, into: Counted, stop: asyncio.Event) -> None:
        """Until told to stop; returns when everything submitted has been answered."""
        clock = asyncio.get_running_loop().time
        pace = EVENTS_OF_A_TASK / events_per_second
        began = due = clock()
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                group.create_task(self._submit_one(due, into))
                due += pace
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, due - clock())):
                        await stop.wait()
        into.seconds += clock() - began

    async def _submit_one(self, due: float, into: Counted) -> None:
        bench = next(self._turns)
        command = bench.submission()
        (outcome,) = await bench.authority.submit([command])
        into.waits.append(asyncio.get_running_loop().time() - due)
        if outcome.reply is None:
            into.refused.append(str(outcome.refused))
        else:
            self.submitted.add(command.task_id)

    async def work(self) -> None:
        """Take and deliver whatever is assigned, until cancelled."""
        clock = asyncio.get_running_loop().time
        heard = 0.0
        for bench in itertools.cycle(self.benches):
            if clock() > heard + HEARTBEAT_SECONDS:
                await bench.authority.renew([], self._incarnation)
                heard = clock()
            rows = await bench.owner.fetch(_ASSIGNED, self._incarnation)
            held = [
                Held(
                    TaskId(str(row["task_id"])),
                    AttemptId(str(row["attempt_id"])),
                    NodeId(row["node_id"]),
                    IncarnationId(str(row["incarnation"])),
                    FencingToken(row["fencing_token"]),
                )
                for row in rows
            ]
            if held:
                await bench.authority.report([bench.command(Take, one) for one in held])
                done = await asyncio.gather(*(bench.deliver(one, one.task_id) for one in held))
                self.delivered |= {
                    one.task_id
                    for one, outcome in zip(held, done, strict=True)
                    if outcome.reply is not None
                }
            else:
                await asyncio.sleep(LOOK_SECONDS)

    async def all_done(self) -> None:
        """Wait until every task that was submitted is delivered."""
        while self.submitted - self.delivered:  # noqa: ASYNC110 - the node's work
            await asyncio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def traffic(database: FreshDatabase, replicas: int) -> AsyncIterator[Traffic]:
    """Replicas with their schedulers, and a node with room for everything."""
    async with AsyncExitStack() as stack:
        benches = [await stack.enter_async_context(replica(database)) for _ in range(replicas)]
        incarnation = await benches[0].register("busy", slots=SLOTS)
        made = Traffic(benches, incarnation)
        running = [asyncio.create_task(bench.scheduler.run()) for bench in benches]
        running.append(asyncio.create_task(made.work()))
        try:
            yield made
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
