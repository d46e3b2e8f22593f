"""A submission of the contract -> a command of the core, whichever way it came: over HTTP, or
through the intake.

The command's id is derived from the caller's key, so that a repetition meets the stored outcome.
The fingerprint covers everything that is meant, so that the same key with other content is a
conflict.
"""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

from tenure.contract.codec import canonical_text, check_value, encode_json
from tenure.contract.ids import CommandId, TaskId, TenantId
from tenure.contract.reports import Resources
from tenure.contract.tasks import TaskSubmission
from tenure.coordinator.core import commands, rows
from tenure.coordinator.errors import InvalidRequest
from tenure.coordinator.identities import Identity

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# As the intake has it. The driver writes an instant too near to its ends as an infinite one.
_EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)


def submission(
    request: TaskSubmission,
    *,
    task_id: TaskId,
    fallback_id: CommandId,
    key: str | None,
    identity: Identity,
    payload_limit_bytes: int,
) -> commands.Submit:
    """The command of a submission. ``fallback_id`` serves where there is no ``key``.

    Raises InvalidPayload for an input that cannot be stored, InvalidRequest for an instant out of
    the years that can be stored.
    """
    input_text = encode_json(request.input, limit_bytes=payload_limit_bytes, what="input")
    if key is not None:
        check_value(key, "idempotency_key")
    check_value(request.concurrency_key, "concurrency_key")
    if request.scope is not None:
        check_value(request.scope.model_dump(), "scope")
    not_before = _instant(request.not_before, "not_before")
    deadline = _instant(request.deadline, "deadline")
    # Not the trace: whoever asks again, asks in another span.
    meant = {
        "type": request.type,
        "input": request.input,
        "priority": request.priority,
        "not_before": not_before,
        "deadline": deadline,
        "resources": request.resources.model_dump() if request.resources else None,
        "concurrency_key": request.concurrency_key,
        "scope": request.scope.model_dump() if request.scope else None,
    }
    return commands.Submit(
        command_id=fallback_id if key is None else derived_id(identity.tenant, "submit", key),
        fingerprint=fingerprint(meant),
        tenant=identity.tenant,
        actor=identity.name,
        task_id=task_id,
        type=request.type,
        input_text=input_text,
        priority=request.priority,
        not_before=not_before,
        deadline=deadline,
        resources=amounts(request.resources) if request.resources else None,
        concurrency_key=request.concurrency_key,
        traceparent=request.traceparent,
        scope_text=None if request.scope is None else request.scope.model_dump_json(),
    )


def derived_id(tenant: TenantId, purpose: str, key: str) -> CommandId:
    """Command id of a caller's key: the first 16 bytes of a SHA-256 over all that scopes it.

    The database derives it alike (``command_id_of``). No tenant and no purpose holds a slash.
    """
    digest = sha256(f"{tenant}/{purpose}/{key}".encode()).digest()
    return CommandId(str(UUID(bytes=digest[:16])))


def fingerprint(meant: Any) -> bytes:
    """Digest of everything that a command means."""
    return sha256(canonical_text(meant).encode()).digest()


def _instant(value: datetime | None, field: str) -> int | None:
    if value is None:
        return None
    if not _EARLIEST <= value < _LATEST:
        wrong = "before the year 1" if value < _EARLIEST else "later than the year 9998"
        raise InvalidRequest(
            f"The field {field!r}: {wrong}.", errors=[{"field": field, "message": wrong}]
        )
    return (value - _EPOCH) // _MICROSECOND


def amounts(resources: Resources) -> rows.ResourceAmounts:
    """Resources as the core has them."""
    return rows.ResourceAmounts(
        cpu_millis=resources.cpu_millis, memory_bytes=resources.memory_bytes
    )
