"""Small worlds to explore: who is there, what may be sent, and what may happen besides."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import (
    AttemptId,
    CommandId,
    FencingToken,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
    TenantId,
)
from tenure.contract.states import Effects, NodeState, PauseScope
from tenure.coordinator.core import commands
from tenure.coordinator.core.commands import AnyCommand
from tenure.coordinator.core.decide import decide
from tenure.coordinator.core.decisions import Accepted, ItemOutcome
from tenure.coordinator.core.rows import ANY, LimitRow, NodeFacts, TenantRow
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.model.commit import commit
from tenure.coordinator.model.rows import Rows, load
from tests.support.oracle import SILENCE
from tests.support.rows import MINTED, declared

TICK = 10_000_000
"""The least time that passes, in microseconds."""
TENANT = TenantId("default")
TYPE = "work"
LABEL = ("rack", "1")

REPORTS: dict[str, type[commands.AttemptCommand]] = {
    "accept": commands.Accept,
    "start": commands.Start,
    "take": commands.Take,
    "renew": commands.Renew,
    "receive": commands.ReceiveCancel,
    "confirm": commands.ConfirmCancel,
}
"""Reports without content."""
CONTENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deliver": ("deliver", {"output_text": "0", "content_digest": b"0"}),
    "deliver again": ("deliver again", {"output_text": "0", "content_digest": b"0"}),
    "deliver other": ("deliver other", {"output_text": "1", "content_digest": b"1"}),
    "deliver changed": ("deliver", {"output_text": "1", "content_digest": b"1"}),
    "fail": ("fail", {"reason": "handler_failed", "message": "", "retryable": True}),
    "fail for good": ("fail for good", {"reason": "no", "message": "", "retryable": False}),
    "hand back": (
        "hand back",
        {"reason": Reason.AUTHORITY_LOST.value, "message": "", "retryable": True},
    ),
    "reject": ("reject", {"reason": "unknown_type", "message": ""}),
    "reject draining": ("reject", {"reason": Reason.NODE_DRAINING.value, "message": ""}),
}
"""Reports with content: the id of the report, and what it says."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What an executor was granted, as it remembers it."""

    task_id: TaskId
    attempt_id: AttemptId
    node_id: NodeId
    incarnation: IncarnationId
    fencing_token: FencingToken


