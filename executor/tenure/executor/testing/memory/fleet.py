"""The fleet in memory: nodes, the authority, and time, moved on by one loop that a test awaits."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import uuid4

from pydantic import BaseModel
from pydantic_core import from_json

from tenure.contract.ids import DEFAULT_TENANT, AttemptId, CommandId, TaskId
from tenure.contract.scope import Scope
from tenure.contract.states import TERMINAL_ATTEMPT_STATES, EntityType, TaskState
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES, TaskSubmission
from tenure.contract.tasktype import TaskType, named
from tenure.coordinator.api import wire
from tenure.coordinator.api.wire import moment
from tenure.coordinator.core.rows import AttemptRow, NodeFacts, TaskRow
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.submission import submission
from tenure.executor.app import Executor
from tenure.executor.executable import executable_of_app
from tenure.executor.testing.fleet import OPENED_BY_THE_LIFESPAN, FleetTask, NotOpen, Stuck, id_of
from tenure.executor.testing.gates import Gates
from tenure.executor.testing.memory.authority import LogRow, MemoryAuthority, Said
from tenure.executor.testing.memory.broker import MemoryBroker, MemoryRelay
from tenure.executor.testing.memory.faults import MemoryFaults
from tenure.executor.testing.memory.node import MemoryNode, Surroundings
from tenure.executor.testing.messages import check_fleet, look_at
from tenure.executor.testing.recording import Recording, opened
from tenure.executor.testing.story import Attempt, Happening, Receipt, Story

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)

DEFAULT_LEASE_SECONDS: Final = 30.0
DEFAULT_PATIENCE_SECONDS: Final = 30.0
_APPLICATION: Final = Identity("application", DEFAULT_TENANT, Role.APPLICATION)
_MICROSECONDS: Final = 1_000_000


class MemoryClock:
    """The authority's time."""

    def __init__(self, fleet: "MemoryFleet") -> None:
        self._fleet = fleet

    @property
    def now(self) -> datetime:
        """In UTC. It begins with the machine's time, and then stands still until it is moved."""
        return moment(self._fleet.authority.now)

    async def advance(self, *, seconds: float) -> None:
        """Let time pass, and everything happen that happens meanwhile. Handlers that run are not
        waited for. Raises ValueError for a time that runs back."""
        if seconds < 0:
            raise ValueError("time runs forward")
        await self._fleet.advance_to(self._fleet.authority.now + round(seconds * _MICROSECONDS))


