"""Where the coordinator is and who we are, from the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tenure.client.errors import ClientError

DEFAULT_URL: Final = "http://127.0.0.1:8420"


class NotConfigured(ClientError):
    """A setting that is needed is missing or cannot be read."""

    code = "not_configured"


@dataclass(frozen=True, slots=True)
class Connection:
    """Address of a coordinator and the token to show it."""

    url: str
    token: str = field(repr=False)


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

    Raises NotConfigured when there is no token.
    """
    environment = os.environ if environment is None else environment
    token = read_secret("TENURE_TOKEN", environment)
    if token is None:
        raise NotConfigured(
            "no token: TENURE_TOKEN is not set.",
            next_step="Set TENURE_TOKEN, or TENURE_TOKEN_FILE to a file that holds it.",
        )
    return Connection(url=environment.get("TENURE_URL") or DEFAULT_URL, token=token)
