"""One node of a fleet in memory: the executor's own parts around an authority that is not a server.

Real are the intake of messages, the slots, the pipeline of an attempt, its lease and the watchdog.
Replaced is what speaks to servers: reports and renewals are asked of the authority in memory, and
the inbox remembers in memory.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID, uuid4

from tenure.contract.codec import encode_json
from tenure.contract.faultpoints import FaultPoints
from tenure.contract.ids import (
    DEFAULT_TENANT,
    AttemptId,
    CommandId,
    IncarnationId,
    NodeId,
)
from tenure.contract.progress import (
    CHECKPOINT_LIMIT_BYTES,
    ProgressReplies,
    ProgressReply,
    ProgressReports,
)
from tenure.contract.reports import (
    PROTOCOL_VERSIONS,
    Executable,
    HeldLease,
    LeaseTerms,
    Registration,
    Report,
)
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tenure.coordinator.api import wire
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.rows import NodeFacts
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.identities import Identity, Role
from tenure.executor.core.intake import Ack, Assignment
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.errors import NodeGone
from tenure.executor.isolation.place import Place
from tenure.executor.isolation.sandbox import Sandbox
from tenure.executor.lease import Lease
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition
from tenure.executor.pipeline import Pipeline
from tenure.executor.progress import ProgressStream
from tenure.executor.reception import Reception
from tenure.executor.reports import Answer
from tenure.executor.testing.memory.authority import MemoryAuthority
from tenure.executor.work import Work

EXECUTOR: Final = Identity("executor", DEFAULT_TENANT, Role.EXECUTOR)
_MICROSECONDS: Final = 1_000_000
_STARTS: Final = itertools.count(1)
"""Of nodes that suit a task equally the one with the smaller incarnation gets it: the first."""
_COPIES: Final = "tenure_executor_duplicates_total"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the nodes of a fleet share. ``open_resources``: entered by each start of a node."""

    authority: MemoryAuthority
    handlers: Mapping[str, HandlerDeclaration]
    software: str
    executable: Executable | None
    facts: NodeFacts
    concurrency: dict[str, int]
    slots: int
    open_resources: Callable[[], AbstractAsyncContextManager[Any]]
    make_sandbox: Callable[..., Sandbox]
    faults: FaultPoints
    moved: Callable[[], None]


