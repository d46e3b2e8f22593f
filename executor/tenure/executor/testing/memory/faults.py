"""What can be done to a fleet in memory. Each fault waits for the instant that it is about, by a
gate at a fault point, and never for a time."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from tenure.contract.faultpoints import FaultPoint
from tenure.contract.states import TaskState
from tenure.coordinator.core.rows import AttemptRow, TaskRow
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.testing.fleet import Fleet, FleetTask, id_of
from tenure.executor.testing.gates import Gate, Gates
from tenure.executor.testing.memory.authority import MemoryAuthority
from tenure.executor.testing.memory.broker import MemoryBroker, MemoryRelay
from tenure.executor.testing.memory.node import MemoryNode
from tenure.executor.testing.messages import Where, in_words, zombie_point
from tenure.executor.testing.recording import Recording
from tenure.executor.testing.story import Attempt, Receipt


class MemoryFaults(Fleet):
    """The half of ``MemoryFleet`` that does harm."""

    authority: MemoryAuthority
    broker: MemoryBroker
    relay: MemoryRelay
    gates: Gates
    recording: Recording
    nodes: list[MemoryNode]
    handlers: Mapping[str, HandlerDeclaration]

    async def expire_lease(self, task: FleetTask[Any]) -> Attempt:
        """See ``Fleet``."""
        attempt, gate = await self._at_work(task)
        await self._let_expire(attempt)
        if gate is not None:
            gate.open()
        await self.until(lambda: self._is_over(attempt), "the handler to end", task)
        return self.attempt_of(attempt)

    async def late_receipt(self, task: FleetTask[Any]) -> Receipt:
        """See ``Fleet``."""
        gate, attempt = await self._caught(task, FaultPoint.BEFORE_REPORT)
        await self._let_expire(attempt)
        await self.until(
            lambda: self.row_of(task).state is not TaskState.OPEN, "the next attempt to end", task
        )
        gate.open()
        await self.until(lambda: self._is_over(attempt), "the late report to be answered", task)
        story = await self.story(task)
        for receipt in story.receipts:
            if receipt.attempt_id == attempt.attempt_id:
                return receipt
        raise AssertionError(f"the first attempt delivered nothing that could come late\n{story}")

    async def duplicate(self, task: FleetTask[Any]) -> int:
        """See ``Fleet``."""
        attempt, gate = await self._at_work(task)
        node = self.node_of(attempt)
        known = node.copies_recognised
        (row,) = (
            row
            for row in self.authority.events_of(attempt.task_id)
            if row.event.to_node is not None and row.event.entity_id == attempt.attempt_id
        )
        await node.receive([row.body])
        if gate is not None:
            gate.open()
        await self.until(lambda: self._is_over(attempt), "the attempt to end", task)
        await node.receive([row.body])
        return node.copies_recognised - known

    async def reorder(self, task: FleetTask[Any]) -> Attempt:
        """See ``Fleet``."""
        task_id = id_of(task)
        self.broker.keep_back(task_id)
        await self.until(
            lambda: len(self.broker.kept_back(task_id)) == 2, "a second assignment", task
        )
        overtaken, second = self.authority.attempts_of(task_id)[-2:]
        self.broker.deliver_newest(task_id)
        await self.until(lambda: self._is_over(second), "the second attempt to end", task)
        self.broker.deliver_rest(task_id)
        await self.run_until_idle()
        return self.attempt_of(overtaken)

    async def kill_relay_after_confirm(self, task: FleetTask[Any]) -> int:
        """See ``Fleet``."""
        deaths = self.relay.deaths
        self.relay.die_after_confirm(id_of(task))
        await self.until(lambda: self.relay.deaths > deaths, "the relay to be killed", task)
        await self.ended(task)
        return max(
            self.broker.arrived[row.event.event_id] for row in self.authority.events_of(id_of(task))
        )

    async def zombie(self, task: FleetTask[Any], *, at: Where = "handler") -> Attempt:
        """See ``Fleet``."""
        if sum(node.reachable for node in self.nodes) < 2:
            raise ValueError("a zombie needs a second node that does its work: nodes=2")
        point = zombie_point(self.handlers[self.row_of(task).type], at)
        gate, attempt = await self._caught(task, point)
        node = self.node_of(attempt)
        node.stop()
        await self._advance_past(attempt)
        await self.until(
            lambda: self.row_of(task).state is not TaskState.OPEN, "its successor to end", task
        )
        node.go_on()
        gate.open()
        await self.until(lambda: self._is_over(attempt), "the zombie to end", task)
        return self.attempt_of(attempt)

    async def kill_node(self, task: FleetTask[Any]) -> Attempt:
        """See ``Fleet``."""
        _, attempt = await self._caught(task, FaultPoint.BEFORE_REPORT)
        dead = self.node_of(attempt)
        await dead.close()
        again = self.new_node(dead.node_id)
        self.nodes.append(again)
        await again.start()
        await self.until(lambda: self.has_ended(attempt), "the attempt to be given up", task)
        return self.attempt_of(attempt)

    # Parts ----------------------------------------------------------------------------------------

    async def _at_work(self, task: FleetTask[Any]) -> tuple[AttemptRow, Gate | None]:
        """An attempt whose handler runs, or the next one, caught as it is about to."""
        current = self.row_of(task).current_attempt_id
        run = None if current is None else self.recording.runs.get(current)
        if current is not None and run is not None and not run.ended:
            return self.authority.rows.attempts[current], None
        gate, attempt = await self._caught(task, FaultPoint.BEFORE_HANDLER)
        return attempt, gate

    async def _caught(self, task: FleetTask[Any], point: FaultPoint) -> tuple[Gate, AttemptRow]:
        """The next attempt that gets to the point; it stands there."""
        gate = self.gates.put(point, id_of(task))
        try:
            await self.until(lambda: gate.stands, in_words(point), task)
        except BaseException:
            self.gates.take_away(gate)
            raise
        assert gate.caught is not None
        return gate, self.authority.rows.attempts[gate.caught]

    async def _let_expire(self, attempt: AttemptRow) -> None:
        """Its renewals get lost until its lease has run out."""
        withheld = self.node_of(attempt).withheld
        withheld.add(attempt.attempt_id)
        await self._advance_past(attempt)

    async def _advance_past(self, attempt: AttemptRow) -> None:
        await self.advance_to(self.authority.rows.attempts[attempt.attempt_id].expires_at)
        assert self.has_ended(attempt)

    def _is_over(self, attempt: AttemptRow) -> bool:
        """Whether the attempt has ended, for the authority and on its node."""
        return self.has_ended(attempt) and not self.node_of(attempt).work.runs(attempt.attempt_id)

    # The other half -------------------------------------------------------------------------------

    @abstractmethod
    async def until(
        self, met: Callable[[], bool], what: str, task: FleetTask[Any] | None = None
    ) -> None:
        """Let everything go on until ``met``."""

    @abstractmethod
    async def advance_to(self, target: int) -> None:
        """Move the clock."""

    @abstractmethod
    def row_of(self, task: FleetTask[Any]) -> TaskRow:
        """The task as the authority has it."""

    @abstractmethod
    def node_of(self, attempt: AttemptRow) -> MemoryNode:
        """The node that an attempt was given to."""

    @abstractmethod
    def new_node(self, name: str) -> MemoryNode:
        """A start of a node of that name."""

    @abstractmethod
    def attempt_of(self, row: AttemptRow) -> Attempt:
        """An attempt as tests see it."""

    @abstractmethod
    def has_ended(self, row: AttemptRow) -> bool:
        """Whether the authority has seen its end."""
