"""Commands as received: what applications, executors and the coordinator's own loops ask for.

Units as in ``rows``.
"""

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tenure.contract.codes import Code
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
from tenure.contract.states import NodeState
from tenure.coordinator.core.ranking import Placement
from tenure.coordinator.core.rows import ProfileRow, ResourceAmounts


@dataclass(frozen=True, slots=True)
class Command:
    """Whose command, and the id under which its outcome is stored.

    ``command_id`` is the caller's; ``fingerprint`` is a digest of the content, so that the same id
    with other content is a conflict and not a repetition.
    """

    command_id: CommandId
    fingerprint: bytes
    tenant: TenantId
    actor: str


@dataclass(frozen=True, slots=True)
class Submit(Command):
    """An application asks for a task."""

    task_id: TaskId
    type: str
    input_text: str
    priority: int
    not_before: int | None
    deadline: int | None
    resources: ResourceAmounts | None
    retry_of: TaskId | None = field(default=None, kw_only=True)
    concurrency_key: str | None = field(default=None, kw_only=True)
    traceparent: str | None = field(default=None, kw_only=True)
    scope_text: str | None = field(default=None, kw_only=True)  # JSON


@dataclass(frozen=True, slots=True)
class TakeIn(Submit):
    """An application asked for a task in a transaction of its own, which has committed."""

    intake_id: int


@dataclass(frozen=True, slots=True)
class RefuseIntake(Command):
    """What a row of the intake asks for is no submission. Not stored as a command."""

    task_id: TaskId
    intake_id: int
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Cancel(Command):
    """An application or operator no longer wants a task."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class Hold(Command):
    """An operator wants a task to begin nothing; ``message`` says why."""

    task_id: TaskId
    message: str


@dataclass(frozen=True, slots=True)
class Release(Command):
    """An operator lets a held task wait for a node again."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class TryAgain(Command):
    """An operator wants the next attempt of a task now, whatever came before."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class Revoke(Command):
    """An operator takes the authority of an attempt away before its time; ``message`` says why."""

    task_id: TaskId
    attempt_id: AttemptId
    message: str


@dataclass(frozen=True, slots=True)
class RevokeFromNode(Command):
    """The sweeper found an attempt of an incarnation that has ended, which is final: nobody answers
    for what it had not taken. Or of a quarantined one: ``message`` says why. Not stored."""

    task_id: TaskId
    attempt_id: AttemptId
    message: str | None  # None: the incarnation has ended


@dataclass(frozen=True, slots=True)
class MoveProfile(Command):
    """An operator freezes another profile in a waiting task."""

    task_id: TaskId
    profile: ProfileRow


@dataclass(frozen=True, slots=True)
class HoldRejected(Command):
    """The sweeper found a task that nodes have rejected. Not stored."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class AttemptCommand(Command):
    """An executor reports about an attempt. ``command_id`` is its report id."""

    node_id: NodeId
    incarnation: IncarnationId
    task_id: TaskId
    attempt_id: AttemptId
    fencing_token: FencingToken


@dataclass(frozen=True, slots=True)
class Accept(AttemptCommand):
    """submitted → accepted."""


@dataclass(frozen=True, slots=True)
class Start(AttemptCommand):
    """accepted → running."""


@dataclass(frozen=True, slots=True)
class Take(AttemptCommand):
    """submitted → accepted → running, or accepted → running, in one commit."""


@dataclass(frozen=True, slots=True)
class Deliver(AttemptCommand):
    """Output. ``content_digest``: sha256 of ``output_text``. The receipt id is the report
    id. What was enforced is no part of the content."""

    output_text: str
    content_digest: bytes
    enforced_text: str | None = None  # what its process was held to, JSON


@dataclass(frozen=True, slots=True)
class Fail(AttemptCommand):
    """The work ended without output."""

    reason: str
    message: str
    retryable: bool
    retry_delay: int | None = None  # microseconds that the handler asked for, instead of drawn ones


