"""The retention policy, what it would remove, and the calls that remove it.

Every call may be repeated: setting names the version that it follows, and what was removed is not
there to be removed again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter

from tenure.contract.retention import KindPlan, KindRetention, RetentionView
from tenure.contract.states import RetentionKind
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import Pool, json_text
from tenure.coordinator.store.reading import Reader

MAX_COUNTED_ROWS: Final = 1_000_000
_QUERIES: Final = named_queries.load("retention.sql")
_KEEP: Final = TypeAdapter(dict[RetentionKind, int | None])
_BY_ROWS: Final = tuple(kind for kind in RetentionKind if kind is not RetentionKind.LOG)


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of the log: positions from ``first_position`` up to, not including,
    ``end_position``. ``old``: the policy and the relays would let it go."""

    name: str
    first_position: int
    end_position: int
    oldest_at: datetime | None
    rows: int
    bytes: int
    old: bool
    before: datetime | None


class Retention:
    """Over one pool. Every method raises Unavailable when the database stays away."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def policy(self) -> RetentionView:
        """The policy in force, and how far removal has come."""
        (policy,) = await self._reader.fetch(_QUERIES["policy"])
        progress = {row["kind"]: row for row in await self._reader.fetch(_QUERIES["progress"])}
        overdue = await self.overdue()
        keep = _KEEP.validate_json(policy["keep"])
        return RetentionView(
            version=policy["version"],
            set_by=policy["set_by"],
            reason=policy["reason"],
            set_at=policy["set_at"],
            kinds=tuple(
                KindRetention(
                    kind=kind,
                    keep_seconds=keep.get(kind),
                    removed_to=progress[kind]["removed_to"],
                    removed_rows=progress[kind]["removed_rows"],
                    removed_at=progress[kind]["removed_at"],
                    overdue_seconds=overdue.get(kind),
                )
                for kind in RetentionKind
            ),
        )

    async def overdue(self) -> dict[RetentionKind, float]:
        """By kind of which something is due, for how many seconds its oldest row has been."""
        rows = await self._reader.fetch(_QUERIES["overdue"])
        return {RetentionKind(row["kind"]): row["seconds"] for row in rows}

    async def set(
        self, after: int, keep: Mapping[RetentionKind, int | None], *, set_by: str, reason: str
    ) -> bool:
        """The next version; False when ``after`` is not the one in force."""
        given = json_text({kind.value: seconds for kind, seconds in keep.items()})
        (row,) = await self._reader.fetch(_QUERIES["set_retention"], after, given, set_by, reason)
        return bool(row["done"])

    async def plan(self) -> tuple[KindPlan, ...]:
        """What would be removed of each kind now."""
        return (await self._plan_log(), *[await self._plan(kind) for kind in _BY_ROWS])

    async def partitions(self) -> tuple[Partition, ...]:
        """Those of the log, in order."""
        rows = await self._reader.fetch(_QUERIES["partitions"])
        return tuple(Partition(**dict(row)) for row in rows)

    async def _plan(self, kind: RetentionKind) -> KindPlan:
        (row,) = await self._reader.fetch(_QUERIES[f"plan_{kind}"], MAX_COUNTED_ROWS)
        return KindPlan(kind=kind, kept_back=None, **dict(row))

    async def _plan_log(self) -> KindPlan:
        partitions = await self.partitions()
        (needed,) = await self._reader.fetch(_QUERIES["needed_from"])
        going = []
        kept_back = None
        for one in partitions:
            if not one.old:
                aged = one.oldest_at and one.before and one.oldest_at < one.before
                if aged and one.end_position > needed["position"]:
                    kept_back = (
                        f"position {needed['position']} is needed: not published yet, or read by a"
                        " replay"
                    )
                break
            going.append(one)
        return KindPlan(
            kind=RetentionKind.LOG,
            before=partitions[0].before if partitions else None,
            rows=sum(one.rows for one in going),
            bytes=sum(one.bytes for one in going),
            kept_back=kept_back,
        )


async def remove_old(pool: Pool, kind: RetentionKind, limit: int) -> int:
    """Remove a batch; how many rows. Raises what the driver raises."""
    rows: int = await pool.fetchval(_QUERIES["remove_old"], kind.value, limit)
    return rows


async def remove_old_log(pool: Pool) -> tuple[str, bool] | None:
    """One step of shrinking the log: the partition that it was about, and whether it is dropped;
    None: nothing is to be done. Raises what the driver raises."""
    row = await pool.fetchrow(_QUERIES["remove_old_log"])
    return (row["name"], row["dropped"]) if row is not None and row["name"] is not None else None


async def cut_log(pool: Pool) -> bool:
    """End the last partition of the log if its first row is old. Raises what the driver raises."""
    done: bool = await pool.fetchval(_QUERIES["cut_log"])
    return done