class MemoryFleet(MemoryFaults):
    """``async with MemoryFleet(app) as fleet``. See ``Fleet`` and ``MakeFleet``."""

    def __init__(
        self,
        app: Executor,
        *,
        nodes: int = 2,
        slots: int = 4,
        lease_seconds: float | None = None,
        resources: Any = OPENED_BY_THE_LIFESPAN,
        patience_seconds: float | None = None,
    ) -> None:
        """Raises ValueError for a fleet without nodes or handlers, TypeError for no executor."""
        check_fleet(app, nodes)
        self._patience = patience_seconds or DEFAULT_PATIENCE_SECONDS
        self._open = False
        self._moved = asyncio.Event()
        self._tasks: dict[TaskId, FleetTask[Any]] = {}
        lease = round((lease_seconds or DEFAULT_LEASE_SECONDS) * _MICROSECONDS)
        policy = LeasePolicy(
            lease_microseconds=lease,
            clock_tolerance_microseconds=min(_MICROSECONDS, lease // 10),
            # No longer than a lease: what a stopped node has lost goes to another.
            node_silence_microseconds=min(lease, LeasePolicy().node_silence_microseconds),
        )
        now = time.time_ns() // 1000
        self.authority = MemoryAuthority(now=now, policy=policy, appended=self._moved.set)
        self.broker = MemoryBroker()
        self.relay = MemoryRelay(self.authority.log, self.broker)
        self.gates = Gates(self._is_of, self._moved.set)
        self.recording = Recording()
        self.clock = MemoryClock(self)
        self.handlers = self.recording.watched(app.handlers)
        self._around = Surroundings(
            authority=self.authority,
            handlers=self.handlers,
            software=f"{app.name} {app.version}",
            executable=executable_of_app(app),
            facts=_facts_for(app),
            concurrency={
                name: each.concurrency
                for name, each in app.handlers.items()
                if each.concurrency is not None
            },
            slots=slots,
            open_resources=opened(app, resources),
            make_sandbox=self.recording.sandbox,
            faults=self.gates,
            moved=self._moved.set,
        )
        self.nodes = [self.new_node(f"node-{number}") for number in range(1, nodes + 1)]

    # Life -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the nodes. Raises what the executor's lifespan raises."""
        for node in self.nodes:
            await node.start()
        self._open = True

    async def close(self) -> None:
        """End everything that runs."""
        self._open = False
        for node in self.nodes:
            await node.close()

    def new_node(self, name: str) -> MemoryNode:
        """A start of a node of that name, which has not begun."""
        return MemoryNode(name, self._around)

    # Work -----------------------------------------------------------------------------------------

    async def submit(
        self,
        task_type: TaskType[InputT, OutputT],
        input: InputT,
        *,
        priority: int = 0,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        idempotency_key: str | None = None,
        scope: Scope | None = None,
        traceparent: str | None = None,
    ) -> FleetTask[OutputT]:
        """See ``Fleet``."""
        if not self._open:
            raise NotOpen
        name, value = named(task_type, input)
        command = submission(
            TaskSubmission(
                type=name,
                input=value,
                priority=priority,
                not_before=not_before,
                deadline=deadline,
                scope=scope,
                traceparent=traceparent,
            ),
            task_id=TaskId(str(uuid4())),
            fallback_id=CommandId(str(uuid4())),
            key=idempotency_key,
            identity=_APPLICATION,
            payload_limit_bytes=DEFAULT_PAYLOAD_LIMIT_BYTES,
        )
        outcome = self.authority.ask(command)
        if outcome.refused is not None:
            raise AssertionError(
                f"the submission is refused ({outcome.refused.code}): {outcome.refused.message}"
            )
        task = FleetTask(wire.submitted(outcome).task_id, task_type.output)
        self._tasks[TaskId(task.task_id)] = task
        return task

    async def cancel(self, task: FleetTask[Any]) -> None:
        """See ``Fleet``."""
        command_id = CommandId(str(uuid4()))
        task_id = id_of(task)
        wire.applied(
            self.authority.ask(
                wire.cancellation(task_id, command_id=command_id, identity=_APPLICATION)
            )
        )

    async def run_until_idle(self) -> None:
        """See ``Fleet``."""
        await self.until(lambda: self._at_rest() and not any(self._due()), "the fleet to be idle")

    async def ended(self, task: FleetTask[Any]) -> Story:
        """See ``Fleet``."""
        await self.until(
            lambda: self.row_of(task).state is not TaskState.OPEN, "the task to end", task
        )
        return await self.story(task)

    # The loop -------------------------------------------------------------------------------------

    async def until(
        self, met: Callable[[], bool], what: str, task: FleetTask[Any] | None = None
    ) -> None:
        """Let everything go on until ``met``. Time passes where only time is waited for.

        Raises Stuck when nothing goes on any more, or not within the patience.
        """
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    self._moved.clear()
                    await self._pump()
                    if met():
                        return
                    if not self._at_rest():
                        await self._moved.wait()
                        continue
                    instants = [*self._due()]
                    if not instants:
                        raise Stuck(f"waited for {what}, and nothing happens\n{self._told(task)}")
                    await self.advance_to(min(instants))
        except TimeoutError as error:
            raise Stuck(
                f"waited {self._patience:g} s for {what}: a handler does not end\n"
                f"{self._told(task)}"
            ) from error

    async def advance_to(self, target: int) -> None:
        """Move the clock, from one instant at which something happens to the next."""
        while True:
            now = self.authority.now
            wanted = [*self._due(), *(at for node in self.nodes for at in node.due_at())]
            at = min((each for each in wanted if now < each < target), default=target)
            self.authority.set_time(at)
            for node in self.nodes:
                node.tick()
            await self._pump()
            await asyncio.sleep(0)  # what was asked to end has a chance to
            if at >= target:
                return

    async def _pump(self) -> None:
        """Everything that happens without time, by the authority, the relay and the broker."""
        moving = True
        while moving:
            self.authority.sweep()
            moving = self.authority.schedule()
            moving |= self.relay.publish()
            for node in self.nodes:
                bodies = self.broker.take(node.incarnation) if node.reachable else []
                if bodies:
                    await node.receive(bodies)
                    moving = True

    def _at_rest(self) -> bool:
        """Whether nothing goes on by itself: whatever is under way stands at a gate, or waits for
        its stopped node to go on."""
        under_way = sum(node.work.under_way for node in self.nodes)
        speechless = sum(node.speechless for node in self.nodes if not node.reachable)
        return under_way <= len(self.gates.standing()) + speechless

    def _due(self) -> Iterator[int]:
        return self.authority.due_at(
            is_kept=lambda row: any(node.keeps(row.attempt_id) for node in self.nodes)
        )

    # Views ----------------------------------------------------------------------------------------

    def row_of(self, task: FleetTask[Any]) -> TaskRow:
        """The task as the authority has it."""
        return self.authority.rows.tasks[id_of(task)]

    def node_of(self, attempt: AttemptRow) -> MemoryNode:
        """The node that an attempt was given to."""
        return next(node for node in self.nodes if node.incarnation == attempt.incarnation)

    async def _is_of(self, attempt_id: AttemptId, task_id: TaskId) -> bool:
        return self.authority.rows.attempts[attempt_id].task_id == task_id

    async def story(self, task: FleetTask[Any]) -> Story:
        """See ``Fleet``."""
        return self._story(id_of(task))

    def tell(self) -> str:
        """See ``Fleet``."""
        return "\n".join(str(self._story(task_id)) for task_id in self._tasks)

    def _told(self, task: FleetTask[Any] | None) -> str:
        if task is None:
            return self.tell()
        story = self._story(id_of(task))
        return f"{look_at(story)}\n{story}"

    def _story(self, task_id: TaskId) -> Story:
        authority, row = self.authority, self.authority.rows.tasks[task_id]
        attempts = authority.attempts_of(task_id)
        ordinals = {each.attempt_id: each.ordinal for each in attempts}
        receipts = tuple(
            Receipt(
                each.receipt_id,
                each.attempt_id,
                ordinals[AttemptId(each.attempt_id)],
                each.admitted,
                each.code,
                from_json(authority.outputs[each.receipt_id]),
            )
            for each in authority.receipts_of(attempts)
        )
        said = authority.said.get(task_id, Said(None, None))
        events = authority.events_of(task_id)
        return Story(
            task_id=task_id,
            task_type=row.type,
            state=row.state,
            reason=said.reason,
            message=said.message,
            output=next((each.output for each in receipts if each.admitted), None),
            attempts=tuple(self.attempt_of(each) for each in attempts),
            receipts=receipts,
            events=tuple(_happening(each, events[0].at, ordinals) for each in events),
        )

    def attempt_of(self, row: AttemptRow) -> Attempt:
        """An attempt as tests see it, as it is now."""
        row = self.authority.rows.attempts[row.attempt_id]
        said = self.authority.said.get(row.attempt_id, Said(None, None))
        return Attempt(
            ordinal=row.ordinal,
            attempt_id=row.attempt_id,
            node_id=row.node_id,
            fencing_token=row.fencing_token,
            state=row.state,
            reason=said.reason,
            message=said.message,
            began=self.recording.began(row.attempt_id),
            raised=self.recording.raised(row.attempt_id),
        )

    def has_ended(self, row: AttemptRow) -> bool:
        """Whether the authority has seen the end of an attempt."""
        return self.authority.rows.attempts[row.attempt_id].state in TERMINAL_ATTEMPT_STATES


def _happening(row: LogRow, begin: int, ordinals: dict[AttemptId, int]) -> Happening:
    event = row.event
    about_attempt = event.entity_type is EntityType.ATTEMPT and event.attempt_id is not None
    return Happening(
        seconds=(row.at - begin) / _MICROSECONDS,
        event_id=event.event_id,
        ordinal=ordinals[event.attempt_id] if about_attempt and event.attempt_id else None,
        previous_state=event.previous_state,
        next_state=event.next_state,
        reason=event.reason,
        fencing_token=event.fencing_token,
    )


def _facts_for(app: Executor) -> NodeFacts:
    """Nodes that have whatever the handlers ask for."""
    wanted = [declaration.requirements for declaration in app.handlers.values()]
    locations = [each.locations[0] for each in wanted if each.locations]
    labels = {item for each in wanted for item in each.labels.items()}
    return NodeFacts(
        location=locations[0] if locations else None,
        networks=frozenset(name for each in wanted for name in each.networks),
        labels=frozenset(labels),
    )
