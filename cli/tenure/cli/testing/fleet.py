"""The fleet on servers: what ``MemoryFleet`` is without any."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from tenure.cli.testing.faults import ServerFaults
from tenure.cli.testing.node import ServerNode
from tenure.cli.testing.servers import Servers
from tenure.cli.testing.skipping import check_wait, skip
from tenure.cli.testing.terms import LEASE_SECONDS, SHORTEST_LEASE_SECONDS, put_in_force, terms
from tenure.client import AsyncClient, AsyncTaskHandle
from tenure.client.errors import ClientError, Refused
from tenure.contract.flow import PauseRequest, ResumeRequest
from tenure.contract.ids import DEFAULT_TENANT, AttemptId, IncarnationId, TaskId
from tenure.contract.reports import NodeFacts
from tenure.contract.scope import Scope
from tenure.contract.states import NodeState, PauseScope, TaskState
from tenure.contract.tasks import AttemptView, TaskView, TimelineEntry
from tenure.contract.tasktype import TaskType
from tenure.contract.topology import node_queue
from tenure.executor.app import Executor
from tenure.executor.testing.fleet import OPENED_BY_THE_LIFESPAN, FleetTask, NotOpen, Stuck, id_of
from tenure.executor.testing.gates import Gates
from tenure.executor.testing.messages import check_fleet, look_at
from tenure.executor.testing.recording import Recording, WatchedExecutor
from tenure.executor.testing.story import Attempt, Happening, Receipt, Story

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)

DEFAULT_PATIENCE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
_EVERYTHING: Final[Any] = {"scope": PauseScope.TENANT, "name": DEFAULT_TENANT}
_WANTED: Final = "a fleet of tests wants leases of this length"
_PAUSE: Final = "a test has submitted tasks and waits for nothing so far"


class RealClock:
    """Time as it is. It is waited for, and nobody waits for long."""

    def __init__(self, begin: Callable[[], Awaitable[None]]) -> None:
        self._begin = begin

    @property
    def now(self) -> datetime:
        """In UTC."""
        return datetime.now(UTC)

    async def advance(self, *, seconds: float) -> None:
        """Wait; the test is skipped where that would take too long. Raises ValueError for a time
        that runs back."""
        if seconds < 0:
            raise ValueError("time runs forward")
        check_wait(seconds)
        await self._begin()
        await asyncio.sleep(seconds)


class ServerFleet(ServerFaults):
    """``async with ServerFleet(app, servers) as fleet``. See ``Fleet`` and ``MakeFleet``."""

    def __init__(
        self,
        app: Executor,
        servers: Servers,
        *,
        nodes: int = 2,
        slots: int = 4,
        lease_seconds: float | None = None,
        resources: Any = OPENED_BY_THE_LIFESPAN,
        patience_seconds: float | None = None,
    ) -> None:
        """Raises as ``MemoryFleet`` does. A test of leases that are too short is skipped."""
        check_fleet(app, nodes)
        self.lease_seconds = lease_seconds or LEASE_SECONDS
        if self.lease_seconds < SHORTEST_LEASE_SECONDS:
            skip(
                f"on real servers a lease of {self.lease_seconds:g} s runs out while it is granted:"
                " run it in memory"
            )
        self.servers = servers
        self.clock = RealClock(self.begin)
        self.recording = Recording()
        self.gates = Gates(self._is_of)
        self.nodes: list[ServerNode] = []
        self._app = WatchedExecutor(app, self.recording, resources)
        self.handlers = self._app.handlers
        self._names = [f"node-{number}" for number in range(1, nodes + 1)]
        self._prefix = f"{secrets.token_hex(4)}."
        self._slots = slots
        self._patience = patience_seconds or DEFAULT_PATIENCE_SECONDS
        self._paused = False
        self._folder: Path | None = None
        self._client: AsyncClient | None = None
        self._handles: dict[str, AsyncTaskHandle[Any]] = {}
        self._told: dict[str, Story] = {}

    # Life -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the servers, unless they run, and the nodes; wait until these are there."""
        connection = await self.servers.started()
        self._client = AsyncClient(connection.url, connection.tokens["operator"])
        await put_in_force(self._client, terms(self.lease_seconds), _WANTED)
        self._folder = Path(tempfile.mkdtemp(prefix="tenure-kit-nodes-"))
        for name in self._names:
            await self.start_node(name)
        await self.until(self._all_registered, "the nodes to register")

    async def close(self) -> None:
        """End the nodes and what they have begun."""
        self.gates.open_all()
        with suppress(ClientError):
            await self.begin()
            for handle in self._handles.values():
                story = await self._story(handle)
                if story.state in (TaskState.OPEN, TaskState.HELD):
                    await handle.cancel()
        for node in self.nodes:
            await node.reconnect()
            await node.stop()
        if self._client is not None:
            await self._client.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def start_node(self, name: str) -> ServerNode:
        """Start a node of that name, or start it again."""
        assert self._folder is not None
        node = ServerNode(
            self._prefix + name,
            self._app,
            self.servers,
            slots=self._slots,
            faults=self.gates,
            make_sandbox=self.recording.sandbox,
        )
        self.nodes = [each for each in self.nodes if each.name != node.name] + [node]
        await node.start(_facts_for(self._app), self._folder)
        return node

    async def _all_registered(self) -> bool:
        return {node.name for node in self.nodes} <= (await self._incarnations()).keys()

    async def _incarnations(self) -> dict[str, IncarnationId]:
        """Of all nodes that the coordinator knows to be there, by name."""
        assert self._client is not None
        return {
            node.node_id: IncarnationId(node.incarnation)
            for node in (await self._client.nodes()).nodes
            if node.state == NodeState.ACTIVE
        }

    async def queues(self) -> list[str]:
        """See ``ServerFaults``."""
        known = await self._incarnations()
        prefix = self.servers.stack.connection().name_prefix
        return [node_queue(DEFAULT_TENANT, known[node.name], prefix) for node in self.nodes]

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
        """See ``Fleet``. The tenant is paused until something is waited for."""
        if self._client is None:
            raise NotOpen
        await self._pause()
        try:
            handle = await self._client.submit(
                task_type,
                input,
                priority=priority,
                not_before=not_before,
                deadline=deadline,
                idempotency_key=None if idempotency_key is None else self._prefix + idempotency_key,
                scope=scope,
                traceparent=traceparent,
            )
        except Refused as error:
            raise AssertionError(f"the submission is refused ({error.code}): {error}") from error
        self._handles[handle.task_id] = handle
        return FleetTask(handle.task_id, task_type.output)

    async def cancel(self, task: FleetTask[Any]) -> None:
        """See ``Fleet``."""
        await self._handles[id_of(task)].cancel()

    async def run_until_idle(self) -> None:
        """See ``Fleet``. Here until every task has ended or is held."""
        for handle in self._handles.values():
            await self.ended(FleetTask(handle.task_id, BaseModel))

    async def ended(self, task: FleetTask[Any]) -> Story:
        """See ``Fleet``."""

        async def over() -> bool:
            view = await self.view(task)
            if view.state is TaskState.OPEN and view.not_before is not None:
                check_wait((view.not_before - self.clock.now).total_seconds())
            return view.state is not TaskState.OPEN

        await self.until(over, "the task to end", task)
        return await self.story(task)

    async def _pause(self) -> None:
        if not self._paused and self._client is not None:
            await self._client.pause(PauseRequest(**_EVERYTHING, reason=_PAUSE))
            self._paused = True

    async def halt(self) -> None:
        """See ``ServerFaults``."""
        await self._pause()
        await self.wait(self.relay_is_idle, "the relay to have published everything")

    async def grant(self, lease_seconds: float) -> None:
        """See ``ServerFaults``."""
        assert self._client is not None
        await put_in_force(self._client, {"lease_seconds": lease_seconds}, _WANTED)

    async def begin(self) -> None:
        """Let what was submitted begin."""
        if self._paused and self._client is not None:
            await self._client.resume(ResumeRequest(**_EVERYTHING))
            self._paused = False

    async def until(
        self,
        met: Callable[[], Awaitable[bool]],
        what: str,
        task: FleetTask[Any] | None = None,
    ) -> None:
        """Let everything begin, and wait. Raises as ``wait``."""
        await self.begin()
        await self.wait(met, what, task)

    async def wait(
        self,
        met: Callable[[], Awaitable[bool]],
        what: str,
        task: FleetTask[Any] | None = None,
    ) -> None:
        """Wait. Raises Stuck when the patience is over, and what has ended a node."""
        try:
            async with asyncio.timeout(self._patience):
                while not await met():
                    for node in self.nodes:
                        node.check()
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            raise Stuck(
                f"waited {self._patience:g} s for {what}{await self._known(task)}"
            ) from error

    async def check_open(self, task: FleetTask[Any], what: str) -> None:
        """See ``ServerFaults``."""
        if (await self.view(task)).state is not TaskState.OPEN:
            raise Stuck(f"waited for {what}, and nothing happens{await self._known(task)}")

    async def _known(self, task: FleetTask[Any] | None) -> str:
        if task is None:
            return ""
        story = await self.story(task)
        return f"\n{look_at(story)}\n{story}"

    # Views ----------------------------------------------------------------------------------------

    async def view(self, task: FleetTask[Any]) -> TaskView:
        """The task as the coordinator shows it."""
        return await self._handles[id_of(task)].view()

    async def story(self, task: FleetTask[Any]) -> Story:
        """See ``Fleet``."""
        return await self._story(self._handles[id_of(task)])

    async def _story(self, handle: AsyncTaskHandle[Any]) -> Story:
        view, receipts = await handle.view(), (await handle.receipts()).receipts
        ordinals = {each.attempt_id: each.ordinal for each in view.attempt_list}
        tokens = {each.attempt_id: each.fencing_token for each in view.attempt_list}
        story = Story(
            task_id=view.task_id,
            task_type=view.type,
            state=view.state,
            reason=view.reason,
            message=view.message,
            output=view.output,
            attempts=tuple(self.attempt_of(each) for each in view.attempt_list),
            receipts=tuple(
                Receipt(
                    each.receipt_id,
                    each.attempt_id,
                    ordinals[each.attempt_id],
                    each.admitted,
                    each.code,
                    each.output,
                )
                for each in receipts
            ),
            events=tuple(_happening(each, view, ordinals, tokens) for each in view.timeline),
        )
        self._told[view.task_id] = story
        return story

    def attempt_of(self, view: AttemptView) -> Attempt:
        """An attempt as tests see it."""
        attempt_id = AttemptId(view.attempt_id)
        return Attempt(
            ordinal=view.ordinal,
            attempt_id=view.attempt_id,
            node_id=view.node_id.removeprefix(self._prefix),
            fencing_token=view.fencing_token,
            state=view.state,
            reason=view.reason,
            message=view.message,
            began=self.recording.began(attempt_id),
            raised=self.recording.raised(attempt_id),
        )

    def node_of(self, attempt: AttemptView) -> ServerNode:
        """The node that an attempt was given to, in its present start."""
        return next(node for node in self.nodes if node.name == attempt.node_id)

    def short_name(self, node: ServerNode) -> str:
        """Its name as tests see it."""
        return node.name.removeprefix(self._prefix)

    async def relay_is_idle(self) -> bool:
        """Whether everything is published."""
        assert self._client is not None
        return (await self._client.outbox()).lag_rows == 0

    def tell(self) -> str:
        """See ``Fleet``."""
        return "\n".join(str(story) for story in self._told.values())

    async def _is_of(self, attempt_id: AttemptId, task_id: TaskId) -> bool:
        view = await self._handles[task_id].view()
        return any(each.attempt_id == attempt_id for each in view.attempt_list)


def _happening(
    entry: TimelineEntry, view: TaskView, ordinals: dict[str, int], tokens: dict[str, int]
) -> Happening:
    return Happening(
        seconds=(entry.recorded_at - view.timeline[0].recorded_at).total_seconds(),
        event_id=entry.event_id,
        ordinal=ordinals.get(entry.entity_id),
        previous_state=entry.previous_state,
        next_state=entry.next_state,
        reason=entry.reason,
        fencing_token=tokens.get(entry.entity_id),
    )


def _facts_for(app: Executor) -> NodeFacts:
    """Nodes that have whatever the handlers ask for."""
    wanted = [declaration.requirements for declaration in app.handlers.values()]
    locations = [each.locations[0] for each in wanted if each.locations]
    return NodeFacts(
        location=locations[0] if locations else None,
        networks=tuple({name for each in wanted for name in each.networks}),
        labels={name: value for each in wanted for name, value in each.labels.items()},
    )
