"""What may happen in a history that is lived twice, a step each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from tenure.contract.ids import AttemptId, CommandId, IncarnationId
from tenure.contract.states import LimitScope, TaskState
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decisions import Accepted, ItemOutcome, Reads
from tenure.coordinator.core.rows import ANY
from tests.support.parity import Decided, Twice
from tests.support.parity_commands import KEY, NODES, TYPE, Asker

SECOND: Final = 1_000_000
SPANS: Final = (-3600 * SECOND, -1, 0, 20_000, 5 * SECOND, 3600 * SECOND)
"""Microseconds from now. Those near it are judged by a clock that goes on meanwhile."""
WAITING: Final = 8
"""Decisions that wait for their commit, at most."""
TASKS, RUNNING = 5, 2
"""There at the beginning."""

LIMITED: Final = (
    (LimitScope.TENANT, ""),
    (LimitScope.TYPE, TYPE),
    (LimitScope.KEY, KEY),
    (LimitScope.EACH_KEY, TYPE),
    (LimitScope.EACH_KEY, ANY),
)


class Life:
    """Commands are decided, wait, and are committed in batches; between them time passes and facts
    change. Numbers choose among what there is. ``accepted``: the kinds of commands that were."""

    def __init__(self, twice: Twice) -> None:
        self.twice = twice
        self.outcomes: Counter[ItemOutcome] = Counter()
        self.accepted: set[str] = set()
        self._asker = Asker(twice)
        self._waiting: list[Decided] = []
        self._names = count()

    async def begin(self, *, budget_minor: int) -> None:
        """Nodes, and tasks of which some run."""
        await self.twice.begin(budget_minor)
        for node in range(NODES):
            await self.ask_now("register", 0, node, None, 1)
        for task in range(TASKS):
            await self.ask_now("submit", task, 0, None, task % 2)
        for task in range(RUNNING):
            await self.ask_now("allocate", task, task, None, 0)
            await self.ask_now("take", task, 0, None, 0)

    async def end(self) -> None:
        """What still waits is committed, one by one."""
        while self._waiting:
            await self.commit([0], heard=True)

    async def ask(
        self, kind: str, task: int, node: int, identity: int | None, content: int
    ) -> None:
        """Decide; the commit comes later."""
        command = self._asker.command(kind, task, node, identity, content)
        if command is None:
            return
        decision = await self.twice.decide(command)
        if isinstance(decision, Accepted):
            self.accepted.add(kind)
            self._wait(Decided(command, decision))

    def _wait(self, decided: Decided) -> None:
        self._waiting = [*self._waiting, decided][-WAITING:]

    async def ask_now(
        self, kind: str, task: int, node: int, identity: int | None, content: int
    ) -> None:
        """Decide and commit."""
        others, self._waiting = self._waiting, []
        await self.ask(kind, task, node, identity, content)
        await self.commit([0], heard=False)
        self._waiting = others

    async def ask_again(self, number: int, *, other: bool) -> None:
        """A command arrives a second time, or claims to, while the first is being committed."""
        if not self._waiting:
            return
        first = number % len(self._waiting)
        command = self._waiting[first].command
        if other:
            command = replace(command, fingerprint=b"other")
        decision = await self.twice.decide(command)
        await self.commit([first], heard=False)
        if isinstance(decision, Accepted):
            self._wait(Decided(command, decision))

    async def race(self, kind: str, task: int, node: int, content: int, until: int) -> None:
        """Between a decision and its commit the times that it may have relied on change, or
        somebody else has the same wish."""
        others, self._waiting = self._waiting, []
        await self.ask(kind, task, node, None, content)
        for decided in [*self._waiting]:
            if content == 0:
                self._wait(Decided(*await self._wished_again(decided)))
            else:
                await self._change_times(decided.accepted.reads, until, of_task=content == 1)
        for _ in [*self._waiting]:
            await self.commit([0], heard=False)
        self._waiting = others

    async def _change_times(self, reads: Reads, until: int, *, of_task: bool) -> None:
        rows, attempt_id, task_id = self.twice.rows, reads.attempt_id, reads.task_id
        task = None if task_id is None else rows.tasks.get(task_id)
        if of_task and task is not None and task.state is TaskState.OPEN:
            await self.twice.due(task.task_id, until, until)
        elif attempt_id is not None and attempt_id in rows.reservations:
            await self.twice.lapse(attempt_id, until)
        elif reads.incarnation is not None and reads.incarnation in rows.incarnations:
            await self.twice.hear(reads.incarnation, until)

    async def _wished_again(self, decided: Decided) -> tuple[AnyCommand, Accepted]:
        """The same under another command's id, decided at the same time."""
        identity = CommandId(self.twice.id(f"again {next(self._names)}"))
        command = replace(decided.command, command_id=identity)
        decision = await self.twice.decide(command)
        return command, decision if isinstance(decision, Accepted) else decided.accepted

    async def crowd(self, node: int, tasks: int) -> None:
        """More than one task for a node in one call."""
        others, self._waiting = self._waiting, []
        for task in range(tasks):
            await self.ask("allocate", task, node, None, 0)
        await self.commit(range(WAITING), heard=False)
        self._waiting = others

    async def commit(self, chosen: Sequence[int], *, heard: bool) -> None:
        """A call with some of the decisions that wait, each of them once."""
        numbers = dict.fromkeys(one for one in chosen if one < len(self._waiting))
        batch = [self._waiting[number] for number in numbers]
        seen = [*self.twice.rows.incarnations][-2:] if heard else []
        if batch or seen:
            self.outcomes.update(await self.twice.commit(batch, seen))
        self._waiting = [one for n, one in enumerate(self._waiting) if n not in numbers]

    async def lapse(self, attempt: int, until: int) -> None:
        """The lease of an attempt that has not ended ends then."""
        alive = [*self.twice.rows.reservations]
        if alive:
            await self.twice.lapse(AttemptId(alive[attempt % len(alive)]), until)

    async def hear(self, node: int, at: int) -> None:
        """A node was heard of then."""
        rows = self.twice.rows
        current = [one for one in rows.nodes.values() if one is not None]
        nodes = current or [*rows.incarnations]
        await self.twice.hear(IncarnationId(nodes[node % len(nodes)]), at)

    async def due(self, task: int, not_before: int | None, deadline: int | None) -> None:
        """An open task may begin then, and has to have ended then."""
        tasks = self.twice.rows.tasks.values()
        alive = [one.task_id for one in tasks if one.state is TaskState.OPEN]
        if alive:
            await self.twice.due(alive[task % len(alive)], not_before, deadline)

    async def authorize(self, *, authorized: bool) -> None:
        """Suspend the tenant, or authorize it again."""
        await self.twice.authorize(authorized)

    async def pause(self, until: int | None) -> None:
        """Pause the tenant; None: resume it."""
        await self.twice.pause(until)

    async def enqueue(self) -> None:
        """An application enqueues, in a transaction of its own."""
        await self.twice.enqueue(TYPE, f"enqueued {next(self._names)}")

    async def limit(self, scope: int, most: int, *, of_starts: bool) -> None:
        """Limit what runs, or how often something starts; most 0: no more."""
        chosen, name = LIMITED[scope % len(LIMITED)]
        running, starts = (None, most or None) if of_starts else (most or None, None)
        await self.twice.limit(chosen, name, max_running=running, starts=starts)

    async def set_policy(self) -> None:
        """The same terms under a new version."""
        await self.twice.set_policy()
