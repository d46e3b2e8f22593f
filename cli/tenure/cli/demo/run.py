"""The demo from start to end: a stack of its own, the tasks, the comparison."""

import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tenure.cli.demo import downstream
from tenure.cli.demo.check import Report, compare, compute_directly
from tenure.cli.demo.downstream import Weakened
from tenure.cli.demo.faults import COORDINATOR_SETTINGS, Faults
from tenure.cli.demo.files import FrozenFile
from tenure.cli.demo.hasher import DATABASE_VARIABLE
from tenure.cli.demo.struck import STRIKE_VARIABLE
from tenure.cli.demo.witness import witness
from tenure.cli.demo.work import Work
from tenure.cli.local.interrupts import Interrupts
from tenure.cli.local.stack import ExecutorSpec, Stack
from tenure.cli.together import together
from tenure.coordinator.store.verify import verify

APPLICATION: Final = "tenure.cli.demo.hasher:app"
STRUCK_APPLICATION: Final = "tenure.cli.demo.struck:app"


class Demo:
    """One run over a frozen list of files. ``report`` is set when it came to its end."""

    def __init__(
        self,
        files: Sequence[FrozenFile],
        *,
        executors: int,
        slots: int,
        limit_seconds: float,
        began: float,
        calm: bool = False,
        weakened: Weakened | None = None,
    ) -> None:
        self.report: Report | None = None
        self._files = files
        self._submitted_work = Work(files, deadline=began + limit_seconds, say=_say)
        self._limit_seconds = limit_seconds
        self._began = began
        self._password = secrets.token_hex(16)
        self._weakened = weakened
        self.directory = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
        self._signs = self.directory / "signs"
        self.stack = Stack(
            self.directory,
            [
                ExecutorSpec(
                    f"hasher-{number}",
                    APPLICATION if calm else STRUCK_APPLICATION,
                    slots,
                    self._environment,
                )
                for number in range(1, executors + 1)
            ],
            say=_say,
            prepare=self._prepare,
            coordinator_settings={} if calm else COORDINATOR_SETTINGS,
        )
        self._writer_url = ""
        self._faults: Faults | None = None
        if not calm:
            self._faults = Faults(
                self.stack,
                self._signs,
                downstream_url=lambda: self.stack.postgres.url(downstream.DATABASE),
                say=_say,
            )

    def _environment(self) -> dict[str, str]:
        environment = {DATABASE_VARIABLE: self._writer_url}
        if self._faults is not None:
            environment[STRIKE_VARIABLE] = self._faults.strike.as_json()
        return environment

    async def _prepare(self) -> None:
        self._signs.mkdir(exist_ok=True)
        self._writer_url = await downstream.prepare(
            self.stack.postgres, self._password, self._weakened
        )

    async def run(self) -> None:
        """Start the stack, do the work, compare. The caller stops the stack."""
        _say("demo", f"{len(self._files)} files; the stack starts in {self.directory}")
        await self.stack.start()
        if self._faults is None:
            await self._work()
        else:
            await self._work_under(self._faults)
        _say("demo", "comparing every row with a direct computation")
        direct = await compute_directly(self._files)
        written = await downstream.read(self.stack.postgres.url(downstream.DATABASE))
        findings = await verify(self.stack.connection().database_url)
        for name, broken in findings.broken.items():
            _say("demo", f"invariant broken: {name}: {broken.examples}")
        self.report = compare(
            self._files,
            direct,
            written,
            self._submitted_work.outputs,
            tasks=self._submitted_work.tasks,
            seconds=time.monotonic() - self._began,
            found_changed=self._submitted_work.found_changed,
            suffered=None if self._faults is None else self._faults.suffered,
            invariants_broken=tuple(findings.broken),
        )

    async def _work_under(self, faults: Faults) -> None:
        connection = self.stack.connection()

        async def work() -> None:
            await faults.work_may_begin.wait()
            await self._work()

        async def strike() -> None:
            try:
                async with asyncio.timeout_at(self._loop_deadline()):
                    await faults.run()
            except TimeoutError:
                _say("demo", "not every fault could be brought about in time")

        async with witness(connection.broker_url, connection.database_url) as listening:
            await together(work(), strike())
            await faults.count_up(listening)

    async def _work(self) -> None:
        connection = self.stack.connection()
        await self._submitted_work.run(connection.url, connection.tokens["application"])

    def _loop_deadline(self) -> float:
        left = self._began + self._limit_seconds - time.monotonic()
        return asyncio.get_running_loop().time() + left


async def run_demo(demo: Demo, *, keep: bool) -> Report | None:
    """Run it and end its stack, whatever happens. None when a signal came first.

    The stack's folder is removed, unless ``keep`` asks for it or something was not as it should.
    """
    finished = False
    with Interrupts() as interrupts:
        try:
            finished = await interrupts.unless_first(demo.run())
        finally:
            await demo.stack.stop(interrupts.second)
            interrupted = interrupts.first.is_set() and not finished
            good = demo.report is not None and demo.report.ok
            if keep or not (good or interrupted):
                _say("demo", f"data and logs are kept in {demo.directory}")
                if keep:
                    _say("demo", f"look around: tenure up --state-dir {demo.directory}")
            else:
                shutil.rmtree(demo.directory, ignore_errors=True)
    return demo.report if finished else None


def _say(name: str, words: str) -> None:
    for line in words.splitlines():
        print(f"{name}: {line}", file=sys.stderr, flush=True)
