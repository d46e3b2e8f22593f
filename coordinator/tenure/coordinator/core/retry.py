"""When a failed task is tried again (STATE-05)."""

from tenure.coordinator.core.snapshot import LeasePolicy

_LARGEST_EXPONENT = 40


def retry_delay(policy: LeasePolicy, failures: int, jitter: float) -> int:
    """Microseconds until the attempt after the ``failures``-th failure may begin.

    Full jitter: ``jitter`` in [0, 1) of the exponential step, so that tasks which failed together
    do not come back together.
    """
    step = policy.retry_base_microseconds << min(max(failures - 1, 0), _LARGEST_EXPONENT)
    return int(min(step, policy.retry_cap_microseconds) * jitter)
