"""Stable codes: one word for each way the system says no.

A code appears in the problem+json reply, the log line, the metric label and the documentation, and
never changes its meaning. Standard library only, so that the pure cores may import it.
"""

from enum import StrEnum
from typing import Final


class Code(StrEnum):
    """Every refusal that crosses a process border."""

    # The request itself
    MALFORMED_JSON = "malformed_json"
    INVALID_FIELD = "invalid_field"
    INVALID_CHARACTER = "invalid_character"  # \u0000 cannot be stored
    PAYLOAD_TOO_LARGE = "payload_too_large"
    BATCH_TOO_LARGE = "batch_too_large"
    UNKNOWN_TASK_TYPE = "unknown_task_type"
    DEADLINE_IN_THE_PAST = "deadline_in_the_past"
    NOT_FOUND = "not_found"
    EVENTS_REMOVED = "events_removed"  # the policy no longer keeps the first events asked for
    METHOD_NOT_ALLOWED = "method_not_allowed"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"  # the same key or report id, other content
    BEHIND_DEDUPE_RETENTION = "behind_dedupe_retention"  # consumers may have forgotten it
    STALE_VERSION = "stale_version"  # what it would change has been changed by somebody else
    TOO_MANY_LIMITS = "too_many_limits"  # of one tenant
    # Who asks
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN_ROLE = "forbidden_role"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"
    # Authority
    NOT_CURRENT = "not_current"  # another attempt is current, or the task has ended
    STALE_TOKEN = "stale_token"
    WRONG_NODE = "wrong_node"  # the attempt belongs to another incarnation
    LEASE_EXPIRED = "lease_expired"
    WRONG_STATE = "wrong_state"
    ALREADY_DELIVERED = "already_delivered"  # other content for an attempt that has delivered
    CANCEL_REQUESTED = "cancel_requested"  # nothing more begins: confirm instead
    UNKNOWN_ATTEMPT = "unknown_attempt"
    UNKNOWN_NODE = "unknown_node"
    NODE_GONE = "node_gone"
    AUTHORITY_UNCONFIRMED = "authority_unconfirmed"
    AUTHORITY_HISTORY_LOST = "authority_history_lost"  # somebody knows more than the database
    NOTHING_TO_RECOVER = "nothing_to_recover"
    RECOVERY_TOO_EARLY = "recovery_too_early"  # its epoch might be another recovery's
    # Messages
    UNROUTABLE = "unroutable"  # the queue is gone
    # The system
    NOT_MIGRATED = "not_migrated"
    SCHEMA_TOO_NEW = "schema_too_new"
    UNAVAILABLE = "unavailable"  # repeat the same request later
    STANDBY_NOT_ANSWERING = "standby_not_answering"  # nothing is committed before it does
    OVERLOADED = "overloaded"
    INTERNAL_REFUSED = "internal_refused"
    INTERNAL_ERROR = "internal_error"


class Reason(StrEnum):
    """Why an attempt or a task ended, is held, or was ended by somebody else."""

    ACCEPTANCE_TIMEOUT = "acceptance_timeout"  # submitted attempt whose lease ran out
    LEASE_EXPIRED = "lease_expired"
    REVOKED = "revoked"
    CANCEL_REQUESTED = "cancel_requested"
    CANCEL_DELIVERED = "cancel_delivered"  # the executor has heard of it
    DEADLINE_PASSED = "deadline_passed"
    HANDLER_FAILED = "handler_failed"  # the handler raised
    RETRY_REQUESTED = "retry_requested"  # the handler asked for another attempt
    OUTPUT_INVALID = "output_invalid"  # the handler's output does not fit its declared model
    INPUT_INVALID = "input_invalid"
    TIME_LIMIT = "time_limit"  # the handler ran longer than its type may
    RESOURCE_LIMIT = "resource_limit"  # its process took more than its reservation or limits
    PROCESS_DIED = "process_died"  # its process ended without an output
    DIED_ALONE = "died_alone"  # so did that of a suspect, which ran alone
    COMMAND_FAILED = "command_failed"  # the program ended with another exit status than 0
    PROGRAM_CHANGED = "program_changed"  # the program is not the one that was declared
    OUT_OF_SCOPE = "out_of_scope"  # the handler tried what its lease does not permit
    AUTHORITY_LOST = "authority_lost"  # handed back: the executor's own clock or a receiver said so
    UNKNOWN_TYPE = "unknown_type"  # the node does not run this type
    NODE_DRAINING = "node_draining"  # not begun, or handed back at the drain limit
    HEARTBEATS_MISSING = "heartbeats_missing"  # a node's health review was opened
    HEARTBEATS_RETURNED = "heartbeats_returned"
    REVIEW_CLOSED = "review_closed"  # by an operator
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    LOST_WITH_POSSIBLE_EFFECT = "lost_with_possible_effect"
    LOST_REPEATEDLY = "lost_repeatedly"
    REJECTED_BY_ALL = "rejected_by_all"
    PROFILE_MOVED = "profile_moved"  # an operator froze another profile in the task
    OPERATOR_HOLD = "operator_hold"
    RELEASED = "released"  # by an operator, after a hold


HELD_REASONS: Final = (
    Reason.LOST_WITH_POSSIBLE_EFFECT,
    Reason.LOST_REPEATEDLY,
    Reason.REJECTED_BY_ALL,
    Reason.OPERATOR_HOLD,
)
"""Why a task may wait for a person."""
