"""What can be done to a fleet on servers, done for real: leases run out by the clock, lines are
cut, messages are published again, the relay is killed."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import asyncpg

from tenure.cli.testing.node import ServerNode
from tenure.cli.testing.servers import Servers
from tenure.cli.testing.skipping import skip
from tenure.contract.events import CONTENT_TYPE
from tenure.contract.faultpoints import FaultPoint
from tenure.contract.ids import AttemptId
from tenure.contract.states import TERMINAL_ATTEMPT_STATES
from tenure.contract.tasks import AttemptView, TaskView
from tenure.executor.testing.fleet import ZOMBIE_POINTS, Fleet, FleetTask, Where, id_of
from tenure.executor.testing.gates import Gate, Gates
from tenure.executor.testing.recording import Recording
from tenure.executor.testing.story import Attempt, Receipt

_ASSIGNMENT = (
    "select routing_key, body from tenure.log where order_key = $1::text::uuid"
    " and entity_id = $2::text::uuid and copy order by position limit 1"
)


class ServerFaults(Fleet):
    """The half of ``ServerFleet`` that does harm."""

    servers: Servers
    gates: Gates
    recording: Recording
    nodes: list[ServerNode]

    async def expire_lease(self, task: FleetTask[Any]) -> Attempt:
        """See ``Fleet``. Its node is cut off from the coordinator meanwhile."""
        attempt, gate = await self._at_work(task)
        await self._let_expire(task, attempt)
        await self.until(lambda: self._has_let_go(attempt, gate), "the handler to end", task)
        await self.node_of(attempt).reconnect()
        return await self._as_it_is(task, attempt)

    async def late_receipt(self, task: FleetTask[Any]) -> Receipt:
        """See ``Fleet``. Its node is cut off from the coordinator meanwhile."""
        gate, attempt = await self._caught(task, FaultPoint.BEFORE_REPORT)
        await self._let_expire(task, attempt)
        await self.ended(task)
        await self.node_of(attempt).reconnect()
        gate.open()
        return await self._receipt_of(task, attempt)

    async def duplicate(self, task: FleetTask[Any]) -> int:
        """See ``Fleet``. The same bytes are published to the node's queue again."""
        attempt, gate = await self._at_work(task)
        node = self.node_of(attempt)
        known = node.copies_recognised
        await self._publish_again(attempt, task)
        await self._recognised(node, known + 1, task)
        if gate is not None:
            gate.open()
        await self.until(lambda: self._has_ended(task, attempt), "the attempt to end", task)
        await self._publish_again(attempt, task)
        await self._recognised(node, known + 2, task)
        return node.copies_recognised - known

    async def reorder(self, task: FleetTask[Any]) -> Attempt:
        """See ``Fleet``. Not done here."""
        skip(
            "a queue of RabbitMQ keeps its order, and the second assignment goes to whichever node"
            " is free: run it in memory"
        )

    async def kill_relay_after_confirm(self, task: FleetTask[Any]) -> int:
        """See ``Fleet``. SIGKILL at the fault point; the stack starts it again."""
        if (await self.view(task)).attempt_list:
            raise ValueError("its assignment has been published already: ask before anything else")
        known = sum(node.copies_recognised for node in self.nodes)
        # Nothing begins before something is waited for, so this is the next to be confirmed.
        await self.wait(self.relay_is_idle, "the relay to have published everything")
        self.servers.stack.arm_relay()
        await self.ended(task)

        async def came_again() -> bool:
            return sum(node.copies_recognised for node in self.nodes) > known

        await self.until(came_again, "the assignment to come again", task)
        return 1 + sum(node.copies_recognised for node in self.nodes) - known

    async def zombie(self, task: FleetTask[Any], *, at: Where = "handler") -> Attempt:
        """See ``Fleet``. The node's clock stands still, and it is cut off until its handler has
        ended: no answer tells it what has passed."""
        if len(self.nodes) < 2:
            raise ValueError("a zombie needs a second node that does its work: nodes=2")
        gate, attempt = await self._caught(task, ZOMBIE_POINTS[at])
        node = self.node_of(attempt)
        node.clock.stop()
        await self._let_expire(task, attempt)
        await self.ended(task)
        node.clock.go_on()
        gate.open()
        await self.until(lambda: self._handler_ended(attempt), "the zombie to end", task)
        await node.reconnect()
        return await self._as_it_is(task, attempt)

    async def kill_node(self, task: FleetTask[Any]) -> Attempt:
        """See ``Fleet``. The node is in the test's own process: it ends without a word to anybody,
        and its handlers are cancelled."""
        _, attempt = await self._caught(task, FaultPoint.BEFORE_REPORT)
        dead = self.node_of(attempt)
        await dead.kill()
        await self.start_node(self.short_name(dead))
        await self.until(lambda: self._has_ended(task, attempt), "the attempt to be lost", task)
        return await self._as_it_is(task, attempt)

    # Parts ----------------------------------------------------------------------------------------

    async def _at_work(self, task: FleetTask[Any]) -> tuple[AttemptView, Gate | None]:
        """An attempt whose handler runs, or the next one, caught as it is about to."""
        for view in (await self.view(task)).attempt_list:
            run = self.recording.runs.get(AttemptId(view.attempt_id))
            if run is not None and not run.ended:
                return view, None
        gate, attempt = await self._caught(task, FaultPoint.BEFORE_HANDLER)
        return attempt, gate

    async def _caught(self, task: FleetTask[Any], point: FaultPoint) -> tuple[Gate, AttemptView]:
        """The next attempt that gets to the point; it stands there."""
        gate = self.gates.put(point, id_of(task))

        async def stands() -> bool:
            return gate.stands

        try:
            await self.until(stands, f"an attempt that gets to {point}", task)
        except BaseException:
            self.gates.take_away(gate)
            raise
        return gate, await self._found(task, gate.caught)

    async def _found(self, task: FleetTask[Any], attempt_id: str | None) -> AttemptView:
        listed = (await self.view(task)).attempt_list
        return next(each for each in listed if each.attempt_id == attempt_id)

    async def _let_expire(self, task: FleetTask[Any], attempt: AttemptView) -> None:
        """Cut its node off until its lease has run out."""
        await self.node_of(attempt).cut_off()
        await self.until(lambda: self._has_ended(task, attempt), "its lease to run out", task)

    async def _has_ended(self, task: FleetTask[Any], attempt: AttemptView) -> bool:
        return (await self._found(task, attempt.attempt_id)).state in TERMINAL_ATTEMPT_STATES

    async def _has_let_go(self, attempt: AttemptView, gate: Gate | None) -> bool:
        """Whether the attempt's handler was ended, or never began."""
        return not gate.stands if gate is not None else await self._handler_ended(attempt)

    async def _handler_ended(self, attempt: AttemptView) -> bool:
        run = self.recording.runs.get(AttemptId(attempt.attempt_id))
        return run is not None and run.ended

    async def _as_it_is(self, task: FleetTask[Any], attempt: AttemptView) -> Attempt:
        return (await self.story(task)).attempt(attempt.ordinal)

    async def _receipt_of(self, task: FleetTask[Any], attempt: AttemptView) -> Receipt:
        async def recorded() -> bool:
            receipts = (await self.view(task)).receipts
            return any(each.attempt_id == attempt.attempt_id for each in receipts)

        await self.until(recorded, "the late report to be recorded", task)
        receipts = (await self.story(task)).receipts
        return next(each for each in receipts if each.attempt_id == attempt.attempt_id)

    async def _publish_again(self, attempt: AttemptView, task: FleetTask[Any]) -> None:
        """The bytes of its assignment, as the log has them, to the queue that they went to."""
        connection = self.servers.stack.connection()
        database = await asyncpg.connect(connection.database_url, ssl=False)
        try:
            row = await database.fetchrow(_ASSIGNMENT, task.task_id, attempt.attempt_id)
        finally:
            await database.close()
        assert row is not None
        broker = await aio_pika.connect(connection.broker_url)
        async with broker, broker.channel() as channel:
            message = aio_pika.Message(row["body"], content_type=CONTENT_TYPE)
            await channel.default_exchange.publish(message, routing_key=row["routing_key"])

    async def _recognised(self, node: ServerNode, copies: int, task: FleetTask[Any]) -> None:
        async def recognised() -> bool:
            return node.copies_recognised >= copies

        await self.until(recognised, "the copy to be recognised", task)

    # The other half -------------------------------------------------------------------------------

    @abstractmethod
    async def until(
        self,
        met: Callable[[], Awaitable[bool]],
        what: str,
        task: FleetTask[Any] | None = None,
    ) -> None:
        """Let everything begin, and wait."""

    @abstractmethod
    async def wait(
        self,
        met: Callable[[], Awaitable[bool]],
        what: str,
        task: FleetTask[Any] | None = None,
    ) -> None:
        """Wait, and let nothing begin for that."""

    @abstractmethod
    async def relay_is_idle(self) -> bool:
        """Whether everything is published."""

    @abstractmethod
    async def view(self, task: FleetTask[Any]) -> TaskView:
        """The task as the coordinator shows it."""

    @abstractmethod
    async def start_node(self, name: str) -> ServerNode:
        """Start a node of that name, or start it again."""

    @abstractmethod
    def short_name(self, node: ServerNode) -> str:
        """Its name as tests see it."""

    @abstractmethod
    def node_of(self, attempt: AttemptView) -> ServerNode:
        """The node that an attempt was given to."""
