"""The log and the cursors in PostgreSQL, as the relay sees them.

Every statement commits by itself: no transaction is ever open while the relay does something else.
"""

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from typing import Any, Final
from uuid import UUID

import asyncpg

from tenure.relay.core.window import Cursor, Row, Want
from tenure.relay.errors import LogNotMigrated, LogRefused, LogUnavailable, LogUntrusted
from tenure.settings.addresses import Address, asked
from tenure.settings.pooler import PoolerNotDeclared, is_pooled, share_a_server
from tenure.settings.tls import tls_fault

_COUNT_LIMIT: Final = 20_000
_Lost: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # The server's farewell to an idle session can arrive while the next statement is sent.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """A shard that this relay holds. ``position``: its stored cursor when it was taken."""

    shard: int
    claim_token: int
    position: int


@dataclass(frozen=True, slots=True)
class Lag:
    """What all relays together have yet to publish: rows (each shard counted up to 20,000), and the
    age of the oldest in seconds."""

    rows: int
    seconds: float


def load_queries() -> dict[str, str]:
    """The statements of ``queries/log.sql`` by name."""
    text = (resources.files("tenure.relay") / "queries" / "log.sql").read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class RelayLog:
    """Reads the log and holds claims as ``relay_id``. Every method raises LogUnavailable when the
    database does not answer; the caller repeats it later, which is safe for each of them.

    ``pooled``: the database is reached through a pooler in transaction mode."""

    def __init__(
        self,
        url: Address,
        relay_id: UUID,
        claim_seconds: float,
        command_timeout_seconds: float = 3.0,
        *,
        pooled: bool = False,
    ) -> None:
        self._url = url
        self._pooled = pooled
        self._relay_id = relay_id
        self._lease = timedelta(seconds=claim_seconds)
        self._timeout_seconds = command_timeout_seconds
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self._queries = load_queries()
        self.answers = 0  # how many questions the database has answered

    async def _connected(self) -> asyncpg.Pool:
        """The pool, opened at the first question and again after a failure to open it."""
        async with self._opening:  # the loop and a scrape may ask at once
            if self._pool is None:
                pool = await asyncpg.create_pool(
                    connect=self._connect,
                    min_size=1,
                    max_size=2,
                    timeout=self._timeout_seconds,
                    command_timeout=self._timeout_seconds,
                    statement_cache_size=0 if self._pooled else 100,
                    max_inactive_connection_lifetime=0,
                )
                if not self._pooled:
                    await self._check_pooler(pool)
                self._pool = pool
            return self._pool

    async def _check_pooler(self, pool: asyncpg.Pool) -> None:
        """Raises LogRefused for a pooler that nobody told us of: it loses what is prepared."""
        try:
            async with pool.acquire(timeout=self._timeout_seconds) as one:
                if await is_pooled(one):
                    async with pool.acquire(timeout=self._timeout_seconds) as other:
                        if await share_a_server(one, other):
                            raise PoolerNotDeclared
        except PoolerNotDeclared as error:
            pool.terminate()
            raise LogRefused(error.message, next_step=error.next_step, code=error.code) from error
        except BaseException:
            pool.terminate()
            raise

    async def _connect(self, dsn: str | None = None, **options: Any) -> asyncpg.Connection:
        # Asked now: the password may have been replaced since the last connection.
        return await asyncpg.connect(asked(self._url), **options)

    async def close(self) -> None:
        """Close the pool; does not wait for a server that is away."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await pool.close()
        except _Lost:
            pool.terminate()

    async def check(self) -> None:
        """Ask whether the database is there and migrated. Raises LogNotMigrated too."""
        (row,) = await self._fetch("schema")
        if not row["migrated"]:
            raise LogNotMigrated(
                "The database lacks the relay's part of the schema.",
                next_step="Run `tenure migrate up`.",
            )

    async def claim(self, want: int) -> list[Claim]:
        """Take free shards until this relay holds ``want``; the ones taken now."""
        rows = await self._fetch("claim", self._relay_id, want, self._lease)
        return [Claim(row["shard"], row["claim_token"], row["position"]) for row in rows]

    async def renew(self, claims: Mapping[int, int]) -> set[int]:
        """Prolong claims, given as token by shard; the shards that are still held."""
        rows = await self._fetch(
            "renew", self._relay_id, list(claims), list(claims.values()), self._lease
        )
        return {row["shard"] for row in rows}

    async def release(self, claims: Mapping[int, int]) -> None:
        """Give claims back."""
        await self._fetch("release", self._relay_id, list(claims), list(claims.values()))

    async def advance(self, cursors: Sequence[Cursor]) -> set[int]:
        """Move cursors; the shards that were moved. A shard that is missing was lost, or stands
        further on already (RELAY-03)."""
        rows = await self._fetch(
            "advance",
            self._relay_id,
            [cursor.shard for cursor in cursors],
            [cursor.claim_token for cursor in cursors],
            [cursor.position for cursor in cursors],
        )
        return {row["shard"] for row in rows}

    async def withdrawn(self, attempt_ids: Collection[str]) -> set[str]:
        """Of these attempts the ones that have ended."""
        rows = await self._fetch("withdrawn", [UUID(one) for one in attempt_ids])
        return {str(row["attempt_id"]) for row in rows}

    async def head(self, after: int) -> int | None:
        """The last position, where it is above ``after``."""
        rows = await self._fetch("head", after)
        return rows[0]["position"] if rows else None

    async def read(self, wanted: Sequence[Want]) -> list[Row]:
        """The rows asked for, of each shard by position."""
        rows = await self._fetch(
            "read",
            [want.shard for want in wanted],
            [want.after for want in wanted],
            [want.rows for want in wanted],
            [want.body_bytes for want in wanted],
        )
        return [
            Row(
                position=row["position"],
                shard=row["shard"],
                stream=(row["entity_type"], row["entity_id"]),
                event_id=str(row["event_id"]),
                exchange=row["exchange"],
                routing_key=row["routing_key"],
                required=row["required"],
                attempt_id=None if row["attempt_id"] is None else str(row["attempt_id"]),
                body=row["body"],
            )
            for row in rows
        ]

    async def lag(self) -> Lag:
        """What is not published yet, by any relay."""
        (row,) = await self._fetch("lag", _COUNT_LIMIT)
        return Lag(rows=row["row_count"], seconds=max(0.0, row["seconds"]))

    async def _fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        with _translated():
            pool = await self._connected()
            async with pool.acquire(timeout=self._timeout_seconds) as connection:
                try:
                    records = await connection.fetch(self._queries[query], *arguments)
                except asyncpg.InternalClientError:
                    connection.terminate()  # else the pool would keep it
                    raise
        self.answers += 1
        return records


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (asyncpg.UndefinedFunctionError, asyncpg.UndefinedTableError) as error:
        raise LogNotMigrated(
            f"The database lacks a part of the schema: {error}.",
            next_step="Run `tenure migrate up`.",
        ) from error
    except (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.ClientConfigurationError,
    ) as error:
        raise LogRefused(
            f"The database refuses the connection: {error}.",
            next_step="Check user, password and database name of TENURE_DATABASE_URL.",
        ) from error
    except _Lost as error:
        if fault := tls_fault(error, "database"):
            raise LogUntrusted(fault.message, next_step=fault.next_step) from error
        raise LogUnavailable(
            f"The database does not answer: {str(error) or type(error).__name__}."
        ) from error
