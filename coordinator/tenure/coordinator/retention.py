"""Removes what is older than the retention policy keeps it, in small batches (OPS-08).

Any number of replicas may run this: of each kind one removes at a time, and the others find nothing
to do. A batch is a transaction of its own that waits for no row; after each the loop rests for
several times as long as it took, so that removal takes a small part of the database's time however
much there is to remove.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from tenure.contract.states import RetentionKind
from tenure.coordinator.store import retention as store
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError, TryAgain

log = structlog.get_logger()

BATCH_ROWS: Final = 500
SMALLEST_BATCH_ROWS: Final = 20
BATCH_SECONDS: Final = 0.2
"""A batch that takes longer is halved the next time."""
REST: Final = 4
"""So many times as long as a batch took."""
TICK_SECONDS: Final = 30.0
RUN_SECONDS: Final = 1.0
"""How long a run that somebody asked for goes on."""

# What names something goes before what it names.
IN_ORDER: Final = (
    RetentionKind.LOG,
    RetentionKind.RENEWALS,
    RetentionKind.COMMANDS,
    RetentionKind.INTAKE,
    RetentionKind.TASKS,
    RetentionKind.REVIEWS,
    RetentionKind.NODES,
    RetentionKind.DEAD_LETTERS,
    RetentionKind.CHANGES,
    RetentionKind.PROFILES,
    RetentionKind.EXECUTABLES,
)


class Retention:
    """The loop, and a run on request. ``on_removed``: told of each batch, by kind and rows."""

    def __init__(self, pool: Pool, on_removed: Callable[[str, int], None]) -> None:
        self._pool = pool
        self._on_removed = on_removed
        self._batch_rows = dict.fromkeys(RetentionKind, BATCH_ROWS)
        self.last_run_at: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                for kind in IN_ORDER:
                    while True:
                        began = clock()
                        found = await self.step(kind)
                        self.last_run_at = clock()
                        if not found:
                            break
                        await asyncio.sleep((clock() - began) * REST)
            except (PostgresError, *ConnectionLost) as error:
                log.warning("retention stalled", error=str(error) or type(error).__name__)
            await asyncio.sleep(TICK_SECONDS * random.uniform(0.8, 1.2))

    async def run_now(
        self, kinds: Sequence[RetentionKind]
    ) -> tuple[dict[RetentionKind, int], bool]:
        """Remove for about a second: rows (of the log partitions) by kind, and whether there may be
        more. Raises what the driver raises."""
        clock = asyncio.get_running_loop().time
        end = clock() + RUN_SECONDS
        removed = {kind: 0 for kind in IN_ORDER if kind in kinds}
        more = False
        for kind in removed:
            while clock() < end:
                found = await self.step(kind)
                more = more or found is None
                if not found:
                    break
                removed[kind] += found
            else:
                return removed, True
        return removed, more

    async def step(self, kind: RetentionKind) -> int | None:
        """One batch of a kind; how many rows it removed, of the log how many partitions. None: what
        it needed is held by somebody, and is left for the next time. Raises what the driver
        raises."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            if kind is RetentionKind.LOG:
                removed = await self._step_log()
            else:
                removed = await store.remove_old(self._pool, kind, self._batch_rows[kind])
        except TryAgain as error:
            self._batch_rows[kind] = max(SMALLEST_BATCH_ROWS, self._batch_rows[kind] // 2)
            log.info("retention gives way", kind=kind.value, error=str(error))
            return None
        rows = self._batch_rows[kind]
        slow = clock() - began > BATCH_SECONDS
        self._batch_rows[kind] = max(SMALLEST_BATCH_ROWS, rows // 2) if slow else BATCH_ROWS
        if removed:
            self._on_removed(kind.value, removed)
        return removed

    async def _step_log(self) -> int:
        await store.cut_log(self._pool)
        found = await store.remove_old_log(self._pool)
        if found is not None and not found[1]:
            found = await store.remove_old_log(self._pool)
        if found is None:
            return 0
        log.info("log shrinks", partition=found[0])
        return int(found[1])
