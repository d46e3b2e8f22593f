"""What can be done to a fleet on servers, done for real: leases run out by the clock, lines are
cut, messages are published again, the relay is killed."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import aio_pika
import asyncpg

from tenure.cli.testing.held_messages import HeldBack
from tenure.cli.testing.node import ServerNode
from tenure.cli.testing.servers import Servers
from tenure.cli.testing.skipping import check_wait
from tenure.cli.testing.terms import UNANSWERED_LEASE_SECONDS
from tenure.contract.codec import decode_event
from tenure.contract.events import CONTENT_TYPE
from tenure.contract.faultpoints import FaultPoint
from tenure.contract.ids import AttemptId, TaskId
from tenure.contract.states import TERMINAL_ATTEMPT_STATES, AttemptState, EntityType
from tenure.contract.tasks import AttemptView, TaskView
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.testing.fleet import Fleet, FleetTask, id_of
from tenure.executor.testing.gates import Gate, Gates
from tenure.executor.testing.messages import Where, in_words, zombie_point
from tenure.executor.testing.recording import Recording
from tenure.executor.testing.story import Attempt, Receipt

_ASSIGNMENT = (
    "select routing_key, body from tenure.log where order_key = $1::text::uuid"
    " and entity_id = $2::text::uuid and copy order by position limit 1"
)
_ASSIGNED: Final = "an assignment of the task"


class ServerFaults(Fleet):
    """The half of ``ServerFleet`` that does harm."""

    servers: Servers
    gates: Gates
    recording: Recording
    nodes: list[ServerNode]
    lease_seconds: float
    handlers: Mapping[str, HandlerDeclaration]

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
        async with self._by_message_only():
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
        """See ``Fleet``. The first assignment is held between the broker and its node, and
        delivered again after the second."""
        await self.halt()
        await self.grant(min(self.lease_seconds, UNANSWERED_LEASE_SECONDS))
        url, queues = self.servers.stack.connection().broker_url, await self.queues()
        wanted = partial(_assigns, id_of(task))
        async with self._by_message_only(), HeldBack(url, queues, wanted) as held:
            try:
                overtaken = await self._held(task, held)
            finally:
                await self.grant(self.lease_seconds)
            await self.until(lambda: self._is_followed(task, overtaken), "the next to end", task)
            node, task_type = self.node_of(overtaken), (await self.view(task)).type
            known = node.not_taken(task_type)
            await held.let_go()

            async def refused() -> bool:
                return node.not_taken(task_type) > known

            await self.until(refused, "the overtaken assignment to be refused", task)
        return await self._as_it_is(task, overtaken)

    async def kill_relay_after_confirm(self, task: FleetTask[Any]) -> int:
        """See ``Fleet``. SIGKILL at the fault point; the stack starts it again."""
        if (await self.view(task)).attempt_list:
            raise ValueError("its assignment has been published already: ask before anything else")
        known = sum(node.copies_recognised for node in self.nodes)

        async def came_again() -> bool:
            return sum(node.copies_recognised for node in self.nodes) > known

        async with self._by_message_only():
            # Nothing begins before something is waited for, so this is the next to be confirmed.
            await self.wait(self.relay_is_idle, "the relay to have published everything")
            self.servers.stack.arm_relay()
            await self.ended(task)
            await self.until(came_again, "the assignment to come again", task)
        return 1 + sum(node.copies_recognised for node in self.nodes) - known

    async def zombie(self, task: FleetTask[Any], *, at: Where = "handler") -> Attempt:
        """See ``Fleet``. The node's clock stands still, and it is cut off until its handler has
        ended: no answer tells it what has passed."""
        if len(self.nodes) < 2:
            raise ValueError("a zombie needs a second node that does its work: nodes=2")
        point = zombie_point(self.handlers[(await self.view(task)).type], at)
        gate, attempt = await self._caught(task, point)
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
        check_wait(self.lease_seconds)
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
            if not gate.stands:
                await self.check_open(task, in_words(point))
            return gate.stands

        try:
            await self.until(stands, in_words(point), task)
        except BaseException:
            self.gates.take_away(gate)
            raise
        return gate, await self._found(task, gate.caught)

    @asynccontextmanager
    async def _by_message_only(self) -> AsyncIterator[None]:
        """For the length of a block nodes do not ask what they should have: who gets there first,
        a message or an answer, would be chance."""
        try:
            for node in self.nodes:
                await node.compares(whether=False)
            yield
        finally:
            for node in self.nodes:
                await node.compares(whether=True)

    async def _held(self, task: FleetTask[Any], held: HeldBack) -> AttemptView:
        """The next attempt whose assignment is held back. Other tasks go on meanwhile."""

        async def one_is() -> bool:
            if held.caught is None:
                await self.check_open(task, _ASSIGNED)
            if held.caught is None and held.holds_others:
                # Nothing of this task may come while others pass.
                await self.halt()
                if not await self._is_assigned(task):
                    await held.let_others_pass()
                await self.begin()
            return held.caught is not None

        await self.until(one_is, _ASSIGNED, task)
        assert held.caught is not None
        await held.let_others_pass()
        return await self._found(task, decode_event(held.caught).attempt_id)

    async def _is_assigned(self, task: FleetTask[Any]) -> bool:
        """Whether an assignment of the task is on its way."""
        attempts = (await self.view(task)).attempt_list
        return any(each.state is AttemptState.SUBMITTED for each in attempts)

    async def _is_followed(self, task: FleetTask[Any], attempt: AttemptView) -> bool:
        """Whether a later attempt has ended."""
        return any(
            each.ordinal > attempt.ordinal and each.state in TERMINAL_ATTEMPT_STATES
            for each in (await self.view(task)).attempt_list
        )

    async def _found(self, task: FleetTask[Any], attempt_id: str | None) -> AttemptView:
        listed = (await self.view(task)).attempt_list
        return next(each for each in listed if each.attempt_id == attempt_id)

    async def _let_expire(self, task: FleetTask[Any], attempt: AttemptView) -> None:
        """Cut its node off until its lease has run out."""
        check_wait(self.lease_seconds)
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
    async def check_open(self, task: FleetTask[Any], what: str) -> None:
        """Raises Stuck where the task has ended: what is waited for does not come any more."""

    @abstractmethod
    async def halt(self) -> None:
        """Let nothing more begin, and wait until everything is published."""

    @abstractmethod
    async def grant(self, lease_seconds: float) -> None:
        """Let leases that are granted from now on be of this length."""

    @abstractmethod
    async def begin(self) -> None:
        """Let it begin."""

    @abstractmethod
    async def queues(self) -> list[str]:
        """Of the nodes."""

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


def _assigns(task_id: TaskId, body: bytes) -> bool:
    """Whether a message gives an attempt of the task to a node."""
    event = decode_event(body)
    return (
        event.task_id == task_id
        and event.entity_type is EntityType.ATTEMPT
        and event.next_state == AttemptState.SUBMITTED
    )
