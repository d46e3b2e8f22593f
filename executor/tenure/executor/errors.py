"""What goes wrong in an executor.

TenureError
└── ExecutorError
    ├── DeclarationError          a handler is declared wrongly: raised when its module is imported
    ├── LifespanFailed            what handlers share could not be opened
    ├── Fail                      raised by a handler: do not try again
    ├── Retry                     raised by a handler: try again, later
    ├── RunEnded                  a handler's process was ended, or ended without an output
    ├── CheckpointRefused         a checkpoint was not kept
    ├── OutOfScope                the lease does not permit this operation on this object
    ├── AuthorityError            this attempt may act no longer
    │   ├── AuthorityOver         its time is up, by this clock or by the receiver's
    │   └── StaleToken            the receiver has seen a successor's token
    ├── GuardError
    │   ├── GuardNotInstalled     the receiver lacks the guard, or this account may not use it
    │   ├── GuardUnavailable      the receiver cannot be reached
    │   ├── EffectNotWritten      the commit failed and has certainly not happened: may be repeated
    │   ├── CommitUnknown         nobody can tell yet: repeat under the same operation
    │   ├── TransactionEnded      the body of a guarded transaction has ended it by itself
    │   ├── TransactionNested     a guarded transaction is begun within another of the same task
    │   ├── OutcomeUnknown        the receiver cannot tell either: a person has to look
    │   ├── EffectConflict        the operation stands for another request
    │   └── AnswerNotKept         done before, and its answer is not there any more
    ├── CoordinatorError
    │   ├── CoordinatorUnavailable  the outcome is unknown: repeat the same request
    │   ├── CoordinatorRefused      the request itself was refused
    │   └── NodeGone                this incarnation has ended for the coordinator
    ├── InboxUnavailable          the inbox cannot be read or written
    ├── HandlerFailed             a consumer's handler raised: the event is handled again
    ├── AuthorityBehind           the coordinator knows less of a stream than an event says
    ├── SubscriptionMissing       nobody has subscribed under that name
    ├── BrokerUnavailable         no usable connection to the broker, or no queue on it
    │   └── BrokerUntrusted       its certificate is not accepted, or it does not speak TLS
    └── ListenRefused             the address to listen on cannot be had

Settings: tenure.settings.errors.
"""

from datetime import timedelta

from tenure.contract.codes import Code, Reason
from tenure.contract.errors import TenureError
from tenure.contract.reports import MAX_RETRY_AFTER_SECONDS


class ExecutorError(TenureError):
    """Root of this process's errors."""


class DeclarationError(ExecutorError):
    """A handler or its declaration is wrong."""

    code = "invalid_declaration"


class LifespanFailed(ExecutorError):
    """The application's lifespan raised at the start; the cause is what it raised."""

    code = "application_broken"


class Fail(ExecutorError):
    """Raised by a handler whose task cannot succeed: it fails without another attempt (STATE-05).

    ``reason`` is a stable word of the application, at most 100 characters; ``message`` is for
    people.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message, code=reason)
        self.reason = reason


class Retry(ExecutorError):
    """Raised by a handler that wants another attempt, of the same task and under a new token.

    ``after`` is how long to wait, in seconds or as a timedelta, at most 30 days; without it the
    delay is drawn as after any failure. The attempt ends failed and counts towards its
    type's ``max_attempts`` (STATE-05). ``message`` is for people.

    Raises ValueError for an ``after`` that is no such length of time.
    """

    code = Reason.RETRY_REQUESTED

    def __init__(self, message: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(message)
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not 0 <= seconds <= MAX_RETRY_AFTER_SECONDS:
            raise ValueError(f"Retry(after={after!r}): it is 0 to {MAX_RETRY_AFTER_SECONDS} s")
        self.after_seconds = seconds


class RunEnded(ExecutorError):
    """A handler outlived its time limit, or its process did not come to an output (LEASE-11).

    ``reason`` is one of ``Reason``; ``traceback`` is for the log.
    """

    def __init__(self, reason: Reason, message: str, *, traceback: str = "") -> None:
        super().__init__(message, code=reason)
        self.reason = reason
        self.traceback = traceback


class CheckpointRefused(ExecutorError):
    """A checkpoint is none, or the coordinator cannot store it."""

    code = "checkpoint_refused"


class OutOfScope(ExecutorError):
    """The lease does not permit the operation on the object (LEASE-11). Trying again cannot help:
    the task fails."""

    code = Reason.OUT_OF_SCOPE


class AuthorityError(ExecutorError):
    """The attempt may act no longer (LEASE-09, LEASE-10)."""


class AuthorityOver(AuthorityError):
    """The attempt's time is up."""

    code = "authority_over"


