"""Whatever writers do, a reader at the tail of the log misses nothing, in order (RELAY-01).

Many of them at once, by insert and by COPY, across the edges of partitions, with pauses between
taking a position and committing, aborts, cancellations and lost sessions; while coordinators make
partitions and end the last one early.
"""

import asyncio
import random
from dataclasses import dataclass, field

import asyncpg
import pytest

from tests.support.isolation import FreshDatabase, make_patient
from tests.support.log_rows import LogRow, Stream, append
from tests.support.sessions import session

WRITERS = 8
TURNS = 25
EDGE = 10_000_000
COLUMNS = (
    "shard", "order_key", "tenant", "entity_type", "entity_id", "attempt_id", "epoch", "sequence",
    "event_id", "next_state", "copy", "exchange", "routing_key", "required", "recorded_at", "body",
)  # fmt: skip


LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    # Where BEGIN itself was cancelled, the driver goes on as if inside a transaction.
    asyncpg.QueryCanceledError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of the driver, where a COPY is cancelled
    OSError,
)


class Aborted(Exception):
    """A writer gives up after its rows are in."""


@dataclass
class Books:
    """What was certainly committed, and what may have been."""

    committed: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)
    done: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.mark.requirement("RELAY-01")
@pytest.mark.parametrize("seed", [20_261_129, 7, 11])
async def test_a_reader_at_the_tail_misses_nothing_whatever_writers_do(
    database: FreshDatabase, seed: int
) -> None:
    chance = random.Random(seed)
    books = Books()
    await make_patient(database)
    async with session(database.owner_url) as owner:
        await owner.execute("select setval('tenure.log_position', $1)", EDGE - 150)
        await owner.execute("select tenure.set_retention(1, '{\"log\": 3600}', 't', 't')")
    readers = [asyncio.create_task(tail(database, books)) for _ in range(2)]
    helpers = [asyncio.create_task(keep_house(database, chance, books))]
    helpers.append(asyncio.create_task(disturb(database, chance, books)))
    await asyncio.gather(*(write(database, chance, books) for _ in range(WRITERS)))
    books.done.set()
    await asyncio.gather(*helpers)
    async with session(database.owner_url) as owner:
        log = await owner.fetch("select position, event_id::text from tenure.log order by position")
        beyond = await owner.fetchval("select count(*) from tenure.log_default")
        parts = await owner.fetchval("select count(distinct tableoid) from tenure.log")
    written = [row["event_id"] for row in log]
    for seen in await asyncio.gather(*readers):
        assert seen == written  # all of it, each once, in the order of the log
    assert books.committed <= set(written) <= books.committed | books.unknown
    assert (beyond, parts >= 2) == (0, True)


async def write(database: FreshDatabase, chance: random.Random, books: Books) -> None:
    """Transactions of a few rows, each begun anew where the one before lost its session."""
    turns = TURNS
    while turns:
        connection = await asyncpg.connect(database.owner_url)
        pid = connection.get_server_pid()
        books.pids.add(pid)
        try:
            while turns:
                turns -= 1
                await one_transaction(connection, chance, books)
        except LOST:
            pass
        finally:
            books.pids.discard(pid)
            connection.terminate()


async def one_transaction(
    connection: asyncpg.Connection, chance: random.Random, books: Books
) -> None:
    rows = [Stream().next() for _ in range(chance.randint(1, 4))]
    ids = {str(row.event_id) for row in rows}
    books.unknown |= ids
    try:
        async with connection.transaction():
            if chance.random() < 0.3:
                await copy(connection, rows, chance.choice(["log", "log", "log_p000001"]))
            else:
                await append(connection, rows)
            await connection.execute("select pg_sleep($1)", chance.random() * 0.01)
            if chance.random() < 0.2:
                raise Aborted
    except (Aborted, asyncpg.CheckViolationError):
        return  # rolled back; or of a partition that the positions have left
    books.committed |= ids


async def copy(connection: asyncpg.Connection, rows: list[LogRow], table: str) -> None:
    """By COPY, as the owner may: the lock comes first all the same."""
    now = await connection.fetchval("select clock_timestamp()")
    await connection.copy_records_to_table(
        table,
        schema_name="tenure",
        columns=COLUMNS,
        records=[
            (
                row.stream.shard, row.stream.entity_id, "default", "task", row.stream.entity_id,
                None, 1, row.sequence, row.event_id, "open", False, "", "", False, now, row.body,
            )
            for row in rows
        ],
    )  # fmt: skip


async def tail(database: FreshDatabase, books: Books) -> list[str]:
    """What comes after the last position seen, again and again."""
    seen: list[str] = []
    position = 0
    async with session(database.relay_url) as connection:
        while True:
            last_turn = books.done.is_set()
            found = await connection.fetch(
                "select position, event_id::text from tenure.log where position > $1 order by 1",
                position,
            )
            seen += [row["event_id"] for row in found]
            position = found[-1]["position"] if found else position
            if last_turn:
                return seen


async def keep_house(database: FreshDatabase, chance: random.Random, books: Books) -> None:
    """What coordinators do to the partitions meanwhile; the last one is often ended early."""
    async with session(database.owner_url) as owner, session(database.coordinator_url) as one:
        while not books.done.is_set():
            for statement in ("select tenure.ensure_log_partitions()", "select tenure.cut_log()"):
                if "cut" in statement and chance.random() < 0.5:
                    await owner.execute(
                        "update tenure.log set recorded_at = now() - interval '1 h'"
                    )
                try:
                    await one.execute(statement)
                except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError):
                    pass
            await asyncio.sleep(chance.random() * 0.1)


async def disturb(database: FreshDatabase, chance: random.Random, books: Books) -> None:
    """Cancels statements and ends sessions of writers, at any point of theirs."""
    async with session(database.admin_url) as admin:
        while not books.done.is_set():
            pids = sorted(books.pids)
            if pids:
                how = "pg_terminate_backend" if chance.random() < 0.2 else "pg_cancel_backend"
                await admin.execute(f"select {how}($1)", chance.choice(pids))
            await asyncio.sleep(chance.random() * 0.02)
