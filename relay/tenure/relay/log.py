"""The log and the cursors in PostgreSQL, as the relay sees them.

Every statement commits by itself: no transaction is ever open while the relay does something else.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from typing import Any, Final
from uuid import UUID

import asyncpg

from tenure.contract.topology import LOG_CHANNEL
from tenure.relay.core.parking import Unparked
from tenure.relay.core.rows import Cursor, Due, Follow, Row, Want
from tenure.relay.errors import LogNotMigrated, LogRefused, LogUnavailable, LogUntrusted
from tenure.relay.routes import Routes
from tenure.settings.addresses import Address, asked
from tenure.settings.pooler import PoolerNotDeclared, is_pooled, share_a_server
from tenure.settings.tls import tls_fault

_COUNT_LIMIT: Final = 20_000
_DUE_STREAMS: Final = 200
_DUE_ROWS_OF_A_STREAM: Final = 20
_DUE_BODY_BYTES: Final = 4 * 2**20
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
    """A shard that this relay holds. Of when it was taken: ``position`` is its stored cursor,
    ``parked`` how many of its rows are parked."""

    shard: int
    claim_token: int
    position: int
    parked: int


@dataclass(frozen=True, slots=True)
class Lag:
    """What all relays together have yet to publish: rows (each shard counted up to 20,000), and the
    age of the oldest in seconds."""

    rows: int
    seconds: float


def load_queries(file_name: str = "log.sql") -> dict[str, str]:
    """The statements of a file in ``queries`` by name."""
    text = (resources.files("tenure.relay") / "queries" / file_name).read_text("utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class RelayLog:
    """Reads the log and holds claims as ``relay_id``. Every method raises LogUnavailable when the
    database does not answer; the caller repeats it later, which is safe for each of them.

    ``pooled``: the database is reached through a pooler in transaction mode; nobody can listen
    there. Else ``wake`` is set, and ``grown``, when somebody says that the log has grown.
    """

    def __init__(
        self,
        url: Address,
        relay_id: UUID,
        claim_seconds: float,
        command_timeout_seconds: float = 3.0,
        *,
        pooled: bool = False,
        wake: asyncio.Event | None = None,
    ) -> None:
        self._url = url
        self._pooled = pooled
        self._relay_id = relay_id
        self._lease = timedelta(seconds=claim_seconds)
        self._timeout_seconds = command_timeout_seconds
        # Two, so that neither a scrape nor a replay holds up the loop. No pool: between two
        # statements it would ask the server to reset a state that no statement here leaves behind.
        self._line = _Line(self._listening)
        self._side_line = _Line(self._connected)
        self._queries = load_queries()
        self._wake = wake
        self._routes = Routes()
        self._routes_version: str | None = None
        self.grown = False
        self.answers = 0  # how many questions the database has answered

    @property
    def listens(self) -> bool:
        """Whether hints can arrive. Each answered question shows that the connection lives."""
        return self._wake is not None and not self._pooled and self._line.connected

    async def _listening(self) -> asyncpg.Connection:
        connection = await self._connected()
        if self._wake is not None and not self._pooled:
            try:
                await connection.add_listener(LOG_CHANNEL, self._on_hint)
            except BaseException:
                connection.terminate()
                raise
            self.grown = True  # what was said before is not known
        return connection

    def _on_hint(self, *_: object) -> None:
        self.grown = True
        if self._wake is not None:
            self._wake.set()

    async def _connected(self) -> asyncpg.Connection:
        connection = await self._connect()
        if self._pooled:
            return connection
        try:
            # Raises LogRefused for a pooler that nobody told us of: it loses what is prepared.
            if await is_pooled(connection):
                other = await self._connect()
                try:
                    if await share_a_server(connection, other):
                        raise PoolerNotDeclared
                finally:
                    other.terminate()
        except PoolerNotDeclared as error:
            connection.terminate()
            raise LogRefused(error.message, next_step=error.next_step, code=error.code) from error
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _connect(self) -> asyncpg.Connection:
        # Asked now: the password may have been replaced since the last connection.
        return await asyncpg.connect(
            asked(self._url),
            timeout=self._timeout_seconds,
            command_timeout=self._timeout_seconds,
            statement_cache_size=0 if self._pooled else 100,
        )

    async def close(self) -> None:
        """Close the connections; does not wait for a server that is away."""
        await self._line.close(self._timeout_seconds)
        await self._side_line.close(self._timeout_seconds)

    async def check(self) -> None:
        """Ask whether the database is there and migrated. Raises LogNotMigrated too."""
        (row,) = await self._fetch("schema")
        if not row["migrated"]:
            raise LogNotMigrated(
                "The database lacks the relay's part of the schema.",
                next_step="Run `tenure migrate up`.",
            )

    async def attend(self) -> tuple[int, int]:
        """Take part for the length of a claim; how many relays do, and how many joined before."""
        (row,) = await self._fetch("attend", self._relay_id, self._lease)
        return row["relays"], row["earlier"]

    async def leave(self) -> None:
        """Take part no more."""
        await self._fetch("leave", self._relay_id)

    async def claim(self, want: int) -> list[Claim]:
        """Take free shards until this relay holds ``want``; the ones taken now."""
        rows = await self._fetch("claim", self._relay_id, want, self._lease)
        return [Claim(*row) for row in rows]

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
        """Move cursors, and park what that passes; the shards that were moved. A shard that is
        missing was lost, or stands further on already (RELAY-03, RELAY-04)."""
        parkings = [parking for cursor in cursors for parking in cursor.parkings]
        rows = await self._fetch(
            "advance",
            self._relay_id,
            [cursor.shard for cursor in cursors],
            [cursor.claim_token for cursor in cursors],
            [cursor.position for cursor in cursors],
            [parking.position for parking in parkings],
            [parking.reason for parking in parkings],
            [parking.detail for parking in parkings],
            [parking.holds for parking in parkings],
            [_interval(parking.retry_after) for parking in parkings],
        )
        return {row["shard"] for row in rows}

    async def held(self, shards: Collection[int]) -> dict[int, list[Hashable]]:
        """By shard, the streams that wait for a parked row."""
        found: dict[int, list[Hashable]] = {}
        for shard, stream_type, stream_id in await self._fetch("held", list(shards)):
            found.setdefault(shard, []).append((stream_type, stream_id))
        return found

    async def due(self, shards: Collection[int]) -> list[Due]:
        """Parked rows of these shards that may be published now, of each stream in order."""
        records = await self._fetch(
            "due", list(shards), _DUE_STREAMS, _DUE_ROWS_OF_A_STREAM, _DUE_BODY_BYTES
        )
        routes = await self._routes_of(records)
        return [
            Due(
                Row(
                    position, shard, (stream_type, stream_id), str(event_id), exchange,
                    routing_key, required or routes.required(exchange, routing_key), body,
                    None if attempt_id is None else str(attempt_id),
                ),
                tries,
                skip,
            )
            for (
                shard, position, stream_type, stream_id, event_id, exchange, routing_key,
                required, body, attempt_id, tries, skip, _,
            ) in records
        ]  # fmt: skip

    async def unpark(self, unparked: Sequence[Unparked]) -> dict[Hashable, bool]:
        """Note what became of parked rows; by stream, whether it is still held. A stream that is
        missing is of a claim that was lost."""
        records = await self._fetch(
            "unpark",
            self._relay_id,
            [each.shard for each in unparked],
            [each.claim_token for each in unparked],
            [each.position for each in unparked],
            [each.what.value for each in unparked],
            [each.reason for each in unparked],
            [each.detail for each in unparked],
            [_interval(each.retry_after) for each in unparked],
        )
        return {(stream_type, stream_id): held for stream_type, stream_id, held in records}

    async def withdrawn(self, attempt_ids: Collection[str]) -> set[str]:
        """Of these attempts the ones that have ended."""
        rows = await self._fetch("withdrawn", [UUID(one) for one in attempt_ids])
        return {str(row["attempt_id"]) for row in rows}

    async def follow(self, asked: Follow) -> tuple[list[Row], int]:
        """The rows asked for, by position, and the last position of the log."""
        records = await self._fetch(
            "follow", asked.after, asked.shards, asked.rows, asked.body_bytes
        )
        return await self._rows(records), records[0]["log_end"] if records else asked.after

    async def read(self, wanted: Sequence[Want]) -> tuple[list[Row], int]:
        """The rows asked for, of each shard by position, and the last position of the log."""
        records = await self._fetch(
            "read",
            [want.shard for want in wanted],
            [want.after for want in wanted],
            [want.rows for want in wanted],
            [want.body_bytes for want in wanted],
        )
        return await self._rows(records), records[0]["log_end"] or 0

    async def _rows(self, records: Sequence[asyncpg.Record]) -> list[Row]:
        routes = await self._routes_of(records)
        return [
            Row(
                position,
                shard,
                (entity_type, entity_id),
                str(event_id),
                exchange,
                routing_key,
                required or routes.required(exchange, routing_key),
                body,
                None if attempt_id is None else str(attempt_id),
            )
            for (
                position,
                shard,
                entity_type,
                entity_id,
                event_id,
                exchange,
                routing_key,
                required,
                body,
                attempt_id,
                _,
                _,
            ) in records
            if position is not None
        ]

    async def _routes_of(self, records: Sequence[asyncpg.Record]) -> Routes:
        """What subscriptions asked for when these were read, or later."""
        if records and records[0]["routes"] != self._routes_version:
            found = await self._fetch("routes")
            self._routes = Routes(pattern for row in found for pattern in row["patterns"])
            self._routes_version = records[0]["routes"]
        return self._routes

    async def lag(self) -> Lag:
        """What is not published yet, by any relay."""
        (row,) = await self.fetch_aside(self._queries["lag"], _COUNT_LIMIT)
        return Lag(rows=row["row_count"], seconds=max(0.0, row["seconds"]))

    async def fetch_aside(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Ask on the other connection, so that the loop does not wait for it."""
        with _translated():
            return await self._side_line.fetch(query, *arguments)

    async def _fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        with _translated():
            records = await self._line.fetch(self._queries[query], *arguments)
        self.answers += 1
        return records


class _Line:
    """One connection, opened at the first question, and again after any failure."""

    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]]) -> None:
        self._connect = connect
        self._connection: asyncpg.Connection | None = None
        self._turn = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether it is open, as far as is known."""
        return self._connection is not None and not self._connection.is_closed()

    async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
        """Ask; one question at a time."""
        async with self._turn:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = self._connection = await self._connect()
            try:
                return await connection.fetch(query, *arguments)
            except BaseException:
                # What state it is in is not worth finding out.
                self._connection = None
                connection.terminate()
                raise

    async def close(self, timeout_seconds: float) -> None:
        """Close it, within the time given."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=timeout_seconds)
            except _Lost:
                connection.terminate()


def _interval(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)


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