class StaleToken(AuthorityError):
    """The receiver has seen a later attempt's token: ``seen_token``, where it says so."""

    code = Code.STALE_TOKEN

    def __init__(self, message: str, *, seen_token: int | None = None) -> None:
        super().__init__(message)
        self.seen_token = seen_token


class GuardError(ExecutorError):
    """A guarded effect could not be made."""


class GuardNotInstalled(GuardError):
    """The receiver has not got the guard, or this account may not use it."""

    code = "guard_not_installed"


class GuardUnavailable(GuardError):
    """The receiver cannot be reached."""

    code = "guard_unavailable"


class EffectNotWritten(GuardError):
    """The transaction was lost before its commit: nothing was written, it may be repeated."""

    code = "effect_not_written"


class CommitUnknown(GuardError):
    """The connection was lost at the commit and the outcome could not be learned."""

    code = "commit_unknown"


class TransactionEnded(GuardError):
    """The body of a guarded transaction has committed it or rolled it back."""

    code = "transaction_ended"


class TransactionNested(GuardError):
    """A guarded transaction was begun within another one of the same task and guard: each would
    wait for the other until the authority ends."""

    code = "transaction_nested"


class OutcomeUnknown(GuardError):
    """The receiver itself was interrupted and cannot tell whether it acted. Repeating does not
    help: somebody, or another question to the receiver, has to say."""

    code = "outcome_unknown"


class EffectConflict(GuardError):
    """The same operation of the same task was something else before."""

    code = Code.IDEMPOTENCY_CONFLICT


class AnswerNotKept(GuardError):
    """The effect was made before, and the receiver has not kept its answer."""

    code = "already_done"


class CoordinatorError(ExecutorError):
    """A request to the coordinator was not served."""


class CoordinatorUnavailable(CoordinatorError):
    """No usable answer: the outcome is unknown and the same request is to be repeated.

    ``retry_after_seconds`` is what the coordinator asked for, else None.
    """

    code = Code.UNAVAILABLE

    def __init__(
        self, message: str, *, code: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_seconds = retry_after_seconds


class CoordinatorRefused(CoordinatorError):
    """The coordinator refused the request; ``code`` says why, ``status`` is HTTP's."""

    def __init__(self, message: str, *, status: int, code: str, next_step: str = "") -> None:
        super().__init__(message, code=code, next_step=next_step)
        self.status = status


class NodeGone(CoordinatorError):
    """The coordinator has ended this incarnation, usually for another of the same name."""

    code = Code.NODE_GONE


class HandlerFailed(ExecutorError):
    """A consumer's handler raised: the event is handed to it again."""

    code = "handler_failed"


class AuthorityBehind(ExecutorError):
    """The coordinator knows less of a stream than an event says: it has lost history and is to be
    recovered. Nothing is decided about the event until then."""

    code = Code.AUTHORITY_HISTORY_LOST


class SubscriptionMissing(ExecutorError):
    """No subscription of that name that this token may see."""

    code = "subscription_missing"


class InboxUnavailable(ExecutorError):
    """The inbox cannot be read or written, so nothing may be acknowledged."""

    code = "inbox_unavailable"


class BrokerUnavailable(ExecutorError):
    """The broker cannot be used, or this incarnation's queue is not there yet."""

    code = "broker_unavailable"


class BrokerUntrusted(BrokerUnavailable):
    """The broker's certificate is not accepted, or it does not speak TLS."""

    code = "certificate_untrusted"


class ListenRefused(ExecutorError):
    """The address for health and metrics cannot be listened on."""

    code = "listen_refused"
