"""What is done to the stack while it works, and what was seen of it.

In this order, each as soon as its condition holds and never by the clock:

1. the broker is frozen, tasks are submitted, the relay's own metrics say that publishes are
   unconfirmed: SIGKILL for the relay, then the broker goes on with what it has in its socket;
2. an executor stops itself at the named point, in the middle of its work;
3. once more as 1, with the relay that took over;
4. SIGKILL for the coordinator;
5. when another attempt has raised its fence in the downstream, the stopped executor is continued:
   its write must be refused there, and its receipt comes late.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import httpx2

from tenure.cli.demo.struck import Outcome, read_outcome
from tenure.cli.demo.suffered import Suffered
from tenure.cli.demo.witness import Witness
from tenure.cli.drills.strikes import Act, Strike
from tenure.cli.local import processes
from tenure.cli.local.programs import Program
from tenure.cli.local.stack import READY_SECONDS, Stack
from tenure.contract.faultpoints import FaultPoint
from tenure.executor.guards.sql_common import STALE_TOKEN

COORDINATOR_SETTINGS: Final = {
    "TENURE_LEASE_SECONDS": "8",
    "TENURE_NODE_SILENCE_SECONDS": "5",
}
"""Leases short enough to see one end, and a stopped node gets nothing new before that."""
LOOK_SECONDS: Final = 0.02
_IN_FLIGHT: Final = "tenure_relay_in_flight"
_DUPLICATES: Final = "tenure_executor_duplicates_total"


class Faults:
    """One run's faults. ``folder`` is where the strike leaves its sign."""

    def __init__(
        self,
        stack: Stack,
        folder: Path,
        *,
        downstream_url: Callable[[], str],
        say: Callable[[str, str], None],
    ) -> None:
        self.suffered = Suffered()
        self.strike = Strike(FaultPoint.BEFORE_EFFECT, Act.STOP, folder)
        self.work_may_begin = asyncio.Event()
        self._stack = stack
        self._downstream_url = downstream_url
        self._say = say

    async def run(self) -> None:
        """All of them, one after the other. The stopped executor is continued in any case."""
        try:
            await self._kill_relay()
            await _until(lambda: self.strike.sign() is not None)
            self._say("demo", f"stopped at {self.strike.point}: process {self._stopped_pid()}")
            await self._kill_relay()
            await self._kill_coordinator()
            await self._until_replaced()
        finally:
            if self.strike.sign() is not None:
                processes.send(self._stopped_pid(), signal.SIGCONT)
        await self._judge(await self._outcome())

    async def count_up(self, witness: Witness) -> None:
        """What is counted at the end, once every event has reached the witness."""
        self._say("demo", "waiting until every committed event has reached the witness")
        suffered = self.suffered
        try:
            async with asyncio.timeout(READY_SECONDS):
                while (missing := await witness.missing()) != 0:
                    suffered.events_lost = missing
                    await asyncio.sleep(0.2)
            suffered.events_lost = 0
        except TimeoutError:
            self._say("demo", f"{suffered.events_lost} committed events never came")
        suffered.duplicates_published = witness.duplicates
        database = self._stack.connection().database_url
        suffered.late_receipts = await _value(
            database, "select count(*) from tenure.receipts where not admitted"
        )
        for name, program in self._stack.processes.items():
            if name.startswith("hasher"):
                suffered.duplicates_ignored += round(await _metric(program, _DUPLICATES))

    async def _kill_relay(self) -> None:
        relay = self._stack.processes["relay"]
        await self._serves(relay)
        async with self._broker_frozen():
            self.work_may_begin.set()
            in_flight = 0

            async def unconfirmed() -> bool:
                nonlocal in_flight
                in_flight = round(await _metric(relay, _IN_FLIGHT))
                return in_flight > 0

            await _until(unconfirmed)
            await self._kill(relay)
        self.suffered.relay_kills += 1
        self.suffered.in_flight_at_kill.append(in_flight)
        self._say("demo", f"relay killed with {in_flight} publishes unconfirmed")

    async def _kill_coordinator(self) -> None:
        coordinator = self._stack.processes["coordinator"]
        await self._kill(coordinator)
        self.suffered.coordinator_kills += 1
        self._say("demo", "coordinator killed")
        await self._serves(coordinator)

    async def _kill(self, program: Program) -> None:
        pid = program.pid
        assert pid is not None  # it was just seen to serve
        processes.send(pid, signal.SIGKILL)
        await _until(lambda: not processes.is_alive(pid))

    async def _serves(self, program: Program) -> None:
        """The supervisor starts again what has died."""
        await _until(lambda: program.running)
        await program.ready(within_seconds=READY_SECONDS)

    @asynccontextmanager
    async def _broker_frozen(self) -> AsyncIterator[None]:
        pid = self._stack.rabbitmq.pid
        processes.send(pid, signal.SIGSTOP)
        try:
            await _until(lambda: processes.is_stopped(pid))
            yield
        finally:
            processes.send(pid, signal.SIGCONT)

    async def _until_replaced(self) -> None:
        """Another attempt holds the task's lease, and its fence stands in the downstream."""
        sign = self.strike.sign()
        assert sign is not None
        connection = await asyncpg.connect(self._downstream_url(), ssl=False)
        row = await _row(
            self._stack.connection().database_url,
            "select task_id, fencing_token from tenure.attempts where attempt_id = $1",
            sign.subject,
        )
        try:

            async def replaced() -> bool:
                return bool(
                    await connection.fetchval(
                        "select fencing_token > $2 from guard.tenure_fence where task_id = $1",
                        row["task_id"],
                        row["fencing_token"],
                    )
                )

            await _until(replaced)
        finally:
            await connection.close()
        self._say("demo", f"attempt {sign.subject} was replaced; its process goes on")

    async def _outcome(self) -> Outcome:
        await _until(lambda: read_outcome(self.strike.folder) is not None)
        outcome = read_outcome(self.strike.folder)
        assert outcome is not None
        return outcome

    async def _judge(self, outcome: Outcome) -> None:
        self._say("demo", f"its write: {outcome.error or 'taken by the downstream'}")
        if outcome.sqlstate == STALE_TOKEN:
            self.suffered.stale_writes_refused += 1
        database = self._stack.connection().database_url

        async def recorded() -> bool:
            question = "select count(*) from tenure.receipts where attempt_id = $1"
            return await _value(database, question, outcome.attempt_id) > 0

        await _until(recorded)

    def _stopped_pid(self) -> int:
        sign = self.strike.sign()
        assert sign is not None
        return sign.pid


async def _until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    """The demo's own limit ends a wait in vain."""
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _metric(program: Program, name: str) -> float:
    """The value of a metric without labels."""
    async with httpx2.AsyncClient(trust_env=False, timeout=10.0) as client:
        text = (await client.get(program.spec.metrics_url)).text
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return 0.0


async def _row(url: str, question: str, *arguments: object) -> asyncpg.Record:
    connection = await asyncpg.connect(url, ssl=False)
    try:
        row = await connection.fetchrow(question, *arguments)
    finally:
        await connection.close()
    assert row is not None
    return row


async def _value(url: str, question: str, *arguments: object) -> int:
    row = await _row(url, question, *arguments)
    return int(row[0])
