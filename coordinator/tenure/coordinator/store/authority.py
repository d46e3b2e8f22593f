"""The authority's own row: which epoch, on which server, and whether history was lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from asyncpg import Pool

from tenure.contract.ids import FencingToken, TaskId, TenantId
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.rows import to_microseconds

_QUERIES: Final = named_queries.load("authority.sql")


@dataclass(frozen=True, slots=True)
class Standing:
    """``epoch``: None while nothing is granted. ``lost_since``: since when history is proven to be
    lost; otherwise the running server is not the one that the authority was opened on."""

    epoch: int | None
    stored_epoch: int
    lost_since: datetime | None
    clock: int  # microseconds


@dataclass(frozen=True, slots=True)
class PresentedToken:
    """What somebody says that the authority granted."""

    tenant: TenantId
    task_id: TaskId
    fencing_token: FencingToken
    by: str


async def standing(pool: Pool) -> Standing:
    """How the authority stands. Raises what asyncpg raises."""
    row = await pool.fetchrow(_QUERIES["standing"])
    assert row is not None
    return Standing(
        row["epoch"], row["stored_epoch"], row["lost_at"], to_microseconds(row["clock"])
    )


async def open_epoch_after_promotion(pool: Pool, by: str) -> int | None:
    """The new epoch, when the server was promoted and the policy says to go on. Raises what asyncpg
    raises; a standby cannot say (it is read-only)."""
    epoch: int | None = await pool.fetchval(_QUERIES["open_epoch_after_promotion"], by)
    return epoch


async def present_tokens(pool: Pool, tokens: Sequence[PresentedToken]) -> list[bool]:
    """For each whether it proves that history was lost; that is recorded, and stops every grant.
    Raises what asyncpg raises."""
    rows = await pool.fetch(
        _QUERIES["present_tokens"],
        [token.tenant for token in tokens],
        [token.task_id for token in tokens],
        [token.fencing_token for token in tokens],
        [token.by for token in tokens],
    )
    return [row["proven"] for row in rows]