class MemoryInbox:
    """Remembers for as long as the process lives."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._attempts: set[AttemptId] = set()

    async def store(
        self, assignments: Sequence[Assignment], incarnation: IncarnationId
    ) -> list[bool]:
        """Implements Storing."""
        return [self._store(assignment) for assignment in assignments]

    def _store(self, assignment: Assignment) -> bool:
        attempt_id = assignment.attempt_id
        new = assignment.event_id not in self._known and attempt_id not in self._attempts
        self._known.add(assignment.event_id)
        self._attempts.add(attempt_id)
        return new


class MemoryNode:
    """One start of one node. ``stop`` and ``go_on`` are SIGSTOP and SIGCONT; ``kill`` ends it."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.node_id = NodeId(name)
        self.incarnation = IncarnationId(str(UUID(int=next(_STARTS) << 96 | uuid4().int >> 32)))
        self.withheld: set[AttemptId] = set()
        """Attempts whose renewals get lost."""
        self.metrics = ExecutorMetrics()
        self.speechless = 0
        """Calls that wait until the node goes on."""
        self._around = around
        self._behind = 0
        self._stopped_at: int | None = None
        self._running = asyncio.Event()
        self._running.set()
        self._dead = False
        self._leases: dict[AttemptId, Lease] = {}
        self._renew_at = 0
        self._stack = AsyncExitStack()
        self._progress: asyncio.Task[None] | None = None
        self.work = Work(
            around.handlers,
            slots=around.slots,
            concurrency=around.concurrency,
            metrics=self.metrics,
            ended=self._ended,
            settled=around.moved,
        )
        self._reception = Reception(
            incarnation=self.incarnation,
            task_types=around.handlers.keys(),
            inbox=MemoryInbox(),
            work=self.work,
            metrics=self.metrics,
            faults=around.faults,
        )

    # Life -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the resources and register. Raises what the lifespan raises."""
        around, authority = self._around, self._around.authority
        resources = await self._stack.enter_async_context(around.open_resources())
        registration = Registration(
            node_id=self.node_id,
            incarnation=self.incarnation,
            protocol_version=PROTOCOL_VERSIONS[1],
            software=around.software,
            slots=around.slots,
            concurrency=around.concurrency,
            task_types=tuple(each.to_wire() for each in around.handlers.values()),
            executable=around.executable,
        )
        wire.applied(
            authority.ask(
                wire.registration(
                    registration,
                    queue=self.incarnation,
                    identity=EXECUTOR,
                    schema_limit_bytes=DEFAULT_PAYLOAD_LIMIT_BYTES,
                )
            )
        )
        authority.state_facts(self.incarnation, around.facts)
        condition = Condition("the authority")
        progress = ProgressStream(
            self, node_id=self.node_id, incarnation=self.incarnation, condition=condition
        )
        self._progress = asyncio.create_task(progress.run())
        self.work.use(
            Pipeline(
                reports=self,
                renewals=self,
                resources=resources,
                clock=self.clock,
                terms=terms_of(authority.policy),
                output_limit_bytes=DEFAULT_PAYLOAD_LIMIT_BYTES,
                metrics=self.metrics,
                authority_changed=lambda: None,
                sandbox=around.make_sandbox(
                    Place(), output_limit_bytes=DEFAULT_PAYLOAD_LIMIT_BYTES
                ),
                recorder=progress,
                faults=around.faults,
            )
        )
        self._renew_at = authority.now

    async def close(self) -> None:
        """End what runs, and close the resources."""
        self._dead = True
        self._running.set()
        await self.work.abandon()
        if self._progress is not None:
            self._progress.cancel()
            await asyncio.gather(self._progress, return_exceptions=True)
        await self._stack.aclose()

    @property
    def reachable(self) -> bool:
        """Whether it hears and is heard."""
        return self._stopped_at is None and not self._dead

    def stop(self) -> None:
        """As SIGSTOP does to a process, or a snapshot to a machine: it says and hears nothing, and
        its clock stands still."""
        if self._stopped_at is None:
            self._stopped_at = self.clock()
            self._running.clear()

    def go_on(self) -> None:
        """From where it was stopped. Its clock has not seen what passed, so its own checks are
        satisfied: what refuses it now are others."""
        if self._stopped_at is not None:
            self._behind = self._around.authority.now - self._stopped_at
            self._stopped_at = None
            self._running.set()
            self._around.authority.hear(self.incarnation)

    def clock(self) -> int:
        """Microseconds, by the node's own clock."""
        if self._stopped_at is not None:
            return self._stopped_at
        return self._around.authority.now - self._behind

    # Messages -------------------------------------------------------------------------------------

    @property
    def copies_recognised(self) -> int:
        """Assignments that came again and began nothing."""
        return round(self.metrics.registry.get_sample_value(_COPIES) or 0)

    async def receive(self, bodies: Sequence[bytes]) -> None:
        """What its queue brings."""
        acks = await self._reception.messages(bodies)
        assert Ack.DEAD_LETTER not in acks, f"the node cannot read what was published: {bodies!r}"

    # Time -----------------------------------------------------------------------------------------

    def keeps(self, attempt_id: AttemptId) -> bool:
        """Whether it renews the attempt's lease."""
        return self.reachable and attempt_id in self._leases and attempt_id not in self.withheld

    def due_at(self) -> list[int]:
        """When it has to do something: renew, or notice that an authority is over."""
        if not self.reachable or not self._leases:
            return []
        now = self._around.authority.now
        ends = [
            now + round(lease.remaining_seconds() * _MICROSECONDS)
            for lease in self._leases.values()
        ]
        return [self._renew_at, *ends]

    def tick(self) -> None:
        """What its threads do at this instant: heartbeat, renewals where they are due, watchdog."""
        if not self.reachable:
            return
        authority = self._around.authority
        authority.hear(self.incarnation)
        if authority.now >= self._renew_at:
            for lease in list(self._leases.values()):
                if lease.attempt_id not in self.withheld and lease.ended is None:
                    self._renew(lease)
            self._renew_at = authority.now + authority.policy.renewal_interval_microseconds
        self.work.look()

    def _renew(self, lease: Lease) -> None:
        sent_at = self.clock()
        held = HeldLease(
            task_id=lease.task_id, attempt_id=lease.attempt_id, fencing_token=lease.fencing_token
        )
        command = wire.renewal(
            held,
            command_id=CommandId(str(uuid4())),
            node_id=self.node_id,
            incarnation=self.incarnation,
            identity=EXECUTOR,
        )
        reply = wire.renewal_reply(lease.attempt_id, self._around.authority.ask(command))
        if reply.outcome == "refused":
            self._leases.pop(lease.attempt_id, None)
            lease.end(reply.code or "refused")
        elif reply.remaining_seconds is not None and reply.expires_at is not None:
            lease.renew(
                sent_at=sent_at,
                remaining_seconds=reply.remaining_seconds,
                expires_at=reply.expires_at,
            )
            if reply.cancel_requested:
                self.work.cancel(lease.attempt_id)

    # What the pipeline uses -----------------------------------------------------------------------

    def hold(self, lease: Lease) -> None:
        """Implements Holding."""
        authority = self._around.authority
        due = authority.now + authority.policy.renewal_interval_microseconds
        self._renew_at = min(self._renew_at, due) if self._leases else due
        self._leases[lease.attempt_id] = lease

    async def send(self, report: Report) -> Answer:
        """Implements Sending."""
        await self._until_running()
        sent_at = self.clock()
        command = wire.report(
            report,
            node_id=self.node_id,
            incarnation=self.incarnation,
            identity=EXECUTOR,
            payload_limit_bytes=DEFAULT_PAYLOAD_LIMIT_BYTES,
        )
        outcome = self._around.authority.ask(cast("AnyCommand", command))
        reply = wire.report_reply(report.report_id, outcome)
        if outcome.reply is not None and outcome.reply.policy_version is not None:
            terms = terms_of(self._around.authority.policy)
            reply = reply.model_copy(update={"lease": terms})
        return Answer(reply, sent_at)

    async def tell_progress(self, node_id: NodeId, reports: ProgressReports) -> ProgressReplies:
        """Implements Telling."""
        await self._until_running()
        replies = []
        for said in reports.progress:
            held = wire.renewal(
                HeldLease(
                    task_id=said.task_id,
                    attempt_id=said.attempt_id,
                    fencing_token=said.fencing_token,
                ),
                command_id=CommandId(str(uuid4())),
                node_id=node_id,
                incarnation=self.incarnation,
                identity=EXECUTOR,
            )
            text = None
            if said.checkpoint is not None:
                limit = CHECKPOINT_LIMIT_BYTES
                text = encode_json(said.checkpoint, limit_bytes=limit, what="a checkpoint")
            code = self._around.authority.save_checkpoint(held, text)
            outcome: Any = "recorded" if code is None else "refused"
            replies.append(ProgressReply(attempt_id=said.attempt_id, outcome=outcome, code=code))
        return ProgressReplies(replies=tuple(replies))

    async def _until_running(self) -> None:
        if not self._running.is_set():
            self.speechless += 1
            self._around.moved()
            try:
                await self._running.wait()
            finally:
                self.speechless -= 1
        if self._dead:
            raise NodeGone("the process has ended")

    def _ended(self, attempt_id: AttemptId) -> None:
        self._leases.pop(attempt_id, None)


def terms_of(policy: LeasePolicy) -> LeaseTerms:
    """As the coordinator says them."""
    return LeaseTerms(
        duration_seconds=policy.lease_microseconds / _MICROSECONDS,
        renewal_interval_seconds=policy.renewal_interval_microseconds / _MICROSECONDS,
        clock_tolerance_seconds=policy.clock_tolerance_microseconds / _MICROSECONDS,
        policy_version=policy.version,
    )
