"""The authority in memory: the coordinator's decisions over the commit model.

It decides as the coordinator does: load, decide, commit, and again where a guard did not hold. What
it leaves out is what only servers have: durability, locks, replicas, other tenants.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from pydantic_core import to_json

from tenure.contract.codec import stamp
from tenure.contract.codes import Code
from tenure.contract.ids import (
    DEFAULT_TENANT,
    AttemptId,
    CommandId,
    EventId,
    IncarnationId,
    LeaseId,
    TaskId,
    TenantId,
)
from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    AttemptState,
    NodeState,
    TaskState,
)
from tenure.coordinator.api.wire import moment
from tenure.coordinator.core import commands
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import EVENTS_PER_COMMAND, decide
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    AttemptChanged,
    AttemptCreated,
    Happened,
    ItemOutcome,
    Outcome,
    ReceiptRecorded,
    Refused,
    TaskChanged,
    TaskCreated,
)
from tenure.coordinator.core.guards import find_authorized
from tenure.coordinator.core.ranking import plan
from tenure.coordinator.core.rows import (
    ANY,
    AttemptRow,
    NodeFacts,
    ReceiptRow,
    TaskRow,
    TenantRow,
)
from tenure.coordinator.core.snapshot import LeasePolicy, Minted
from tenure.coordinator.encoding import encode
from tenure.coordinator.model.commit import commit_batch, decided_at
from tenure.coordinator.model.rows import Rows, counted, load

_ROUNDS: Final = 5
_PLACED_AT_ONCE: Final = 256
_AT_WORK: Final = frozenset({AttemptState.RUNNING})
_JITTER: Final = 0.5
"""Of every delay that is drawn: tests want the same one each time."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One event as it was appended. ``body`` is what is published of it."""

    at: int
    event: Happened
    body: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """Why a task or an attempt is in its state, for people."""

    reason: str | None
    message: str | None


