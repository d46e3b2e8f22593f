"""Who may ask for what: bearer tokens from the settings, each with a tenant and a role."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from tenure.contract.ids import TenantId


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
