"""What can go wrong in the relay.

TenureError
└── RelayError
    ├── LogUnavailable          unavailable: the database does not answer, or refuses for now
    ├── LogNotMigrated          not_migrated: the database lacks the relay's functions
    ├── BrokerUnavailable       unavailable: no connection to the broker
    └── InvalidSettings         invalid_settings: the process cannot start as configured
"""

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError


class RelayError(TenureError):
    """Something that keeps the relay from publishing."""


class LogUnavailable(RelayError):
    """The database does not answer; the relay goes on asking."""

    code = Code.UNAVAILABLE


class LogNotMigrated(LogUnavailable):
    """The database is older than this relay; it goes on asking."""

    code = Code.NOT_MIGRATED


class BrokerUnavailable(RelayError):
    """The broker does not answer, or refuses the login; the relay goes on trying."""

    code = Code.UNAVAILABLE


class InvalidSettings(RelayError):
    """A setting is missing, malformed, or given twice."""

    code = "invalid_settings"
