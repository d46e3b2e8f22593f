"""Which shards read what next: one that is behind reads by itself, all others together."""

from collections.abc import Iterable

from tenure.relay.core.rows import Follow, Limits, Want
from tenure.relay.core.streams import Shard


def has_room(shard: Shard, limits: Limits) -> bool:
    """Whether it may hold one more row."""
    return (
        shard.row_count < limits.rows_per_shard and shard.body_bytes < limits.body_bytes_per_shard
    )


def wanted(shards: Iterable[Shard], limits: Limits) -> list[Want]:
    """What shards that are behind should read now. Empty when none is, or none has room."""
    hungry = [
        shard
        for shard in shards
        if shard.behind
        and shard.leave_by is None
        and shard.body_bytes < limits.body_bytes_per_shard
        # Not for a handful of rows: half empty at least.
        and shard.row_count * 2 <= limits.rows_per_shard
    ]
    if not hungry:
        return []
    each = max(1, limits.rows_per_read // len(hungry))
    return [
        Want(
            shard=shard.number,
            after=shard.read_to,
            rows=min(each, limits.rows_per_shard - shard.row_count),
            body_bytes=limits.body_bytes_per_shard - shard.body_bytes,
        )
        for shard in hungry
    ]


def follow(shards: Iterable[Shard], limits: Limits) -> Follow | None:
    """What all shards together should read that are not behind; None when there is none."""
    following = [shard for shard in shards if not shard.behind and shard.leave_by is None]
    if not following:
        return None
    return Follow(
        shards=[shard.number for shard in following],
        after=min(shard.read_to for shard in following),
        rows=limits.rows_per_read,
        body_bytes=limits.body_bytes_per_read,
    )
