"""Sends assignments again that nobody has accepted.

Messages are notifications and may be lost with their queue (OPS-01). The same event and bytes;
rate-limited, so that it never becomes a storm.
"""

import asyncio
import random
from datetime import timedelta
from typing import Final

import structlog

from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError

log = structlog.get_logger()

BATCH: Final = 200
"""At most so many assignments are sent again in a tick."""
TICK_SECONDS: Final = 2.0
NOT_WITHIN: Final = timedelta(seconds=5)

_QUERIES: Final = named_queries.load("loops.sql")


class Reconciler:
    """Runs on every replica; the database function sends each assignment once a period."""

    def __init__(self, pool: Pool, *, not_within: timedelta = NOT_WITHIN) -> None:
        self._pool = pool
        self._not_within = not_within
        self.last_run_at: float | None = None
        self.sent_again = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.step()
                self.last_run_at = asyncio.get_running_loop().time()
            except (PostgresError, *ConnectionLost) as error:
                log.warning("reconciler stalled", error=str(error) or type(error).__name__)
            await asyncio.sleep(TICK_SECONDS * random.uniform(0.8, 1.2))

    async def step(self) -> int:
        """One look; how many assignments were sent again."""
        records = await self._pool.fetch(_QUERIES["unanswered_attempts"], self._not_within, BATCH)
        if not records:
            return 0
        sent: int = await self._pool.fetchval(
            "select tenure.redispatch($1, $2)",
            [record["attempt_id"] for record in records],
            self._not_within,
        )
        self.sent_again += sent
        return sent
