"""What can go wrong in the coordinator, apart from the database's schema (``store/errors.py``).

TenureError
├── RequestRefused                  the request cannot be served as it is; its code says why
│   └── InvalidRequest              a field, parameter or header is wrong; ``errors`` says which
├── Retryable                       nothing is known to have changed: repeat the same request
│   ├── Unavailable                 unavailable: the database is away, or did not answer in time
│   │   └── StandbyNotAnswering     standby_not_answering
│   └── Overloaded                  overloaded: too many requests wait already
├── ListenRefused                   listen_refused: the address to listen on cannot be had
└── BrokerError                     the broker cannot be used; messages wait in the log
    ├── BrokerUnreachable           broker_unreachable
    ├── BrokerRefused               broker_refused: login, virtual host or rights are wrong
    └── BrokerUntrusted             certificate_untrusted: not the broker it should be, or no TLS

Settings: tenure.settings.errors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError


class RequestRefused(TenureError):
    """Nothing was changed; ``code`` says why and gives the HTTP status."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        next_step: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, next_step=next_step, code=code)
        self.headers = dict(headers or {})


class InvalidRequest(RequestRefused):
    """The request breaks the interface. ``errors`` has one entry ``{field, message}`` each."""

    def __init__(
        self,
        message: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        next_step: str = "",
        code: Code = Code.INVALID_FIELD,
    ) -> None:
        super().__init__(code, message, next_step=next_step)
        self.errors = tuple(dict(entry) for entry in errors)


class Retryable(TenureError):
    """Nothing is known to have changed. Repeating the same request with its ids is safe."""

    code = Code.UNAVAILABLE

    def __init__(
        self,
        message: str,
        *,
        next_step: str = "Repeat the same request with the same ids.",
        code: str | None = None,
        retry_after_seconds: int = 1,
    ) -> None:
        super().__init__(message, next_step=next_step, code=code)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(Retryable):
    """The database is away, or did not answer before the request's deadline."""


class StandbyNotAnswering(Unavailable):
    """A synchronous standby does not answer: nothing is committed before it does."""

    code = Code.STANDBY_NOT_ANSWERING


class Overloaded(Retryable):
    """As many requests wait as may; nothing of this one was looked at."""

    code = Code.OVERLOADED


class ListenRefused(TenureError):
    """The address to listen on is taken or not this machine's."""

    code = "listen_refused"


class BrokerError(TenureError):
    """The broker cannot be used now. No state depends on it (OPS-01)."""


class BrokerUnreachable(BrokerError):
    """No connection; may pass."""

    code = "broker_unreachable"


class BrokerRefused(BrokerError):
    """The broker answers and says no: login, virtual host or rights."""

    code = "broker_refused"


class BrokerUntrusted(BrokerError):
    """The broker's certificate is not accepted, or it does not speak TLS."""

    code = "certificate_untrusted"