@dataclass(frozen=True, slots=True)
class Reject(AttemptCommand):
    """The executor does not accept the attempt."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReceiveCancel(AttemptCommand):
    """The executor has heard of a requested cancellation."""


@dataclass(frozen=True, slots=True)
class ConfirmCancel(AttemptCommand):
    """The executor confirms a requested cancellation."""


@dataclass(frozen=True, slots=True)
class Renew(AttemptCommand):
    """The executor wants more time. Not stored as a command: repeating it only renews again."""


@dataclass(frozen=True, slots=True)
class Allocate(Command):
    """The scheduler gives a waiting task to a node."""

    task_id: TaskId
    incarnation: IncarnationId
    attempt_id: AttemptId
    lease_id: LeaseId
    placement: Placement | None = None  # why this node


@dataclass(frozen=True, slots=True)
class Expire(Command):
    """The sweeper ends an attempt whose authority ran out, or a waiting task past its deadline."""

    task_id: TaskId


@dataclass(frozen=True, slots=True)
class TaskTypeDeclared:
    """A task type as an executor declares it. Texts are JSON; the digest of the profile is that of
    ``profile_text``."""

    name: str
    profile: ProfileRow
    profile_text: str
    input_schema: str | None
    output_schema: str | None


@dataclass(frozen=True, slots=True)
class Executable:
    """The program of a node. Digests are hexadecimal SHA-256."""

    name: str
    version: str
    digest: str
    inventory_digest: str | None


@dataclass(frozen=True, slots=True)
class Register(Command):
    """A new incarnation of a node; its predecessor under the same name is gone."""

    node_id: NodeId
    incarnation: IncarnationId
    queue: str
    software: str
    protocol_version: int
    slots: int
    cpu_millis: int | None
    memory_bytes: int | None
    task_types: tuple[TaskTypeDeclared, ...]
    facts_text: str = "{}"  # what the node states about itself, JSON
    executable: Executable | None = None
    concurrency: tuple[tuple[str, int], ...] = ()  # types of which it runs so many at once


@dataclass(frozen=True, slots=True)
class ChangeNode(Command):
    """A node drains, or its process ends. ``next_state`` is draining or gone."""

    node_id: NodeId
    incarnation: IncarnationId
    next_state: NodeState


@dataclass(frozen=True, slots=True)
class Quarantine(Command):
    """An operator takes a node out of service, under whatever incarnation, or lets it back.
    ``reason``: None lets it back."""

    node_id: NodeId
    reason: str | None


@dataclass(frozen=True, slots=True)
class OpenReview(Command):
    """The sweeper misses heartbeats of an incarnation. Not stored."""

    node_id: NodeId
    incarnation: IncarnationId


@dataclass(frozen=True, slots=True)
class CloseReview(Command):
    """Heartbeats have returned, or an operator has looked: ``message`` is what was found then."""

    node_id: NodeId
    incarnation: IncarnationId | None  # None: the node's current one
    message: str | None


Intervention: TypeAlias = Hold | Release | TryAgain | MoveProfile
"""What operators say about single tasks."""

AnyCommand: TypeAlias = (
    Submit
    | TakeIn
    | RefuseIntake
    | Cancel
    | Hold
    | Release
    | MoveProfile
    | TryAgain
    | Revoke
    | RevokeFromNode
    | HoldRejected
    | Accept
    | Start
    | Take
    | Deliver
    | Fail
    | Reject
    | ReceiveCancel
    | ConfirmCancel
    | Renew
    | Allocate
    | Expire
    | Register
    | ChangeNode
    | Quarantine
    | OpenReview
    | CloseReview
)

NOT_STORED: Final = (
    Renew,
    Allocate,
    Expire,
    RevokeFromNode,
    OpenReview,
    HoldRejected,
    RefuseIntake,
)
"""Commands whose repetition is harmless by their guards alone, and whose outcome nobody asks for
again: they leave no row in ``commands``."""
