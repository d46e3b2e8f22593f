"""One run: a local stack under a storm, the tasks, and the books at the end."""

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tenure.cli.chaos import books, records, storm
from tenure.cli.chaos.books import Check, TaskOutcome
from tenure.cli.chaos.wires import Wires, wires
from tenure.cli.chaos.workload import Asked
from tenure.cli.local.interrupts import Interrupts
from tenure.cli.local.stack import ExecutorSpec, Stack
from tenure.client import AsyncClient
from tenure.coordinator.store.verify import verify

LEASE_SECONDS: Final = 4.0
COORDINATOR_SETTINGS: Final = {
    "TENURE_LEASE_SECONDS": str(LEASE_SECONDS),
    "TENURE_CLOCK_TOLERANCE_SECONDS": "0.3",
    "TENURE_NODE_SILENCE_SECONDS": "3",
    "TENURE_RETRY_BASE_SECONDS": "0.2",
    "TENURE_RETRY_CAP_SECONDS": "2",
}
"""Leases short enough to see many end."""
LONGEST_SECONDS: Final = 2 * LEASE_SECONDS
"""Of a suspension or a poison: half of them outlast a lease."""
CALM_SECONDS: Final = 3.0
"""Nothing begins so shortly before the end of the storm."""
RESTART_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 300.0
REQUESTS_AT_ONCE: Final = 8
LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True)
class Options:
    """What a run is to be. Durations in seconds."""

    seed: int
    seconds: float
    executors: int
    slots: int
    strike_every_seconds: float
    settle_seconds: float


