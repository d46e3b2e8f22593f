"""What a receiver makes of a request with a fencing token and an idempotency key. Pure: instants
are the receiver's clock, in integer microseconds (LEASE-10).

The token is judged before the key: an attempt that may act no longer gets no answer either, not
even a stored one.
"""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How far the first request with a key came."""

    RUNNING = "running"  # its claim is alive, or its owner is gone and nobody knows
    ACTED = "acted"  # its effect is committed, its answer is not stored
    DONE = "done"  # its answer is stored, or was too long to be


class Verdict(StrEnum):
    """What happens to a request."""

    START = "start"  # the first with its key: the application answers it
    AGAIN = "again"  # the owner of the claim is gone and the application may be asked again
    REPLAY = "replay"  # the stored answer
    FENCED = "fenced"  # it only raised the fence
    STALE_TOKEN = "stale_token"
    AUTHORITY_OVER = "authority_over"
    CONFLICT = "idempotency_conflict"  # the key stands for another request
    RUNNING = "request_running"
    UNKNOWN = "outcome_unknown"  # its owner is gone: a person, or another question, has to say
    NO_ANSWER = "already_done"  # done, and the answer was not kept


@dataclass(frozen=True, slots=True)
class Presented:
    """The authority and the key of a request. ``until`` is the end of the lease plus the tolerance;
    ``fingerprint`` is None for a request that only raises the fence."""

    resource: str
    token: int
    until: int
    scope: str = ""
    key: str = ""
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What is stored under a key."""

    state: State
    fingerprint: str
    claimed_until: int
    answer_kept: bool


def judge(
    presented: Presented,
    *,
    seen_token: int | None,
    entry: Entry | None,
    now: int,
    repeat_abandoned: bool,
) -> Verdict:
    """The verdict. ``seen_token`` is the highest that was presented for the resource, read together
    with ``entry`` and ``now`` under a lock on the resource."""
    if seen_token is not None and presented.token < seen_token:
        return Verdict.STALE_TOKEN
    if now >= presented.until:
        return Verdict.AUTHORITY_OVER
    if presented.fingerprint is None:
        return Verdict.FENCED
    if entry is None:
        return Verdict.START
    if entry.fingerprint != presented.fingerprint:
        return Verdict.CONFLICT
    match entry.state:
        case State.DONE:
            return Verdict.REPLAY if entry.answer_kept else Verdict.NO_ANSWER
        case State.ACTED:
            return Verdict.NO_ANSWER if now >= entry.claimed_until else Verdict.RUNNING
        case State.RUNNING:
            if now < entry.claimed_until:
                return Verdict.RUNNING
            return Verdict.AGAIN if repeat_abandoned else Verdict.UNKNOWN


def raises_fence(verdict: Verdict) -> bool:
    """Whether the token of the request becomes the highest that was seen."""
    return verdict not in (Verdict.STALE_TOKEN, Verdict.AUTHORITY_OVER)


def claims(verdict: Verdict) -> bool:
    """Whether the request becomes the owner of its key."""
    return verdict in (Verdict.START, Verdict.AGAIN)
