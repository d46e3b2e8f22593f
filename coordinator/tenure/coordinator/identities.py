"""Who may ask for what: bearer tokens from the settings, each with a tenant and a role."""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from time import monotonic
from typing import Final

from tenure.contract.ids import TenantId

LOOK_AGAIN_SECONDS: Final = 1.0
"""How long a token that was taken back may still be used."""


class Role(StrEnum):
    """What a token may be used for."""

    APPLICATION = "application"  # submits, reads and cancels tasks
    EXECUTOR = "executor"  # registers nodes and reports about attempts
    OPERATOR = "operator"  # what an application may, and the outbox and the nodes
    READ_ONLY = "read_only"  # reads what an operator may read


@dataclass(frozen=True, slots=True)
class Identity:
    """Whoever sent a request. ``name`` is the actor of every event that the request causes."""

    name: str
    tenant: TenantId
    role: Role


class Identities:
    """Finds the identity of a token.

    Tokens are kept and compared as digests, each in constant time: how long that takes says nothing
    about how much of a token was right, and this object holds no token that could leak.
    """

    def __init__(self, tokens: Iterable[tuple[str, Identity]]) -> None:
        self._known = tuple((sha256(token.encode()).digest(), who) for token, who in tokens)

    def find(self, token: str) -> Identity | None:
        """The identity of ``token``, or None."""
        presented = sha256(token.encode()).digest()
        found = None
        for digest, identity in self._known:
            if hmac.compare_digest(digest, presented):
                found = identity
        return found


class CurrentIdentities:
    """Identities whose tokens may be replaced while the process runs.

    ``read`` gives the ones of now. It is asked again once a second, and whenever a token is not
    known, so that a new token is good at once.
    """

    def __init__(
        self, read: Callable[[], Identities], *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._known = read()
        self._look_again_at = clock() + LOOK_AGAIN_SECONDS

    def find(self, token: str) -> Identity | None:
        """The identity of ``token`` now, or None."""
        if self._clock() >= self._look_again_at:
            self._look_again()
        return self._known.find(token) or self._look_again().find(token)

    def _look_again(self) -> Identities:
        self._known = self._read()
        self._look_again_at = self._clock() + LOOK_AGAIN_SECONDS
        return self._known
