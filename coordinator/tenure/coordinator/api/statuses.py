"""The HTTP status of each code, total over the codes that can end a request; the codes that only
appear inside a reply (of a report, say) are in it too, since a batch of one may be answered either
way.
"""

from collections.abc import Mapping
from typing import Final

from tenure.contract.codes import Code

STATUS: Final[Mapping[Code, int]] = {
    Code.MALFORMED_JSON: 400,
    Code.INVALID_FIELD: 422,
    Code.INVALID_CHARACTER: 422,
    Code.PAYLOAD_TOO_LARGE: 413,
    Code.BATCH_TOO_LARGE: 413,
    Code.UNKNOWN_TASK_TYPE: 422,
    Code.DEADLINE_IN_THE_PAST: 422,
    Code.NOT_FOUND: 404,
    Code.EVENTS_REMOVED: 410,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.IDEMPOTENCY_CONFLICT: 422,
    Code.BEHIND_DEDUPE_RETENTION: 409,
    Code.STALE_VERSION: 409,
    Code.TOO_MANY_LIMITS: 409,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN_ROLE: 403,
    Code.UNSUPPORTED_PROTOCOL: 409,
    Code.NOT_CURRENT: 409,
    Code.STALE_TOKEN: 409,
    Code.WRONG_NODE: 409,
    Code.LEASE_EXPIRED: 409,
    Code.WRONG_STATE: 409,
    Code.ALREADY_DELIVERED: 409,
    Code.CANCEL_REQUESTED: 409,
    Code.UNKNOWN_ATTEMPT: 404,
    Code.UNKNOWN_NODE: 404,
    Code.NODE_GONE: 409,
    Code.AUTHORITY_UNCONFIRMED: 503,
    Code.AUTHORITY_HISTORY_LOST: 503,
    Code.NOTHING_TO_RECOVER: 409,
    Code.RECOVERY_TOO_EARLY: 409,
    Code.UNROUTABLE: 409,
    Code.NOT_MIGRATED: 503,
    Code.SCHEMA_TOO_NEW: 503,
    Code.UNAVAILABLE: 503,
    Code.STANDBY_NOT_ANSWERING: 503,
    Code.OVERLOADED: 503,
    Code.INTERNAL_REFUSED: 500,
    Code.INTERNAL_ERROR: 500,
}

RETRYABLE: Final = frozenset(code for code, status in STATUS.items() if status == 503)
"""Nothing is known to have changed: the same request, ids included, may be repeated."""
