"""Which times of keeping make sense together (OPS-08)."""

from collections.abc import Mapping

from tenure.contract.states import RetentionKind

SHORTEST_SECONDS = 3600

_NOT_LONGER = (
    (
        RetentionKind.COMMANDS,
        RetentionKind.INTAKE,
        "a repeated enqueue would be answered with a task that nobody enqueued",
    ),
    (
        RetentionKind.INTAKE,
        RetentionKind.TASKS,
        "what was enqueued would name a task that is gone",
    ),
    (
        RetentionKind.COMMANDS,
        RetentionKind.TASKS,
        "a repeated submission would be answered with a task that is gone",
    ),
)


def contradiction(keep: Mapping[RetentionKind, int | None]) -> str | None:
    """Why these seconds by kind (absent or None: for ever) contradict each other, or None."""
    for kind, seconds in keep.items():
        if seconds is not None and seconds < SHORTEST_SECONDS:
            return f"{kind} would be kept for {seconds} s, less than an hour"
    for shorter, longer, why in _NOT_LONGER:
        limit = keep.get(longer)
        kept = keep.get(shorter)
        if limit is not None and (kept is None or kept > limit):
            return f"{shorter} would be kept longer than {longer}: {why}"
    return None