class MemoryAuthority:
    """One tenant's tasks. Instants are microseconds since 1970; time stands still until it is set.

    ``appended`` is called after every commit that appended events.
    """

    def __init__(
        self, *, now: int, policy: LeasePolicy, appended: Callable[[], None] = lambda: None
    ) -> None:
        unlimited = frozenset({ANY})
        tenant = TenantRow(
            DEFAULT_TENANT,
            1,
            authorized=True,
            node_pools=unlimited,
            locations=unlimited,
            networks=unlimited,
            budget_unlimited=True,
        )
        self.policy = policy
        self.rows = Rows(now=now, tenants={DEFAULT_TENANT: tenant}, policy_version=policy.version)
        self.log: list[LogRow] = []
        self.said: dict[TaskId | AttemptId, Said] = {}
        self.outputs: dict[str, str] = {}
        """Of every receipt, JSON."""
        self._submitted: dict[TaskId, TaskCreated] = {}
        self._scopes: dict[AttemptId, str] = {}
        self._checkpoints: dict[TaskId, str] = {}
        self._queued_as_of: dict[TaskId, int] = {}
        self._appended = appended

    @property
    def now(self) -> int:
        """The authority's clock."""
        return self.rows.now

    def set_time(self, now: int) -> None:
        """Time never runs back."""
        self.rows = replace(self.rows, now=max(now, self.rows.now))

    def ask(self, command: AnyCommand) -> Outcome:
        """What a lane answers."""
        for _ in range(_ROUNDS):
            now = self.now
            snapshot = load(self.rows, command)
            decision = decide(command, snapshot, now, _mint(), self.policy)
            if isinstance(decision, Refused):
                return Outcome(now, now, refused=decision)
            if isinstance(decision, Answered):
                at = now if decision.at is None else decision.at
                return self._answer(command, Outcome(max(now, at), at, decision.reply, None, True))
            at = decided_at(self.rows, decision.reads)
            (outcome,), self.rows = commit_batch(self.rows, [(command, decision)])
            if outcome is ItemOutcome.APPLIED:
                self._keep(decision, at)
                return self._answer(command, Outcome(max(now, at), at, decision.reply))
        refused = Refused(Code.UNAVAILABLE, "the guards of this command never held")
        return Outcome(self.now, self.now, refused=refused)

    def hear(self, incarnation: IncarnationId) -> None:
        """A heartbeat."""
        _, self.rows = commit_batch(self.rows, [], seen=[incarnation])

    def state_facts(self, incarnation: IncarnationId, facts: NodeFacts) -> None:
        """What a node states about itself: the commit model has no column for it."""
        row = replace(self.rows.incarnations[incarnation], facts=facts)
        self.rows = replace(self.rows, incarnations={**self.rows.incarnations, incarnation: row})

    def save_checkpoint(self, held: commands.Renew, text: str | None) -> str | None:
        """Keep what an attempt saved; the code of the refusal, where it may save nothing."""
        found = find_authorized(held, load(self.rows, held), self.now, _AT_WORK)
        if isinstance(found, Refused):
            return found.code
        if text is not None:
            self._checkpoints[held.task_id] = text
        return None

    # What the coordinator's loops do --------------------------------------------------------------

    def schedule(self) -> bool:
        """Give waiting tasks to nodes. Whether one got a node."""
        silence = self.policy.node_silence_microseconds
        nodes = [
            row
            for _, row in sorted(self.rows.incarnations.items())
            if row.state is NodeState.ACTIVE
            and not row.under_review
            and row.slots_used < row.slots
            and row.last_seen_at > self.now - silence
        ]
        waiting = [
            replace(
                task,
                profile=self.rows.profile_of[task.task_id],
                queued_as_of=self._queued_as_of[task.task_id],
            )
            for task in self._waiting()
            if (task.not_before is None or task.not_before <= self.now)
            and (task.deadline is None or task.deadline > self.now)
        ]
        tenant = counted(self.rows, DEFAULT_TENANT)
        if not nodes or not waiting or tenant is None:
            return False
        tenants = {DEFAULT_TENANT: tenant}
        placements = plan(waiting, nodes, tenants, {}, self.now, _PLACED_AT_ONCE)
        outcomes = [
            self.ask(
                commands.Allocate(
                    CommandId(attempt_id),
                    b"",
                    DEFAULT_TENANT,
                    "scheduler",
                    placement.task_id,
                    placement.incarnation,
                    AttemptId(attempt_id),
                    LeaseId(str(uuid4())),
                    placement,
                )
            )
            for placement, attempt_id in ((each, str(uuid4())) for each in placements)
        ]
        return any(outcome.reply is not None for outcome in outcomes)

    def sweep(self) -> None:
        """End what has lost its authority or its time; hold what every node has rejected."""
        lost = {row.task_id for row in self._live() if row.expires_at <= self.now}
        lost |= {
            task.task_id
            for task in self._waiting()
            if task.deadline is not None and task.deadline <= self.now
        }
        for task_id in lost:
            self.ask(commands.Expire(*_by("sweeper"), task_id))
        for row in self._live():
            if self.rows.incarnations[row.incarnation].state is NodeState.GONE:
                self.ask(
                    commands.RevokeFromNode(*_by("sweeper"), row.task_id, row.attempt_id, None)
                )
        for task in self._waiting():
            if task.rejected_by:
                self.ask(commands.HoldRejected(*_by("sweeper"), task.task_id))

    def due_at(self, *, is_kept: Callable[[AttemptRow], bool]) -> Iterator[int]:
        """Instants ahead at which something happens by itself: a delay is over, or a lease that
        nobody keeps by renewing it."""
        for task in self._waiting():
            if task.not_before is not None and task.not_before > self.now:
                yield task.not_before
        for row in self._live():
            if row.expires_at > self.now and not is_kept(row):
                yield row.expires_at

    # Views ----------------------------------------------------------------------------------------

    def attempts_of(self, task_id: TaskId) -> list[AttemptRow]:
        """All of a task, in their order."""
        found = (row for row in self.rows.attempts.values() if row.task_id == task_id)
        return sorted(found, key=lambda row: row.ordinal)

    def receipts_of(self, attempts: Iterable[AttemptRow]) -> list[ReceiptRow]:
        """All of these attempts, in the order of their admission."""
        ids = {row.attempt_id for row in attempts}
        return [row for row in self.rows.receipts.values() if row.attempt_id in ids]

    def events_of(self, task_id: TaskId) -> list[LogRow]:
        """The task's own and its attempts', in the order of the log."""
        return [row for row in self.log if row.event.task_id == task_id]

    def _waiting(self) -> Sequence[TaskRow]:
        return [
            task
            for task in self.rows.tasks.values()
            if task.state is TaskState.OPEN and task.current_attempt_id is None
        ]

    def _live(self) -> Sequence[AttemptRow]:
        return [
            row for row in self.rows.attempts.values() if row.state not in TERMINAL_ATTEMPT_STATES
        ]

    # Parts ----------------------------------------------------------------------------------------

    def _keep(self, decision: Accepted, at: int) -> None:
        """What the commit model has no column for, and the log."""
        for write in decision.writes:
            match write:
                case TaskCreated():
                    self._submitted[write.task_id] = write
                    self._queued_as_of[write.task_id] = at - write.head_start
                case AttemptCreated():
                    scope = {"operations": write.operations, "objects": write.objects}
                    self._scopes[write.attempt_id] = to_json(scope).decode()
                case AttemptChanged() if write.reason or write.message:
                    self.said[write.attempt_id] = Said(write.reason, write.message)
                case TaskChanged():
                    self.said[write.task_id] = Said(write.reason, write.message)
                case ReceiptRecorded():
                    self.outputs[write.receipt_id] = write.output_text
                case _:
                    pass  # the model has it all
        self.log += [
            LogRow(at, event, stamp(encode(event), moment(at))) for event in decision.events
        ]
        if decision.events:
            self._appended()

    def _answer(self, command: AnyCommand, outcome: Outcome) -> Outcome:
        """Who accepts or takes is given the input, the scope and what was saved last."""
        if not isinstance(command, commands.Accept | commands.Take):
            return outcome
        submitted = self._submitted.get(command.task_id)
        return replace(
            outcome,
            input_text=None if submitted is None else submitted.input_text,
            narrowed_text=None if submitted is None else submitted.scope_text,
            traceparent=None if submitted is None else submitted.traceparent,
            scope_text=self._scopes.get(command.attempt_id),
            checkpoint_text=self._checkpoints.get(command.task_id),
        )


def _mint() -> Minted:
    return Minted(tuple(EventId(str(uuid4())) for _ in range(EVENTS_PER_COMMAND)), _JITTER)


def _by(actor: str) -> tuple[CommandId, bytes, TenantId, str]:
    return CommandId(str(uuid4())), b"", DEFAULT_TENANT, actor
