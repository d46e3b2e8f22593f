"""Where the coordinator is and who we are: the environment, or a local stack that runs here."""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tenure.client.errors import ClientError

DEFAULT_URL: Final = "http://127.0.0.1:8420"
STATE_DIRECTORY_VARIABLE: Final = "TENURE_STATE_DIR"
DEFAULT_STATE_DIRECTORY: Final = ".tenure"
CONNECTION_FILE: Final = "connection.json"
LOCAL_ROLE: Final = "application"
DEFAULT_RETRY_SECONDS: Final = 30.0
DEFAULT_MAX_CONNECTIONS: Final = 64


class NotConfigured(ClientError):
    """A setting that is needed is missing or cannot be read."""

    code = "not_configured"


@dataclass(frozen=True, slots=True)
class Connection:
    """Address of a coordinator and the token to show it."""

    url: str
    token: str = field(repr=False)
    token_file: Path | None = None

    def current_token(self) -> str:
        """The token as its file has it now; the one first read while the file cannot be read."""
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text(encoding="utf-8").strip() or self.token
        except (OSError, UnicodeDecodeError):
            return self.token


def read_secret(name: str, environment: Mapping[str, str]) -> str | None:
    """Value of a secret setting: ``NAME``, or the content of the file that ``NAME_FILE`` names.

    Raises NotConfigured when both are set, or the file cannot be read.
    """
    value, file = environment.get(name), environment.get(f"{name}_FILE")
    if value and file:
        raise NotConfigured(f"{name} and {name}_FILE are both set.", next_step="Unset one of them.")
    if file:
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NotConfigured(f"{name}_FILE: {file} cannot be read: {error}.") from error
    return value or None


def connection_from_environment(environment: Mapping[str, str] | None = None) -> Connection:
    """``TENURE_URL`` (default http://127.0.0.1:8420) and ``TENURE_TOKEN`` or ``TENURE_TOKEN_FILE``.

    Where none of them is set: the local stack that `tenure up` runs in ``TENURE_STATE_DIR``
    (default ``.tenure``), as an application. A URL from the environment is never sent a token of
    the local stack.

    Raises NotConfigured when there is no token.
    """
    environment = os.environ if environment is None else environment
    token = read_secret("TENURE_TOKEN", environment)
    url = environment.get("TENURE_URL")
    if token is not None:
        file = environment.get("TENURE_TOKEN_FILE")
        return Connection(url or DEFAULT_URL, token, Path(file) if file else None)
    directory = Path(environment.get(STATE_DIRECTORY_VARIABLE) or DEFAULT_STATE_DIRECTORY)
    local = directory / CONNECTION_FILE
    if not url and local.exists():
        return _local_stack(local)
    raise NotConfigured(
        "no token: TENURE_TOKEN is not set"
        + ("." if url else f", and no local stack runs here ({local} is not there)."),
        next_step="Set TENURE_TOKEN, or TENURE_TOKEN_FILE to a file that holds it"
        + ("." if url else ", or start in the folder where `tenure up` runs."),
    )


def _local_stack(file: Path) -> Connection:
    """What `tenure up` wrote. Raises NotConfigured."""
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise NotConfigured(
                f"{file} holds tokens but other accounts may read it.",
                next_step=f"chmod 600 {file}",
            )
        content = json.loads(file.read_text(encoding="utf-8"))
        return Connection(url=str(content["url"]), token=str(content["tokens"][LOCAL_ROLE]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotConfigured(
            f"{file} is not what `tenure up` writes: {error!r}.",
            next_step="Start the stack again with `tenure up`, or set TENURE_URL and TENURE_TOKEN.",
        ) from error
