"""What can go wrong with the local stack, each with a stable code and what to do about it.

LocalServerError                  (a TenureError)
├── LocalServerMissingError       no server binaries on this machine
├── LocalServerVersionError       binaries or stored data of an unfit version
├── LocalAccountUnavailableError  started as root, and no way to leave root
├── LocalStateInUseError          another process holds the state directory
├── LocalStateUnusableError       the state directory cannot be written or reached
├── LocalPortTakenError           a port that was asked for belongs to another server
├── LocalServerFailedError        the server ended while it was starting
├── LocalServerNotReadyError      the server did not accept a login in time
├── LocalServerNotRunningError    asked for what only a running server has
├── LocalServerRunningError       asked for what only a stopped server allows
├── LocalProcessFailedError       a process of Tenure ended while it was starting
└── LocalProcessNotReadyError     a process of Tenure was not ready in time

The code of each is its name in small letters without the ending: ``local_server_missing``.
"""

from __future__ import annotations

from tenure.contract.errors import TenureError


class LocalServerError(TenureError):
    """The base of all errors of the local stack. ``advice`` says what to do next."""

    code = "local_server_error"

    def __init__(self, message: str, *, advice: str) -> None:
        super().__init__(message, next_step=advice)


class LocalServerMissingError(LocalServerError):
    """No server binaries were found."""

    code = "local_server_missing"


class LocalServerVersionError(LocalServerError):
    """The binaries are too old, or belong to another major version than the stored data."""

    code = "local_server_version"


class LocalAccountUnavailableError(LocalServerError):
    """PostgreSQL refuses to run as root and no unprivileged account can be taken."""

    code = "local_account_unavailable"


class LocalStateInUseError(LocalServerError):
    """Another process holds the state directory."""

    code = "local_state_in_use"


class LocalStateUnusableError(LocalServerError):
    """The state directory cannot be written, or the server's account cannot reach it."""

    code = "local_state_unusable"


class LocalPortTakenError(LocalServerError):
    """A port that was asked for by number belongs to somebody else."""

    code = "local_port_taken"


class LocalServerFailedError(LocalServerError):
    """The server ended while it was starting."""

    code = "local_server_failed"


class LocalServerNotReadyError(LocalServerError):
    """The server is running but did not accept our login in time."""

    code = "local_server_not_ready"


class LocalServerNotRunningError(LocalServerError):
    """The server is not running."""

    code = "local_server_not_running"


class LocalServerRunningError(LocalServerError):
    """The server is running and must be stopped first."""

    code = "local_server_running"


class LocalProcessFailedError(LocalServerError):
    """A process of Tenure ended while it was starting."""

    code = "local_process_failed"


class LocalProcessNotReadyError(LocalServerError):
    """A process of Tenure runs but was not ready in time."""

    code = "local_process_not_ready"