@dataclass
class Report:
    """What came of it. ``attempt_reasons``: why attempts ended that did not deliver.
    ``interrupted``: attempts whose handler was begun and did not deliver."""

    seed: int
    seconds: float
    submitted: int
    tasks: dict[str, int]
    reasons: dict[str, int]
    attempts: dict[str, int]
    attempt_reasons: dict[str, int]
    interrupted: int
    strikes: dict[str, int]
    faults: list[str] = field(default_factory=list)
    faults_in_all: int = 0
    advice: list[str] = field(default_factory=list)
    too_little: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Nothing is wrong, and enough has happened to say so."""
        return not self.faults and not self.too_little

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "passed": self.passed}


class Trial:
    """``run`` once. ``report`` is set when it came to its end."""

    def __init__(
        self,
        application: str,
        asked: Sequence[Asked],
        options: Options,
        *,
        check: Check | None,
        say: Callable[[str, str], None],
    ) -> None:
        self.report: Report | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="tenure-chaos-"))
        self._asked = asked
        self._options = options
        self._check = check
        self.say = say
        self._around = AsyncExitStack()
        self._wires: Wires | None = None
        self._inputs: dict[str, Any] = {}
        self.stack = Stack(
            self.directory,
            [
                ExecutorSpec(f"executor-{number}", application, options.slots, self._environment)
                for number in range(1, options.executors + 1)
            ],
            say=say,
            prepare=self._lay_wires,
            coordinator_settings=COORDINATOR_SETTINGS,
            longest_pause_seconds=RESTART_SECONDS,
        )

    async def run(self) -> None:
        """Start the stack, let the storm rage while tasks are submitted, wait for what is left,
        compare. The caller stops the stack."""
        options = self._options
        planned = storm.plan(
            random.Random(options.seed),
            seconds=max(0.0, options.seconds - CALM_SECONDS),
            every_seconds=options.strike_every_seconds,
            longest_seconds=LONGEST_SECONDS,
        )
        self.say(
            "chaos",
            f"seed {options.seed}: {len(self._asked)} tasks, {len(planned)} strikes"
            f" in {options.seconds:g} s; the stack starts in {self.directory}",
        )
        async with self._around:
            await self.stack.start()
            assert self._wires is not None
            weather = storm.Storm(
                self.stack,
                self._wires,
                [f"executor-{number}" for number in range(1, options.executors + 1)],
                self.say,
            )
            async with asyncio.TaskGroup() as group:
                raging = group.create_task(weather.rage(planned))
                await self._submit(self._wires.urls["application to coordinator"])
                left = await self._settled(raging, weather)
            self.say("chaos", "the books are compared")
            await self._compare(weather, left)

    async def _lay_wires(self) -> None:
        connection = self.stack.connection()
        self._wires = await self._around.enter_async_context(
            wires(
                {
                    "executor to coordinator": [connection.url],
                    "executor to broker": [connection.broker_url],
                    "application to coordinator": [connection.url],
                }
            )
        )

    def _environment(self) -> dict[str, str]:
        assert self._wires is not None
        return {
            "TENURE_URL": self._wires.urls["executor to coordinator"],
            "TENURE_BROKER_URL": self._wires.urls["executor to broker"],
            "TENURE_COMPARISON_SECONDS": "1",
        }

    async def _submit(self, url: str) -> None:
        """All tasks, at a steady rate over the storm; asked again until each is answered."""
        token = self.stack.connection().tokens["application"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        pace = max(0.0, self._options.seconds - CALM_SECONDS) / max(1, len(self._asked))
        turns = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self.say("chaos", "submitting")
        async with AsyncClient(url, token, retry_seconds=PATIENCE_SECONDS) as client:

            async def submit(number: int, one: Asked) -> None:
                async with turns:
                    handle = await client.submit_json(
                        one.type, one.input, idempotency_key=f"chaos-{number}"
                    )
                self._inputs[handle.task_id] = one.input

            async with asyncio.TaskGroup() as group:
                for number, one in enumerate(self._asked):
                    await asyncio.sleep(max(0.0, began + number * pace - loop.time()))
                    group.create_task(submit(number, one))

    async def _settled(self, raging: "asyncio.Task[None]", weather: storm.Storm) -> int | None:
        """Wait until the storm is over and every task has ended or is held; how many have not, in
        the time they are given."""
        loop = asyncio.get_running_loop()
        while not raging.done():
            if await self._open_tasks() == 0:
                weather.calm.set()
            await asyncio.wait({raging}, timeout=LOOK_SECONDS)
        self.say("chaos", "the storm is over, waiting for what is left")
        deadline = loop.time() + self._options.settle_seconds
        while True:
            left = await self._open_tasks()
            if left == 0 or loop.time() > deadline:
                return left
            await asyncio.sleep(LOOK_SECONDS)

    async def _open_tasks(self) -> int | None:
        return await records.open_tasks(self.stack.connection().database_url)

    async def _compare(self, weather: storm.Storm, left: int | None) -> None:
        url = self.stack.connection().database_url
        tasks = await records.read(url, self._inputs)
        faults = books.judge(tasks, list(self._inputs))
        if left != 0:
            what = "the database is away" if left is None else f"{left} tasks have not ended"
            faults.append(f"{what} {self._options.settle_seconds:g} s after the storm")
        advice: list[str] = []
        if self._check is not None:
            verdict = await books.checked(self._check, tasks)
            faults += verdict.faults
            advice = books.advice(verdict.twice)
        findings = await verify(url)
        faults += [
            f"tenure verify: {name}: {found.examples[0].subject} {found.examples[0].detail}"
            for name, found in findings.broken.items()
        ]
        faults += self._ended_by_themselves(weather)
        self.report = self._reported(tasks, weather, faults, advice)

    def _ended_by_themselves(self, weather: storm.Storm) -> list[str]:
        return [
            f"{name} ended {deaths - weather.kills[name]} times without being killed:"
            f" see {self.stack.logs / name}.log"
            for name, deaths in self.stack.deaths.items()
            if deaths > weather.kills[name]
        ]

    def _reported(
        self,
        tasks: Sequence[TaskOutcome],
        weather: storm.Storm,
        faults: list[str],
        advice: list[str],
    ) -> Report:
        interrupted = sum(task.interrupted for task in tasks)
        too_little = []
        if not interrupted:
            too_little.append("no handler was interrupted in its middle: let it take longer")
        attempts = [one for task in tasks for one in task.attempts]
        return Report(
            seed=self._options.seed,
            seconds=self._options.seconds,
            submitted=len(self._inputs),
            tasks=dict(Counter(task.state for task in tasks).most_common()),
            reasons=dict(Counter(task.reason for task in tasks if task.reason).most_common()),
            attempts=dict(Counter(one.state for one in attempts).most_common()),
            attempt_reasons=dict(
                Counter(one.reason for one in attempts if one.reason).most_common()
            ),
            interrupted=interrupted,
            strikes=dict(weather.done.most_common()),
            faults=faults[: books.NAMED],
            faults_in_all=len(faults),
            advice=advice,
            too_little=too_little,
        )


async def run_trial(trial: Trial, *, keep: bool) -> Report | None:
    """Run it and end its stack, whatever happens. None when a signal came first.

    The stack's folder is removed, unless ``keep`` asks for it or something was not as it should.
    """
    finished = False
    with Interrupts() as interrupts:
        try:
            finished = await interrupts.unless_first(trial.run())
        finally:
            await trial.stack.stop(interrupts.second)
            passed = trial.report is not None and trial.report.passed
            interrupted = interrupts.first.is_set() and not finished
            if keep or not (passed or interrupted):
                trial.say("chaos", f"data and logs are kept in {trial.directory}")
            else:
                shutil.rmtree(trial.directory, ignore_errors=True)
    return trial.report if finished else None
