"""A consumer at the broker that knows nothing of the rest: it counts what arrives.

It has a queue of its own, bound to every event. What was committed to the log is read from the
database, by its owner; the comparison of both says whether an event was lost.
"""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import asyncpg
from aio_pika.abc import AbstractIncomingMessage

from tenure.contract.events import EVENT_ID_HEADER
from tenure.contract.topology import events_exchange


class Witness:
    """Counts arrivals by event id. Events that were committed before it listened are not asked
    for."""

    def __init__(self, database_url: str, start: int) -> None:
        self._database_url = database_url
        self._start = start
        self._arrived: Counter[str] = Counter()

    async def take(self, message: AbstractIncomingMessage) -> None:
        """Count one message; the broker counts it as taken by itself."""
        self._arrived[str(message.headers[EVENT_ID_HEADER])] += 1

    @property
    def duplicates(self) -> int:
        """Arrivals beyond the first of each event."""
        return self._arrived.total() - len(self._arrived)

    async def missing(self) -> int:
        """Committed events that have not arrived, or not yet."""
        connection = await asyncpg.connect(self._database_url, ssl=False)
        try:
            rows = await connection.fetch(
                'select event_id from tenure.log where exchange = $1 and "position" > $2',
                events_exchange(),
                self._start,
            )
        finally:
            await connection.close()
        return sum(1 for row in rows if str(row["event_id"]) not in self._arrived)


@asynccontextmanager
async def witness(broker_url: str, database_url: str) -> AsyncIterator[Witness]:
    """A witness that listens for the length of a block."""
    connection = await aio_pika.connect(broker_url)
    try:
        channel = await connection.channel()
        queue = await channel.declare_queue("demo-witness", exclusive=True)
        await queue.bind(events_exchange(), "#")
        database = await asyncpg.connect(database_url, ssl=False)
        try:
            # Read once the queue is bound: whatever is committed later is published later.
            start = await database.fetchval('select coalesce(max("position"), 0) from tenure.log')
        finally:
            await database.close()
        listening = Witness(database_url, start)
        await queue.consume(listening.take, no_ack=True)
        yield listening
    finally:
        await connection.close()
