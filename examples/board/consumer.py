"""A board of what every task is at, written from events.

Each event is a row; what a task is at is its row with the highest (epoch, sequence). The rows and
what the consumer remembers are written in one transaction, so that each event is there once.
"""

import os
from collections.abc import Sequence

from tenure.contract.events import Event
from tenure.executor.consumer import EventConsumer, EventContext, Stream
from tenure.executor.event_inbox_postgres import PostgresInbox

SCHEMA = "board"

consumer = EventConsumer(
    "board", inbox=PostgresInbox(lambda: os.environ["BOARD_DATABASE_URL"], schema=SCHEMA)
)


@consumer.on("task")
async def note(event: Event, context: EventContext) -> None:
    """A task has changed its state."""
    await context.connection.execute(
        f"insert into {SCHEMA}.states values ($1, $2, $3, $4, $5, $6)",
        event.event_id,
        event.entity_id,
        event.next_state,
        event.epoch,
        event.sequence,
        event.recorded_at,
    )


@consumer.on_discarded
async def forget(stream: Stream, event_ids: Sequence[str], context: EventContext) -> None:
    """After a restore: these changes never happened. What happened instead follows."""
    await context.connection.execute(
        f"delete from {SCHEMA}.states where event_id = any($1::text[])", list(event_ids)
    )
