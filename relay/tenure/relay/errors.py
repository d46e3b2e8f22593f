"""What can go wrong in the relay.

TenureError
├── LogUnavailable          unavailable: the database does not answer, or refuses for now
│   ├── LogNotMigrated      not_migrated: the database lacks the relay's functions
│   ├── LogRefused          database_refused: login, database name or rights are wrong;
│   │                       pooler_not_declared: see tenure.settings.pooler
│   └── LogUntrusted        certificate_untrusted: not the server it should be, or no TLS
├── BrokerError             the broker cannot be used; rows wait in the log
│   ├── BrokerUnreachable   broker_unreachable: no connection; may pass
│   ├── BrokerRefused       broker_refused: login, virtual host or rights are wrong
│   └── BrokerUntrusted     certificate_untrusted: not the broker it should be, or no TLS
└── ListenRefused           listen_refused: the address to listen on cannot be had

Settings: tenure.settings.errors.
"""

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError


class LogUnavailable(TenureError):
    """The database does not answer; the relay goes on asking."""

    code: str = Code.UNAVAILABLE


class LogNotMigrated(LogUnavailable):
    """The database is older than this relay; it goes on asking."""

    code = Code.NOT_MIGRATED


class LogRefused(LogUnavailable):
    """The database answers and says no; it goes on asking, since that may be mended there."""

    code = "database_refused"


class LogUntrusted(LogUnavailable):
    """The database's certificate is not accepted, or it does not speak TLS."""

    code = "certificate_untrusted"


class BrokerError(TenureError):
    """The broker cannot be used now; the relay goes on trying."""


class BrokerUnreachable(BrokerError):
    """No connection; may pass."""

    code = "broker_unreachable"


class BrokerRefused(BrokerError):
    """The broker answers and says no: login, virtual host or rights."""

    code = "broker_refused"


class BrokerUntrusted(BrokerError):
    """The broker's certificate is not accepted, or it does not speak TLS."""

    code = "certificate_untrusted"


class ListenRefused(TenureError):
    """The address to listen on is taken or not this machine's."""

    code = "listen_refused"
