"""How a refusal looks over HTTP: RFC 9457 problem details with the stable code."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.tasks import Problem
from tenure.coordinator.api.statuses import STATUS
from tenure.coordinator.errors import InvalidRequest, RequestRefused, Retryable

MEDIA_TYPE: Final = "application/problem+json"
MAX_ERRORS: Final = 20

NEXT_STEP: Final[Mapping[Code, str]] = {
    Code.MALFORMED_JSON: "Send one JSON value in UTF-8; NaN and Infinity are no JSON.",
    Code.INVALID_FIELD: "Correct it; `errors` has it all, the interface is at /openapi.json.",
    Code.INVALID_CHARACTER: "Remove the character, or encode binary data as base64.",
    Code.PAYLOAD_TOO_LARGE: "Store the data elsewhere and pass a reference.",
    Code.BATCH_TOO_LARGE: "Send it in smaller batches.",
    Code.UNKNOWN_TASK_TYPE: "Start an executor that has it (`tenure executor MODULE:NAME`),"
    " or correct it; `tenure node list` shows the types that nodes run.",
    Code.DEADLINE_IN_THE_PAST: "Send a deadline that is ahead, with its time zone.",
    Code.NOT_FOUND: "Check the id and the token: ids of other tenants are not found either.",
    Code.EVENTS_REMOVED: "Read the entity's state, and go on after the sequence in the detail.",
    Code.METHOD_NOT_ALLOWED: "Use a method that the Allow header names.",
    Code.IDEMPOTENCY_CONFLICT: "Use a new key or id for new content, or repeat the first content.",
    Code.BEHIND_DEDUPE_RETENTION: "Begin later (`--since`), or force it where twice is safe.",
    Code.STALE_VERSION: "Read it again, and decide anew whether to change it.",
    Code.TOO_MANY_LIMITS: "Limit each key of a type in place of single keys, or remove some.",
    Code.UNAUTHENTICATED: "Send `Authorization: Bearer TOKEN` with a token of this coordinator.",
    Code.FORBIDDEN_ROLE: "Use a token with one of the roles that the detail names.",
    Code.UNSUPPORTED_PROTOCOL: "Use a version of the executor that speaks a supported protocol.",
    Code.UNKNOWN_NODE: "Register the incarnation first.",
    Code.NODE_GONE: "Start anew with a new incarnation.",
    Code.AUTHORITY_UNCONFIRMED: "Repeat later; an operator decides what this database is.",
    Code.AUTHORITY_HISTORY_LOST: "Repeat later; an operator looks at `tenure authority show`, stops"
    " what else runs on other copies of this database, and runs `tenure recover`.",
    Code.NOTHING_TO_RECOVER: "See `tenure authority show`: the authority is what it was opened on.",
    Code.RECOVERY_TOO_EARLY: "Repeat after Retry-After, or name the highest epoch that was opened.",
    Code.UNROUTABLE: "See `tenure subscription list` for the queues that there are.",
    Code.NOT_MIGRATED: "An operator runs `tenure migrate up`; then repeat the same request.",
    Code.SCHEMA_TOO_NEW: "An operator upgrades this coordinator; then repeat the same request.",
    Code.UNAVAILABLE: "Repeat the same request with the same ids.",
    Code.STANDBY_NOT_ANSWERING: "Repeat the same request with the same ids; an operator brings the"
    " standby back, or takes it out of synchronous_standby_names.",
    Code.OVERLOADED: "Repeat the same request with the same ids, a little later.",
    Code.INTERNAL_REFUSED: "Report it with the coordinator's log lines of this moment.",
    Code.INTERNAL_ERROR: "Report it with the coordinator's log lines of this moment.",
}
"""What to do about it, where the refusal itself does not say."""


def problem_of(error: TenureError) -> Problem:
    """The problem details of an error; a code without a status of its own is a fault of ours."""
    try:
        code = Code(error.code)
    except ValueError:
        code = Code.INTERNAL_ERROR
    errors = error.errors if isinstance(error, InvalidRequest) else ()
    return problem(code, error.message, next_step=error.next_step, errors=errors)


def problem(
    code: Code, detail: str, *, next_step: str = "", errors: tuple[dict[str, object], ...] = ()
) -> Problem:
    """Problem details; the next step is the code's usual one when none is given."""
    status = STATUS[code]
    return Problem(
        type=f"urn:tenure:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail,
        next_step=next_step or NEXT_STEP.get(code, ""),
        errors=errors[:MAX_ERRORS],
    )


def response_of(error: TenureError) -> Response:
    """The whole answer to a refused request, with the headers its code asks for."""
    headers = dict(error.headers) if isinstance(error, RequestRefused) else {}
    details = problem_of(error)
    if isinstance(error, Retryable):
        headers["Retry-After"] = str(error.retry_after_seconds)
    elif details.status == 503:
        headers["Retry-After"] = "5"
    elif details.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tenure"'
    return Response(
        details.model_dump_json(), details.status, headers=headers, media_type=MEDIA_TYPE
    )
