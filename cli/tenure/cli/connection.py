"""How a command finds the coordinator: the environment, or the local stack's state directory."""

import json
import logging
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tenure.cli.exits import SetupError, needs

if TYPE_CHECKING:
    from tenure.client import AsyncClient
    from tenure.client.settings import Connection

STATE_DIRECTORY_VARIABLE: Final = "TENURE_STATE_DIR"
DEFAULT_STATE_DIRECTORY: Final = ".tenure"
CONNECTION_FILE: Final = "connection.json"
LOCK_FILE: Final = "lock"
"""Holds the pid of the process that runs the local stack."""
COMMAND_RETRY_SECONDS: Final = 10.0
"""A person waits: shorter than an application would."""


def state_directory(given: Path | None = None, environment: Mapping[str, str] = os.environ) -> Path:
    """The option, else ``TENURE_STATE_DIR``, else ``.tenure`` in the working directory."""
    if given is not None:
        return given
    return Path(environment.get(STATE_DIRECTORY_VARIABLE) or DEFAULT_STATE_DIRECTORY)


def read_connection_file(path: Path) -> dict[str, Any]:
    """What `tenure up` wrote. Raises SetupError when it is unreadable or open to other accounts."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SetupError(
                f"{path} holds tokens but other accounts may read it.",
                next_step=f"chmod 600 {path}",
                code="insecure_file",
            )
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read: {error}.", code="not_configured") from error
    if not isinstance(content, dict):
        raise SetupError(f"{path} is not what `tenure up` writes.", code="not_configured")
    return content


def find_connection(
    role: str = "operator", environment: Mapping[str, str] = os.environ
) -> "Connection":
    """Address and token for a command.

    Set in the environment (``TENURE_TOKEN`` with ``TENURE_URL``): that. Otherwise the token of
    ``role`` in the state directory. A URL from the environment is never sent a token of the local
    stack.

    Raises SetupError and NotConfigured.
    """
    with needs("cli"):
        from tenure.client.settings import Connection, connection_from_environment

    file = state_directory(environment=environment) / CONNECTION_FILE
    asks_elsewhere = any(
        environment.get(name) for name in ("TENURE_URL", "TENURE_TOKEN", "TENURE_TOKEN_FILE")
    )
    if asks_elsewhere:
        return connection_from_environment(environment)
    if not file.exists():
        raise no_stack(file, "TENURE_TOKEN is not set", "TENURE_URL and TENURE_TOKEN")
    content = read_connection_file(file)
    refuse_killed(file)
    try:
        return Connection(url=str(content["url"]), token=str(content["tokens"][role]))
    except (KeyError, TypeError) as error:
        raise SetupError(
            f"{file} names no address or no token for the role {role}.",
            next_step="Start the stack again with `tenure up`.",
            code="not_configured",
        ) from error


def no_stack(file: Path, unset: str, variables: str) -> SetupError:
    """Nobody said where a coordinator is, and no local stack runs here. ``file`` is what a stack
    writes when it is ready; a folder where one ran before is told from one that never had any."""
    if file.with_name(LOCK_FILE).exists():
        return SetupError(
            f"no coordinator is known: {unset}, and the stack of {file.parent} has ended or is not"
            " ready yet.",
            next_step=f"Start it with `tenure up`, wait until it is ready, or set {variables}.",
            code="not_configured",
        )
    return SetupError(
        f"no coordinator is known: {unset} and there is no {file}.",
        next_step=f"Go to where `tenure up` runs, or set {variables}.",
        code="not_configured",
    )


def refuse_killed(file: Path) -> None:
    """Raises SetupError when the stack that wrote this file has ended without removing it."""
    if _was_killed(file.with_name(LOCK_FILE)):
        raise SetupError(
            f"the local stack of {file.parent} does not run: it was killed.",
            next_step="Start it again with `tenure up`; it finds its data.",
            code="not_configured",
        )


def _was_killed(lock: Path) -> bool:
    """Whether the process that the lock file names is gone; false where that cannot be told."""
    try:
        os.kill(int(lock.read_text(encoding="utf-8")), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


class SignOfLife(logging.Handler):
    """Tells a person who waits, once, that the coordinator does not answer and is asked again."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._said:
            self._said = True
            print(record.getMessage(), file=sys.stderr)


def open_client(role: str = "operator") -> "AsyncClient":
    """A client for one command. Raises SetupError, NotConfigured, MissingExtra."""
    with needs("cli"):
        from tenure.client import AsyncClient

    connection = find_connection(role)
    if sys.stderr.isatty():
        log = logging.getLogger("tenure.client")
        log.setLevel(logging.INFO)
        log.handlers[:] = [SignOfLife()]
    return AsyncClient(
        connection.url, connection.current_token, retry_seconds=COMMAND_RETRY_SECONDS
    )
