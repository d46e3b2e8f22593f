"""Applications that submit and cancel, and operators who interfere, all through the balancer."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

import asyncpg

from tenure.client import AsyncClient
from tenure.client.errors import Refused
from tenure.contract.flow import PauseRequest, ResumeRequest
from tenure.contract.operations import QuarantineRequest, RevocationRequest
from tenure.contract.states import PauseScope
from tenure.contract.tasktype import TaskType
from tests.trials.program import ONCE, ROW, SHAKY, STEADY, THREAD, Work

PATIENCE_SECONDS: Final = 120.0
MIX: Final[dict[TaskType[Any, Any], int]] = {ROW: 55, THREAD: 20, STEADY: 12, SHAKY: 8, ONCE: 5}
SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 0.9
CANCELLED: Final = 0.03
AGAIN: Final = 0.02
"""Shares of the tasks: cancelled soon after, and submitted a second time."""
SUBMITTERS: Final = 16


class _WithClient:
    def __init__(self, url: str, token: str, chance: random.Random) -> None:
        self.client = AsyncClient(url, token, retry_seconds=PATIENCE_SECONDS)
        self.chance = chance

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.client.close()


class Applications(_WithClient):
    """``task_ids``: the task that each key was answered with, twice where it was asked twice."""

    def __init__(self, url: str, token: str, chance: random.Random) -> None:
        super().__init__(url, token, chance)
        self.task_ids: dict[str, str] = {}
        self.faults: list[str] = []

    async def submit(self, tasks: int, *, over_seconds: float) -> None:
        """So many, at a steady rate, some of them cancelled soon after."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        numbers = iter(range(tasks))
        cancelling: set[asyncio.Task[None]] = set()

        async def one_after_another() -> None:
            for number in numbers:
                due = began + over_seconds * number / tasks
                await asyncio.sleep(max(0.0, due - loop.time()))
                task_id = await self._submit(f"key-{number}")
                if self.chance.random() < CANCELLED:
                    task = asyncio.create_task(self._cancel(task_id))
                    cancelling.add(task)
                    task.add_done_callback(cancelling.discard)

        await asyncio.gather(*(one_after_another() for _ in range(SUBMITTERS)))
        await asyncio.gather(*cancelling)

    async def _submit(self, key: str) -> str:
        (task_type,) = self.chance.choices(list(MIX), list(MIX.values()))
        work = Work(
            key=key,
            seconds=self.chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS),
            failures=self.chance.choice((1, 1, 2)) if task_type is SHAKY else 0,
        )
        for _ in range(1 + (self.chance.random() < AGAIN)):
            handle = await self.client.submit(task_type, work, idempotency_key=key)
            if self.task_ids.setdefault(key, handle.task_id) != handle.task_id:
                self.faults.append(f"{key} is two tasks: {self.task_ids[key]}, {handle.task_id}")
        return self.task_ids[key]

    async def _cancel(self, task_id: str) -> None:
        await asyncio.sleep(self.chance.uniform(0, 2))
        await self.client.task(task_id).cancel()


@dataclass
class _Undone:
    """What was done and has to be taken back."""

    paused: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)


class Operators(_WithClient):
    """They revoke, quarantine, pause and hold at random, and take it back."""

    def __init__(self, url: str, token: str, owner: asyncpg.Pool, chance: random.Random) -> None:
        super().__init__(url, token, chance)
        self.did: Counter[str] = Counter()
        self._owner = owner
        self._undone = _Undone()

    async def meddle(self) -> None:
        """Until cancelled."""
        acts: list[Callable[[], Awaitable[None]]] = [
            self._revoke, self._revoke, self._hold, self._hold, self._quarantine, self._pause,
        ]  # fmt: skip
        while True:
            await asyncio.sleep(self.chance.uniform(0.2, 1.0))
            act = self.chance.choice(acts)
            with suppress(Refused):  # what it was about has ended meanwhile
                await act()
                self.did[act.__name__.strip("_")] += 1

    async def tidy_up(self) -> None:
        """Take back what is left."""
        for type_name in [*self._undone.paused]:
            await self._resume(type_name)
        for node in [*self._undone.quarantined]:
            await self._let_back(node)
        for task_id in [*self._undone.held]:
            await self._release(task_id)

    async def _revoke(self) -> None:
        row = await self._any("tenure.attempts where ended_at is null")
        if row is not None:
            revocation = RevocationRequest(attempt_id=str(row["attempt_id"]), reason="trial")
            await self.client.revoke(str(row["task_id"]), revocation)

    async def _hold(self) -> None:
        row = await self._any("tenure.tasks where state = 'open' and current_attempt_id is null")
        if row is None:
            return
        task_id = str(row["task_id"])
        self._undone.held.add(task_id)
        await self.client.task(task_id).hold("trial")
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        await self._release(task_id)

    async def _release(self, task_id: str) -> None:
        with suppress(Refused):  # it has ended, or was not held
            await self.client.task(task_id).release()
        self._undone.held.discard(task_id)

    async def _quarantine(self) -> None:
        row = await self._any("tenure.incarnations where state = 'active'")
        if row is None:
            return
        node = str(row["node_id"])
        self._undone.quarantined.add(node)
        await self.client.quarantine(node, QuarantineRequest(reason="trial"))
        await asyncio.sleep(self.chance.uniform(0, 2))
        await self._let_back(node)

    async def _let_back(self, node: str) -> None:
        await self.client.release_node(node)
        self._undone.quarantined.discard(node)

    async def _pause(self) -> None:
        name = self.chance.choice([one.name for one in MIX])
        self._undone.paused.add(name)
        until = datetime.now(UTC) + timedelta(seconds=60)
        await self.client.pause(
            PauseRequest(scope=PauseScope.TYPE, name=name, reason="trial", until=until)
        )
        await asyncio.sleep(self.chance.uniform(0, 1.5))
        await self._resume(name)

    async def _resume(self, name: str) -> None:
        await self.client.resume(ResumeRequest(scope=PauseScope.TYPE, name=name))
        self._undone.paused.discard(name)

    async def _any(self, those: str) -> asyncpg.Record | None:
        """One of the rows there are at the moment."""
        rows = await self._owner.fetch(f"select * from {those} limit 20")
        return self.chance.choice(rows) if rows else None
