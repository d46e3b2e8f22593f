"""One node of a fleet on servers: the executor's whole runtime, within the test's own process.

It is in this process so that a test sees what its handlers have done. It speaks to its servers as
any other executor; only its clock and its line to the coordinator are the test's to stop.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tenure.cli.testing.line import Line
from tenure.cli.testing.servers import Servers
from tenure.contract.faultpoints import FaultPoints
from tenure.contract.reports import NodeFacts
from tenure.executor.app import Executor
from tenure.executor.clock import system_clock
from tenure.executor.config import load_settings
from tenure.executor.isolation.sandbox import Sandbox
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.runner import run_until
from tenure.executor.stopping import Stopping

COMPARISON_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 1.0
_COPIES: Final = "tenure_executor_duplicates_total"
_ENDED: Final = "tenure_executor_attempts_total"
_QUESTION: Final = b"/assignments?"


class NodeClock:
    """The clock of a node: a machine that is stopped does not see time pass, nor catch up."""

    def __init__(self) -> None:
        self._system = system_clock()
        self._behind = 0
        self._stopped_at: int | None = None

    def __call__(self) -> int:
        """Microseconds."""
        return self._system() - self._behind if self._stopped_at is None else self._stopped_at

    def stop(self) -> None:
        """Stand still."""
        self._stopped_at = self()

    def go_on(self) -> None:
        """From where it stood."""
        if self._stopped_at is not None:
            self._behind = self._system() - self._stopped_at
            self._stopped_at = None


class ServerNode:
    """``start`` and ``stop``, or ``kill``; ``cut_off`` and ``reconnect`` in between."""

    def __init__(
        self,
        name: str,
        app: Executor,
        servers: Servers,
        *,
        slots: int,
        faults: FaultPoints,
        make_sandbox: Callable[..., Sandbox],
    ) -> None:
        self.name = name
        self.clock = NodeClock()
        self.metrics = ExecutorMetrics()
        self._app = app
        self._servers = servers
        self._slots = slots
        self._faults = faults
        self._make_sandbox = make_sandbox
        self._stopping = Stopping(DRAIN_SECONDS)
        self._line: Line | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self, facts: NodeFacts, folder: Path) -> None:
        """Begin; it registers soon."""
        connection = self._servers.stack.connection()
        host, port = connection.url.removeprefix("http://").split(":")
        self._line = await self._servers.run(Line.open(host, int(port)))
        settings = load_settings(
            url=self._line.url,
            token=connection.tokens["executor"],
            broker_url=connection.broker_url,
            state_dir=folder,
            node=self.name,
            slots=self._slots,
            comparison_seconds=COMPARISON_SECONDS,
            drain_seconds=DRAIN_SECONDS,
            **_stated(facts),
        )
        running = run_until(
            self._app,
            settings,
            self._stopping,
            self._faults,
            clock=self.clock,
            metrics=self.metrics,
            make_sandbox=self._make_sandbox,
        )
        self._running = asyncio.create_task(running)

    def check(self) -> None:
        """Raises what has ended it, where something has."""
        if self._running is not None and self._running.done() and not self._running.cancelled():
            self._running.result()

    @property
    def copies_recognised(self) -> int:
        """Assignments that came again and began nothing."""
        return round(self.metrics.registry.get_sample_value(_COPIES) or 0)

    async def cut_off(self) -> None:
        """Nothing reaches the coordinator from here, or comes back."""
        if self._line is not None:
            await self._servers.run(self._line.cut())

    async def reconnect(self) -> None:
        """Everything does again."""
        if self._line is not None:
            await self._servers.run(self._line.mend())

    def not_taken(self, task_type: str) -> int:
        """Attempts of a type that the coordinator did not let begin here."""
        labels = {"task_type": task_type, "outcome": "not_taken"}
        return round(self.metrics.registry.get_sample_value(_ENDED, labels) or 0)

    async def compares(self, *, whether: bool) -> None:
        """Whether it learns what it should have by asking the coordinator; else by messages only,
        and its questions wait."""
        if self._line is not None:
            line = self._line
            await self._servers.run(line.pass_all() if whether else line.withhold(_QUESTION))

    async def stop(self) -> None:
        """Drain it."""
        self._stopping.ask()
        if self._running is not None:
            await asyncio.wait({self._running})
        await self.kill()

    async def kill(self) -> None:
        """End it without a word to anybody."""
        await self.cut_off()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._line is not None:
            await self._servers.run(self._line.close())


def _stated(facts: NodeFacts) -> dict[str, Any]:
    """As settings say them."""
    return {
        "location": facts.location,
        "networks": ",".join(facts.networks or ()) or None,
        "labels": ",".join(f"{name}={value}" for name, value in facts.labels.items()) or None,
    }
