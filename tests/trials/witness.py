"""The ledger of arrivals, a process of its own: every message of one queue, in the order in which
it came, in a SQLite file; acknowledged once it is there.

``WITNESS_BROKER`` is the broker, ``WITNESS_EXCHANGE`` and ``WITNESS_QUEUE`` what it listens to,
``WITNESS_BOOK`` the file. It goes on whatever happens to the broker.
"""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aio_pika
import aiormq
from aio_pika.abc import AbstractIncomingMessage

from tenure.contract.events import EVENT_ID_HEADER
from tests.support.books import Arrival

BROKER: Final = "WITNESS_BROKER"
EXCHANGE: Final = "WITNESS_EXCHANGE"
QUEUE: Final = "WITNESS_QUEUE"
BOOK: Final = "WITNESS_BOOK"
PREFETCH: Final = 2_000
FLUSH_SECONDS: Final = 0.05
CONNECT_SECONDS: Final = 5.0
_BROKEN: Final = (OSError, aiormq.AMQPError, asyncio.TimeoutError, RuntimeError)
"""What a connection says that is no more. RuntimeError: a channel in no state to be used."""


@dataclass(frozen=True)
class Copies:
    """How often what the relays published has come. ``publishes`` counts each publish once, however
    often the broker handed it over."""

    events: int
    publishes: int

    @property
    def duplicates(self) -> int:
        """Publishes of an event that had been published before."""
        return self.publishes - self.events


class Book:
    """The file, as whoever judges reads it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """An empty one."""
        with self._open() as book:
            book.executescript(
                "pragma journal_mode = wal;"
                "create table arrivals (number integer primary key, event_id text not null,"
                " message_id text not null, at real not null, body blob not null);"
                "create index of_an_event on arrivals (event_id)"
            )

    def event_ids(self) -> set[str]:
        """Which events have come."""
        with self._open() as book:
            return {row[0] for row in book.execute("select distinct event_id from arrivals")}

    def count(self, *, before: float) -> int:
        """How many events had come at an instant, in seconds of ``time.time``."""
        with self._open() as book:
            (found,) = book.execute(
                "select count(distinct event_id) from arrivals where at < ?", (before,)
            ).fetchone()
            return int(found)

    def copies(self) -> Copies:
        """How often."""
        with self._open() as book:
            return Copies(
                *book.execute(
                    "select count(distinct event_id), count(distinct message_id) from arrivals"
                ).fetchone()
            )

    def arrivals(self) -> list[Arrival]:
        """All, in order."""
        with self._open() as book:
            rows = book.execute("select event_id, body from arrivals order by number")
            return [Arrival(event_id, body) for event_id, body in rows]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=30)) as book:
            yield book


class Witness:
    """Writes the book."""

    def __init__(self, book: sqlite3.Connection) -> None:
        self._book = book
        self._unwritten: list[AbstractIncomingMessage] = []

    async def listen(self) -> None:
        """For as long as one connection lasts. Raises what it ended with."""
        self._unwritten = []  # the broker hands them over again
        connection = await asyncio.wait_for(
            aio_pika.connect(os.environ[BROKER], timeout=CONNECT_SECONDS), CONNECT_SECONDS
        )
        try:
            channel = await connection.channel(publisher_confirms=False)
            await channel.set_qos(prefetch_count=PREFETCH)
            queue = await channel.declare_queue(
                os.environ[QUEUE], durable=True, arguments={"x-queue-type": "quorum"}
            )
            await queue.bind(os.environ[EXCHANGE], "#")
            await queue.consume(self._take)
            while not channel.is_closed:
                await asyncio.sleep(FLUSH_SECONDS)
                await self._write()
        finally:
            await asyncio.wait_for(connection.close(), CONNECT_SECONDS)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        self._unwritten.append(message)

    async def _write(self) -> None:
        messages, self._unwritten = self._unwritten, []
        if not messages:
            return
        now = time.time()
        with self._book:
            self._book.executemany(
                "insert into arrivals (event_id, message_id, at, body) values (?, ?, ?, ?)",
                [
                    (str(one.headers[EVENT_ID_HEADER]), one.message_id, now, one.body)
                    for one in messages
                ],
            )
        await messages[-1].ack(multiple=True)


async def run(stop: asyncio.Event) -> None:
    """Listen until told to stop."""
    with closing(sqlite3.connect(os.environ[BOOK], timeout=30)) as book:
        while not stop.is_set():
            listening = asyncio.create_task(Witness(book).listen())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            listening.cancel()
            try:
                await listening
            except asyncio.CancelledError:
                if stop.is_set():
                    return
            except _BROKEN:
                pass
            await asyncio.sleep(0.2)


async def main() -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await run(stop)


if __name__ == "__main__":
    asyncio.run(main())
