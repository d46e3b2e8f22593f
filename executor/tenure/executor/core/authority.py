"""May I still act? Pure: every instant is the executor's own clock, in integer microseconds.

The coordinator's answers carry durations. They count from before the request was sent, so that a
slow answer never lengthens authority, and the policy's clock tolerance is taken off (LEASE-09):
``deadline = sent_at + remaining - tolerance``. Past the deadline nothing new may begin, although
the authority itself holds the lease for the tolerance longer.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Authority:
    """Until when an attempt may act. ``ended`` says why it may no longer, whatever the time."""

    deadline: int
    ended: str | None = None


def granted(*, sent_at: int, remaining: int, tolerance: int) -> Authority:
    """The authority that an answer to a request sent at ``sent_at`` gives."""
    return Authority(deadline=sent_at + remaining - tolerance)


def renewed(authority: Authority, *, sent_at: int, remaining: int, tolerance: int) -> Authority:
    """The authority after a renewal.

    Every answer is true of its own time, and leases only grow, so an answer that was overtaken by a
    later one shortens nothing. What has ended stays ended.
    """
    return replace(authority, deadline=max(authority.deadline, sent_at + remaining - tolerance))


def ended(authority: Authority, why: str) -> Authority:
    """The authority after it was refused or given up. The first reason stays."""
    return authority if authority.ended is not None else replace(authority, ended=why)


def may_act(authority: Authority, now: int) -> bool:
    """Whether a new step, an external side effect above all, may begin at ``now``."""
    return authority.ended is None and now < authority.deadline


def remaining(authority: Authority, now: int) -> int:
    """Microseconds of authority left at ``now``; 0 when it is over."""
    return max(0, authority.deadline - now) if authority.ended is None else 0
