"""What goes wrong in an executor.

TenureError
└── ExecutorError
    ├── DeclarationError          a handler is declared wrongly: raised when its module is imported
    ├── PermanentFailure          raised by a handler: do not try again
    ├── AuthorityError            this attempt may act no longer
    │   ├── AuthorityOver         its time is up, by this clock or by the receiver's
    │   └── StaleToken            the receiver has seen a successor's token
    ├── GuardError
    │   ├── GuardNotInstalled     the receiver lacks the guard, or this account may not use it
    │   ├── GuardUnavailable      the receiver cannot be reached
    │   ├── EffectNotWritten      the commit failed and has certainly not happened: may be repeated
    │   └── CommitUnknown         nobody can tell yet: repeat under the same operation
    ├── CoordinatorError
    │   ├── CoordinatorUnavailable  the outcome is unknown: repeat the same request
    │   ├── CoordinatorRefused      the request itself was refused
    │   └── NodeGone                this incarnation has ended for the coordinator
    ├── InboxUnavailable          the inbox file cannot be written
    ├── BrokerUnavailable         no usable connection to the broker, or no queue on it
    │   └── BrokerUntrusted       its certificate is not accepted, or it does not speak TLS
    └── ListenRefused             the address to listen on cannot be had

Settings: tenure.settings.errors.
"""

from tenure.contract.codes import Code, Reason
from tenure.contract.errors import TenureError


class ExecutorError(TenureError):
    """Root of this process's errors."""


class DeclarationError(ExecutorError):
    """A handler or its declaration is wrong."""

    code = "invalid_declaration"


class PermanentFailure(ExecutorError):
    """Raised by a handler whose task cannot succeed: it fails without another attempt.

    ``reason`` is a stable word of the application, at most 100 characters; ``message`` is for
    people.
    """

    code = Reason.HANDLER_FAILED

    def __init__(self, message: str, *, reason: str = Reason.HANDLER_FAILED) -> None:
        super().__init__(message, code=reason)
        self.reason = reason


class AuthorityError(ExecutorError):
    """The attempt may act no longer (LEASE-09, LEASE-10)."""


class AuthorityOver(AuthorityError):
    """The attempt's time is up."""

    code = "authority_over"


class StaleToken(AuthorityError):
    """The receiver has seen a later attempt's token."""

    code = Code.STALE_TOKEN


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


class InboxUnavailable(ExecutorError):
    """The inbox file cannot be written, so nothing may be acknowledged."""

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