@dataclass(frozen=True)
class Scene:
    """A small world. ``asked``: kinds of commands that may come at any time, any number of times.

    After a restore that nobody has noticed yet, nothing is granted before an executor whose grant
    was lost presents it: until then no authority could know (LEASE-04).
    """

    name: str
    asked: tuple[str, ...]
    tasks: int = 1
    nodes: tuple[str, ...] = ("a", "b")
    slots: int = 1
    attempts: int = 3  # of all tasks
    in_flight: int = 1  # decisions that wait for their commit
    effects: Effects = Effects.IDEMPOTENT
    max_attempts: int = 2
    deadline_ticks: int | None = None
    not_before_ticks: int | None = None
    cost_minor: int = 0
    budget_minor: int | None = None
    concurrency: int | None = None  # of the type on each node
    starts: int = 1  # incarnations of each node
    strangers: bool = False  # reports with a wrong token, node, tenant or attempt
    silences: bool = False
    suspensions: int = 0  # the tenant's version until which it is suspended and authorized again
    pauses: int = 0  # how often it is paused or resumed
    paused: tuple[PauseScope, str] = (PauseScope.TENANT, "")  # what of it
    labelled: tuple[str, ...] = ()  # nodes that have the label
    limits: tuple[LimitRow, ...] = ()
    limited_later: bool = False  # the limits are stated and taken back, once each
    keys: tuple[str, ...] = ()  # concurrency keys of the tasks
    policies: int = 1
    promotions: int = 0
    restores: int = 0
    clock_steps_back: bool = False
    submitted: bool = True  # the tasks are there at the beginning
    starts_at: int = 1000 * TICK

    @property
    def policy(self) -> LeasePolicy:
        """Leases of two ticks; a retry waits one."""
        return LeasePolicy(
            lease_microseconds=2 * TICK,
            node_silence_microseconds=SILENCE,
            retry_base_microseconds=2 * TICK,
            retry_cap_microseconds=2 * TICK,
        )

    def beginning(self) -> Rows:
        """Nodes are registered and, unless that is what is explored, tasks submitted."""
        limited = self.budget_minor is not None
        rows = Rows(
            now=self.starts_at,
            tenants={
                TENANT: TenantRow(
                    tenant=TENANT,
                    version=1,
                    authorized=True,
                    node_pools=frozenset({ANY}),
                    locations=frozenset({ANY}),
                    networks=frozenset({ANY}),
                    budget_minor=self.budget_minor,
                    budget_unlimited=not limited,
                    limits=() if self.limited_later else self.limits,
                )
            },
            intake={1: "waiting", 2: "waiting", 3: "waiting"} if not self.submitted else {},
        )
        for node in self.nodes if self.submitted else ():
            rows = _apply(rows, self.registration(node, 1), self.policy)
        for number in range(1, self.tasks + 1) if self.submitted else ():
            rows = _apply(rows, self.submission(number), self.policy)
        labelled = {
            name: replace(row, facts=NodeFacts(labels=frozenset({LABEL})))
            for name, row in rows.incarnations.items()
            if row.node_id in self.labelled
        }
        # Nobody repeats what made these rows.
        return replace(rows, commands={}, incarnations={**rows.incarnations, **labelled})

    def registration(self, node: str, start: int) -> commands.Register:
        """One start of a node."""
        return commands.Register(
            **_common(f"register {node}{start}"),
            node_id=NodeId(node),
            incarnation=IncarnationId(f"{node}{start}"),
            queue="queue",
            software="tests",
            protocol_version=1,
            slots=self.slots,
            cpu_millis=None,
            memory_bytes=None,
            task_types=(
                declared(TYPE, self.effects, self.max_attempts, cost_minor=self.cost_minor),
            ),
            concurrency=() if self.concurrency is None else ((TYPE, self.concurrency),),
        )

    def submission(self, number: int, **changes: Any) -> commands.Submit:
        """A task."""
        asked: dict[str, Any] = {
            **_common(f"submit {number}"),
            "task_id": TaskId(f"task-{number}"),
            "type": TYPE,
            "input_text": "{}",
            "priority": 0,
            "not_before": self._at(self.not_before_ticks),
            "deadline": self._at(self.deadline_ticks),
            "resources": None,
            "concurrency_key": self.keys[number - 1] if self.keys else None,
        }
        return commands.Submit(**(asked | changes))

    def _at(self, ticks: int | None) -> int | None:
        return None if ticks is None else self.starts_at + ticks * TICK

    def commands(self, rows: Rows, granted: tuple[Grant, ...]) -> Iterator[AnyCommand]:
        """Everything that may be asked now. The same command has the same id at any time."""
        for grant in granted:
            yield from self._reports(rows, grant, granted)
        for task_id in rows.tasks:
            yield from self._about_task(rows, task_id, len(granted))
        if "register" in self.asked or "nodes" in self.asked:
            for node in self.nodes:
                for start in range(2, self.starts + 1):
                    yield self.registration(node, start)
        if "nodes" in self.asked:
            yield from self._about_nodes(rows)
        if "quarantine" in self.asked:
            yield from self._quarantines()
        if "review" in self.asked:
            yield from self._reviews(rows)
        if not self.submitted:
            yield from self._submissions()

    def _reports(
        self, rows: Rows, grant: Grant, granted: tuple[Grant, ...]
    ) -> Iterator[AnyCommand]:
        if "allocate" in self.asked and grant.attempt_id in rows.attempts:
            # Again, since its outcome was not known.
            yield _allocation(grant.task_id, grant.incarnation, grant.attempt_id)
        if "revoke" in self.asked:
            about: dict[str, Any] = {
                "task_id": grant.task_id,
                "attempt_id": grant.attempt_id,
            }
            name = f"revoke {grant.attempt_id}"
            yield commands.Revoke(**_common(name), **about, message="why")
            yield commands.RevokeFromNode(**_common(f"{name} at its node"), **about, message=None)
        for kind in self.asked:
            if kind not in REPORTS and kind not in CONTENTS:
                continue
            yield self._report(kind, grant)
            if self.strangers:
                for field, values in self._wrong(grant, granted).items():
                    for value in values:
                        yield self._report(kind, grant, **{field: value})

    def _report(self, kind: str, grant: Grant, **wrong: Any) -> AnyCommand:
        name, content = CONTENTS.get(kind, (kind, {}))
        told = "".join(f" with {field} {value}" for field, value in wrong.items())
        about: dict[str, Any] = {
            **_common(f"{name} {grant.attempt_id}{told}", kind),
            "actor": grant.incarnation,
            "node_id": grant.node_id,
            "incarnation": grant.incarnation,
            "task_id": grant.task_id,
            "attempt_id": grant.attempt_id,
            "fencing_token": grant.fencing_token,
            **content,
        }
        if kind in REPORTS:
            return REPORTS[kind](**(about | wrong))  # type: ignore[return-value] # of the union
        match kind.split()[0]:
            case "deliver":
                return commands.Deliver(**(about | wrong))
            case "reject":
                return commands.Reject(**(about | wrong))
            case _:
                return commands.Fail(**(about | wrong))

    def _wrong(self, grant: Grant, granted: tuple[Grant, ...]) -> dict[str, list[Any]]:
        others = [one for one in granted if one != grant]
        return {
            "fencing_token": [
                FencingToken(grant.fencing_token - 1),
                *(one.fencing_token for one in others),
            ],
            "attempt_id": [AttemptId("unheard of"), *(one.attempt_id for one in others)],
            "incarnation": [IncarnationId(f"{node}2") for node in self.nodes],
            "node_id": [NodeId(node) for node in self.nodes if node != grant.node_id],
            "tenant": [TenantId("another")],
            "task_id": [TaskId("unheard of")],
        }

    def _about_task(self, rows: Rows, task_id: TaskId, granted: int) -> Iterator[AnyCommand]:
        if "allocate" in self.asked and granted < self.attempts:
            for name in self._different(rows, task_id):
                attempt = AttemptId(f"attempt-{granted + 1} of {task_id} at {name}")
                yield _allocation(task_id, name, attempt)
        if "expire" in self.asked:
            yield commands.Expire(**_common(f"expire {task_id}"), task_id=task_id)
        if "cancel" in self.asked:
            yield commands.Cancel(**_common(f"cancel {task_id}"), task_id=task_id)
            yield commands.Cancel(**_common(f"cancel again {task_id}"), task_id=task_id)
        task = rows.tasks[task_id]
        # An operator may say the same thing any number of times; so as to end, once an attempt.
        said = f"{task_id} at {task.generation}"
        if "hold" in self.asked:
            yield commands.Hold(**_common(f"hold {said}"), task_id=task_id, message="")
            yield commands.Release(**_common(f"release {said}"), task_id=task_id)
        if "try again" in self.asked:
            yield commands.TryAgain(**_common(f"try again {said}"), task_id=task_id)
        if "move profile" in self.asked:
            for effects in (Effects.GUARDED, self.effects):
                profile = declared(TYPE, effects, self.max_attempts).profile
                asked = _common(f"move to {effects.value} {said}")
                yield commands.MoveProfile(**asked, task_id=task_id, profile=profile)
            profile = declared("another type").profile
            asked = _common(f"move to another type {said}")
            yield commands.MoveProfile(**asked, task_id=task_id, profile=profile)
        if "hold rejected" in self.asked:
            yield commands.HoldRejected(**_common(f"hold rejected {said}"), task_id=task_id)
        if self.strangers:
            of_another = _common(f"of another tenant's {task_id}")
            of_another["tenant"] = TenantId("another")
            yield commands.Cancel(**of_another, task_id=task_id)
            yield commands.Release(**of_another, task_id=task_id)
            yield commands.TryAgain(**of_another, task_id=task_id)
            yield commands.Hold(**of_another, task_id=task_id, message="")

    def _different(self, rows: Rows, task_id: TaskId) -> Iterator[IncarnationId]:
        """Nodes, without a second one that nothing tells from the first but its name."""
        known = {row.incarnation for row in rows.attempts.values()}
        known |= {*rows.tasks[task_id].rejected_by}
        strangers = set()
        for name, node in rows.incarnations.items():
            looks = replace(node, incarnation=IncarnationId(""), node_id=NodeId(""))
            if name in known or looks not in strangers:
                yield name
            if name not in known:
                strangers.add(looks)

    def _quarantines(self) -> Iterator[AnyCommand]:
        for node in (*self.nodes, "unheard of"):
            name = NodeId(node)
            yield commands.Quarantine(**_common(f"quarantine {node}"), node_id=name, reason="why")
            yield commands.Quarantine(**_common(f"let {node} back"), node_id=name, reason=None)

    def _reviews(self, rows: Rows) -> Iterator[AnyCommand]:
        for incarnation in rows.incarnations:
            about: dict[str, Any] = {
                "node_id": NodeId(incarnation[0]),
                "incarnation": incarnation,
            }
            yield commands.OpenReview(**_common(f"review {incarnation}"), **about)
            for message in (None, "looked at"):
                asked = _common(f"close the review of {incarnation}: {message}")
                yield commands.CloseReview(**asked, **about, message=message)

    def _about_nodes(self, rows: Rows) -> Iterator[AnyCommand]:
        for incarnation in (*rows.incarnations, IncarnationId("unheard of")):
            node_id = NodeId(incarnation[0])
            for state in (NodeState.DRAINING, NodeState.GONE):
                yield commands.ChangeNode(
                    **_common(f"{state.value} {incarnation}"),
                    node_id=node_id,
                    incarnation=incarnation,
                    next_state=state,
                )

    def _submissions(self) -> Iterator[AnyCommand]:
        for node in self.nodes:
            yield self.registration(node, 1)
        yield self.submission(1, deadline=self._at(2))
        yield self.submission(1, deadline=self._at(2), fingerprint=b"other", priority=1)
        yield self.submission(2, deadline=self._at(1), not_before=self._at(1))
        yield self.submission(3, type="unknown")
        for intake_id, number in ((1, 1), (2, 4)):
            asked = self.submission(number, deadline=self._at(2))
            names = commands.Submit.__dataclass_fields__
            fields = {name: getattr(asked, name) for name in names}
            yield commands.TakeIn(**fields, intake_id=intake_id)
        yield commands.RefuseIntake(
            **_common("refuse 3"),
            task_id=TaskId("task-5"),
            intake_id=3,
            code=Code.INVALID_FIELD,
            message="no",
        )


def _common(command_id: str, content: str = "") -> dict[str, Any]:
    return {
        "command_id": CommandId(command_id),
        "fingerprint": content.encode(),
        "tenant": TENANT,
        "actor": "somebody",
    }


def _allocation(
    task_id: TaskId, incarnation: IncarnationId, attempt_id: AttemptId
) -> commands.Allocate:
    return commands.Allocate(
        **_common(f"allocate {attempt_id}"),
        task_id=task_id,
        incarnation=incarnation,
        attempt_id=attempt_id,
        lease_id=LeaseId(f"lease of {attempt_id}"),
    )


def _apply(rows: Rows, command: AnyCommand, policy: LeasePolicy) -> Rows:
    decision = decide(command, load(rows, command), rows.now, MINTED, policy)
    assert isinstance(decision, Accepted), decision
    outcome, rows = commit(rows, command, decision)
    assert outcome is ItemOutcome.APPLIED
    return rows
