"""What can go wrong in the relay.

TenureError
├── LogUnavailable          unavailable: the database does not answer, or refuses for now
│   └── LogNotMigrated      not_migrated: the database lacks the relay's functions
├── BrokerError             the broker cannot be used; rows wait in the log
│   ├── BrokerUnreachable   broker_unreachable: no connection; may pass
│   └── BrokerRefused       broker_refused: login, virtual host or rights are wrong
├── SettingsInvalid         settings_invalid: a setting is missing or contradicts another
└── ListenRefused           listen_refused: the address to listen on cannot be had
"""

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError


class LogUnavailable(TenureError):
    """The database does not answer; the relay goes on asking."""

    code = Code.UNAVAILABLE


class LogNotMigrated(LogUnavailable):
    """The database is older than this relay; it goes on asking."""

    code = Code.NOT_MIGRATED


class BrokerError(TenureError):
    """The broker cannot be used now; the relay goes on trying."""


class BrokerUnreachable(BrokerError):
    """No connection; may pass."""

    code = "broker_unreachable"


class BrokerRefused(BrokerError):
    """The broker answers and says no: login, virtual host or rights."""

    code = "broker_refused"


class SettingsInvalid(TenureError):
    """The process cannot start with these settings."""

    code = "settings_invalid"


class ListenRefused(TenureError):
    """The address to listen on is taken or not this machine's."""

    code = "listen_refused"
