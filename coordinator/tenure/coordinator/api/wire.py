"""Requests of the contract -> commands of the core, and outcomes -> replies.

Ids of commands are derived from the caller's key or its report's id, so that a repetition meets the
stored outcome (LATE-04), and from its tenant and purpose, so that nobody takes the id of another's
command. Submissions are in ``submission.py``, since they come through the intake too.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from pydantic_core import from_json

from tenure.contract.codec import canonical_text, check_value, encode_json
from tenure.contract.ids import (
    AttemptId,
    CommandId,
    FencingToken,
    IncarnationId,
    NodeId,
    TaskId,
)
from tenure.contract.profiles import profile_digest, profile_text
from tenure.contract.reports import (
    Accept,
    Cancelled,
    CancelReceived,
    Deliver,
    Executable,
    Fail,
    HeldLease,
    Registration,
    Reject,
    RenewalReply,
    Report,
    ReportReply,
    Start,
    Take,
    TaskTypeDeclaration,
)
from tenure.contract.scope import Scope
from tenure.contract.states import TERMINAL_TASK_STATES, NodeState, TaskState
from tenure.contract.tasks import CancelReply, Submitted
from tenure.coordinator.api.statuses import RETRYABLE
from tenure.coordinator.core import commands, decisions, rows
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.identities import Identity
from tenure.coordinator.submission import amounts, derived_id, fingerprint

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_REPORT_COMMANDS: Final[Mapping[type[Any], type[commands.AttemptCommand]]] = {
    Accept: commands.Accept,
    Start: commands.Start,
    Take: commands.Take,
    CancelReceived: commands.ReceiveCancel,
    Cancelled: commands.ConfirmCancel,
}


# Requests -> commands -------------------------------------------------------------------------


def cancellation(task_id: TaskId, *, command_id: CommandId, identity: Identity) -> commands.Cancel:
    """The command of a cancellation. It needs no key: asking again changes nothing more."""
    return commands.Cancel(
        command_id=command_id,
        fingerprint=fingerprint(["cancel", task_id]),
        tenant=identity.tenant,
        actor=identity.name,
        task_id=task_id,
    )


def report(
    request: Report,
    *,
    node_id: NodeId,
    incarnation: IncarnationId,
    identity: Identity,
    payload_limit_bytes: int,
) -> commands.AttemptCommand:
    """The command of a report.

    Raises InvalidPayload for an output or a text that cannot be stored.
    """
    common: dict[str, Any] = {
        "command_id": derived_id(identity.tenant, "report", request.report_id),
        "fingerprint": fingerprint([node_id, incarnation, request.model_dump()]),
        "tenant": identity.tenant,
        "actor": identity.name,
        "node_id": node_id,
        "incarnation": incarnation,
        "task_id": TaskId(request.task_id),
        "attempt_id": AttemptId(request.attempt_id),
        "fencing_token": FencingToken(request.fencing_token),
    }
    match request:
        case Deliver():
            text = encode_json(request.output, limit_bytes=payload_limit_bytes, what="output")
            return commands.Deliver(
                **common,
                output_text=text,
                content_digest=sha256(text.encode()).digest(),
                enforced_text=_enforced(request),
            )
        case Fail():
            check_value([request.reason, request.message], "reason or message")
            return commands.Fail(
                **common,
                reason=request.reason,
                message=request.message,
                retryable=request.retryable,
                retry_delay=(
                    None
                    if request.retry_after_seconds is None
                    else round(request.retry_after_seconds * 1_000_000)
                ),
            )
        case Reject():
            check_value([request.reason, request.message], "reason or message")
            return commands.Reject(**common, reason=request.reason, message=request.message)
        case _:
            return _REPORT_COMMANDS[type(request)](**common)


def _scope(text: str) -> Scope:
    """What a lease permits, of how it is kept."""
    kept = from_json(text)
    return Scope(operations=kept["operations"], objects=kept["objects"])


def _enforced(request: Deliver) -> str | None:
    if request.enforced is None:
        return None
    check_value(request.enforced.model_dump(mode="json"), "enforced")
    return request.enforced.model_dump_json()


def renewal(
    lease: HeldLease,
    *,
    command_id: CommandId,
    node_id: NodeId,
    incarnation: IncarnationId,
    identity: Identity,
) -> commands.Renew:
    """The command of one renewal. It is not stored, so its id is any."""
    return commands.Renew(
        command_id=command_id,
        fingerprint=b"",
        tenant=identity.tenant,
        actor=identity.name,
        node_id=node_id,
        incarnation=incarnation,
        task_id=TaskId(lease.task_id),
        attempt_id=AttemptId(lease.attempt_id),
        fencing_token=FencingToken(lease.fencing_token),
    )


def registration(
    request: Registration, *, queue: str, identity: Identity, schema_limit_bytes: int
) -> commands.Register:
    """The command of a registration; registering an incarnation again is the same command.

    Raises InvalidPayload for a text that cannot be stored, InvalidRequest for a type named twice
    and for the concurrency of a type that it does not run.
    """
    check_value(request.software, "software")
    strangers = request.concurrency.keys() - {each.name for each in request.task_types}
    if strangers:
        raise InvalidRequest(f"concurrency: {min(strangers)!r} is none of the node's task types.")
    if request.executable is not None:
        check_value([request.executable.name, request.executable.version], "executable")
    return commands.Register(
        command_id=derived_id(identity.tenant, "register", request.incarnation),
        fingerprint=fingerprint(request.model_dump()),
        tenant=identity.tenant,
        actor=identity.name,
        node_id=NodeId(request.node_id),
        incarnation=IncarnationId(request.incarnation),
        queue=queue,
        software=request.software,
        protocol_version=request.protocol_version,
        slots=request.slots,
        cpu_millis=request.resources.cpu_millis if request.resources else None,
        memory_bytes=request.resources.memory_bytes if request.resources else None,
        task_types=declared_types(
            request.task_types, request.executable, schema_limit_bytes=schema_limit_bytes
        ),
        facts_text=canonical_text(request.facts.model_dump(mode="json", exclude_none=True)),
        executable=None
        if request.executable is None
        else commands.Executable(**request.executable.model_dump()),
        concurrency=tuple(sorted(request.concurrency.items())),
    )


def node_change(
    node_id: NodeId,
    incarnation: IncarnationId,
    state: NodeState,
    *,
    command_id: CommandId,
    identity: Identity,
) -> commands.ChangeNode:
    """The command that drains an incarnation or says that it is gone. Asking again changes nothing
    more, and is answered by how things are then."""
    return commands.ChangeNode(
        command_id=command_id,
        fingerprint=fingerprint([state.value, node_id, incarnation]),
        tenant=identity.tenant,
        actor=identity.name,
        node_id=node_id,
        incarnation=incarnation,
        next_state=state,
    )


# Outcomes -> replies --------------------------------------------------------------------------


def submitted(outcome: decisions.Outcome) -> Submitted:
    """The task behind a submission. Raises RequestRefused."""
    reply = applied(outcome)
    if reply.task_id is None:
        raise AssertionError("the reply to a submission names its task")
    return Submitted(
        task_id=reply.task_id, created_at=moment(outcome.at), replayed=outcome.replayed
    )


def cancel_reply(task_id: TaskId, outcome: decisions.Outcome) -> CancelReply:
    """What became of a cancellation. Raises RequestRefused."""
    reply = applied(outcome)
    state = reply.task_state or TaskState.OPEN
    if reply.outcome == "ended":
        return CancelReply(task_id=task_id, outcome="already_ended", state=state)
    ended = state in TERMINAL_TASK_STATES
    return CancelReply(task_id=task_id, outcome="cancelled" if ended else "requested", state=state)


def report_reply(report_id: str, outcome: decisions.Outcome) -> ReportReply:
    """The answer to one report; what remains of the authority is counted at this answer."""
    if outcome.refused is not None:
        return refused_report(report_id, outcome.refused.code, outcome.refused.message)
    reply = applied(outcome)
    return ReportReply(
        report_id=report_id,
        outcome="recorded" if reply.outcome == "recorded" else "applied",
        code=reply.code,
        message=reply.message,
        attempt_state=reply.attempt_state,
        remaining_seconds=_remaining(reply.expires_at, outcome.now),
        expires_at=None if reply.expires_at is None else moment(reply.expires_at),
        cancel_requested=reply.cancel_requested,
        suspect=reply.suspect,
        input=None if outcome.input_text is None else from_json(outcome.input_text),
        checkpoint=None if outcome.checkpoint_text is None else from_json(outcome.checkpoint_text),
        scope=None if outcome.scope_text is None else _scope(outcome.scope_text),
        narrowed=None if outcome.narrowed_text is None else _scope(outcome.narrowed_text),
        traceparent=outcome.traceparent,
        task_type=outcome.task_type,
        receipt_id=reply.receipt_id,
        admitted_at=None if reply.receipt_id is None else moment(outcome.at),
        state_version=reply.state_version,
        generation=reply.generation,
    )


def refused_report(report_id: str, code: str, message: str) -> ReportReply:
    """A report that changed nothing: ``retry`` where repeating it may help."""
    return ReportReply(
        report_id=report_id,
        outcome="retry" if code in RETRYABLE else "refused",
        code=code,
        message=message,
    )


def renewal_reply(attempt_id: str, outcome: decisions.Outcome) -> RenewalReply:
    """The answer for one lease."""
    if outcome.refused is not None:
        code = outcome.refused.code
        return RenewalReply(
            attempt_id=attempt_id, outcome="retry" if code in RETRYABLE else "refused", code=code
        )
    reply = applied(outcome)
    return RenewalReply(
        attempt_id=attempt_id,
        outcome="renewed",
        remaining_seconds=_remaining(reply.expires_at, outcome.now),
        expires_at=None if reply.expires_at is None else moment(reply.expires_at),
        cancel_requested=reply.cancel_requested,
    )


def applied(outcome: decisions.Outcome) -> decisions.Reply:
    """The reply of an outcome that was not refused. Raises RequestRefused otherwise."""
    if outcome.refused is not None:
        raise RequestRefused(outcome.refused.code, outcome.refused.message)
    if outcome.reply is None:
        raise AssertionError("an outcome has a reply or a refusal")
    return outcome.reply


# Parts ----------------------------------------------------------------------------------------


def moment(microseconds: int) -> datetime:
    """An instant of the core as a datetime in UTC."""
    return _EPOCH + microseconds * _MICROSECOND


def declared_types(
    declarations: Sequence[TaskTypeDeclaration],
    executable: Executable | None,
    *,
    schema_limit_bytes: int,
) -> tuple[commands.TaskTypeDeclared, ...]:
    """Task types with their profiles.

    Raises InvalidPayload for a schema that cannot be stored, InvalidRequest for a type named twice,
    and for one that matches exactly without an executable.
    """
    names = [declaration.name for declaration in declarations]
    if len(set(names)) != len(names):
        raise InvalidRequest("task_types: a type is declared twice.")
    return tuple(_declared(each, executable, schema_limit_bytes) for each in declarations)


def _declared(
    declaration: TaskTypeDeclaration, executable: Executable | None, schema_limit_bytes: int
) -> commands.TaskTypeDeclared:
    schemas = (
        _schema(declaration.input_schema, schema_limit_bytes),
        _schema(declaration.output_schema, schema_limit_bytes),
    )
    try:
        text = profile_text(declaration, executable)
    except ValueError as error:
        raise InvalidRequest(f"task_types: {error}.") from error
    wanted = declaration.requirements
    return commands.TaskTypeDeclared(
        name=declaration.name,
        profile=rows.ProfileRow(
            digest=profile_digest(text),
            type=declaration.name,
            effects=declaration.effects,
            max_attempts=declaration.max_attempts,
            resources=amounts(declaration.resources),
            requirements=rows.Requirements(
                locations=None if wanted.locations is None else frozenset(wanted.locations),
                networks=frozenset(wanted.networks),
                labels=frozenset(wanted.labels.items()),
            ),
            match=declaration.match,
            cost_minor=declaration.cost_minor,
            operations=declaration.scope.operations,
            objects=declaration.scope.objects,
        ),
        profile_text=text,
        input_schema=schemas[0],
        output_schema=schemas[1],
    )


def _schema(schema: dict[str, Any] | None, limit_bytes: int) -> str | None:
    if schema is None:
        return None
    return encode_json(schema, limit_bytes=limit_bytes, what="a schema")


def _remaining(expires_at: int | None, now: int) -> float | None:
    return None if expires_at is None else max(0.0, (expires_at - now) / 1_000_000)
