"""The relay's one loop: settle, keep claims, read, move cursors, publish, wait.

All decisions are the window's; all that can fail is the log's or the publisher's. The loop never
stops for either: without the database it goes on with what it holds until its claims run out, and
without the broker it holds what it has read and reads no more than fits.

A claim is trusted from before the request that gave it, for the time asked for: a relay that was
paused stops publishing a shard no later than another may take it.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from tenure.contract.errors import TenureError
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.relay.core.outcome import Outcome, Verdict, may_arrive_twice
from tenure.relay.core.window import Limits, Window
from tenure.relay.errors import LogUnavailable
from tenure.relay.log import RelayLog
from tenure.relay.metrics import RelayMetrics
from tenure.relay.notices import Notices
from tenure.relay.publisher import Publisher, Settled

_BATCH_ROWS: Final = 256
_REPEAT_CAP_SECONDS: Final = 5.0
_CLAIM_POLL_SECONDS: Final = 0.5
_FAILURES_LOGGED_EVERY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loop does what. Seconds."""

    claim_seconds: float = 4.0
    poll_seconds: float = 0.01  # while rows come
    idle_poll_seconds: float = 0.05
    idle_after_seconds: float = 5.0
    advance_seconds: float = 0.02
    drain_seconds: float = 5.0


class Relay:
    """Publishes the rows of the shards it holds; ``run`` until stopped."""

    def __init__(
        self,
        log: RelayLog,
        publisher: Publisher,
        metrics: RelayMetrics,
        *,
        wake: asyncio.Event,
        limits: Limits,
        pace: Pace,
        faults: FaultPoints = NO_FAULTS,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._metrics = metrics
        self._wake = wake
        self._limits = limits
        self._pace = pace
        self._faults = faults
        self._clock = clock
        self._chance = chance
        self._window = Window(limits)
        self._trusted_until: dict[int, float] = {}
        self._head = 0
        self._last_rows = 0.0
        self._renew_at = 0.0
        self._claim_at = 0.0
        self._advance_at = 0.0
        self._unusable_since: float | None = None
        self._database_failures = 0
        self._database_at = 0.0
        self._database_well = False
        self._notices = Notices("database")
        self._logger = structlog.get_logger("tenure.relay")
        self._failure_logged: dict[str, float] = {}
        self._late_confirms = 0
        self._returned: list[Settled] = []
        self._hurry = False

    @property
    def window(self) -> Window:
        """For observers."""
        return self._window

    @property
    def database_well(self) -> bool:
        """Whether the database answered last time."""
        return self._database_well

    @property
    def not_ready(self) -> str:
        """Why the relay publishes nothing; empty when it could. Holding no shard is no reason."""
        faults = []
        if not self._database_well:
            faults.append(_said("the database does not answer", self._notices.error))
        if not self._publisher.connected:
            faults.append(_said("there is no connection to the broker", self._publisher.error))
        elif not self._publisher.usable:
            faults.append("the broker blocks publishers")
        return ", ".join(faults)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set, then settle what is in flight, up to the drain limit, move
        the cursors and give the claims back."""
        while not stop.is_set():
            self._wake.clear()
            await self._settle()
            self._drop_untrusted()
            await self._database_turn()
            await self._publish()
            if not stop.is_set():
                await self._pause()
        await self._drain()

    # Settling and publishing

    async def _settle(self) -> None:
        self._publisher.expire()
        all_settled = self._publisher.collect()
        if all_settled:
            await self._faults.reach(FaultPoint.AFTER_CONFIRM)
        for settled in all_settled:
            row = settled.publish.row
            if settled.outcome is Outcome.RETURNED and row.required and row.attempt_id is not None:
                self._returned.append(settled)  # until the database says whether it still matters
            else:
                self._settle_one(settled)
        late = self._publisher.late_confirms
        self._metrics.late_confirms.inc(late - self._late_confirms)
        self._late_confirms = late

    def _settle_one(self, settled: Settled) -> None:
        row, outcome = settled.publish.row, settled.outcome
        now = self._microseconds()
        verdict = self._window.settle(settled.publish, outcome, now, self._chance())
        self._metrics.outcomes[outcome].inc()
        if verdict is Verdict.DONE and outcome is not Outcome.WITHDRAWN:
            self._metrics.published.inc()
        elif may_arrive_twice(outcome):
            self._metrics.duplicates_possible.inc()
        if verdict is Verdict.AGAIN_LATER:
            self._say(outcome, row.position, settled.detail, row.required)

    async def _judge_returned(self) -> None:
        """A message to a node that is gone is void once its attempt has ended."""
        if not self._returned:
            return
        attempts = {settled.publish.row.attempt_id for settled in self._returned}
        ended = await self._log.withdrawn([one for one in attempts if one is not None])
        returned, self._returned = self._returned, []
        for settled in returned:
            if settled.publish.row.attempt_id in ended:
                settled = replace(settled, outcome=Outcome.WITHDRAWN)
            self._settle_one(settled)

    def _say(self, outcome: Outcome, position: int, detail: str, required: bool) -> None:
        """One line a minute for each kind of failure; the counts are in the metrics."""
        now = self._clock()
        last = self._failure_logged.get(outcome)
        if last is not None and now - last < _FAILURES_LOGGED_EVERY_SECONDS:
            return
        self._failure_logged[outcome] = now
        self._logger.warning(
            "not_published",
            outcome=outcome.value,
            position=position,
            detail=detail,
            required=required,
        )

    async def _publish(self) -> None:
        while self._publisher.usable:
            batch = self._window.take(self._microseconds(), _BATCH_ROWS)
            if not batch:
                return
            await self._faults.reach(FaultPoint.BEFORE_PUBLISH)
            await self._publisher.publish(batch)
            await self._faults.reach(FaultPoint.AFTER_PUBLISH)

    # The database

    async def _database_turn(self) -> None:
        if self._clock() < self._database_at:
            return
        answers = self._log.answers
        try:
            await self._keep_claims()
            await self._judge_returned()
            await self._read()
            await self._advance()
        except LogUnavailable as error:
            self._database_failures += 1
            self._database_well = False
            self._notices.trouble(error)
            bound = min(_REPEAT_CAP_SECONDS, 0.05 * 2 ** min(self._database_failures, 10))
            self._database_at = self._clock() + bound * self._chance()
        else:
            if self._log.answers > answers:
                self._database_failures = 0
                self._database_well = True
                self._notices.well()

    async def _keep_claims(self) -> None:
        now = self._clock()
        if self._publisher.usable:
            self._unusable_since = None
        elif self._unusable_since is None:
            self._unusable_since = now
        elif now - self._unusable_since > 2 * self._pace.claim_seconds and self._trusted_until:
            # Another relay may reach a broker that this one does not.
            await self._log.release(self._window.claims)
            for shard in list(self._trusted_until):
                self._drop(shard)
        await self._renew()
        if len(self._trusted_until) < self._limits.shards and now >= self._claim_at:
            await self._claim()
        self._metrics.claims.set(len(self._trusted_until))

    async def _claim(self) -> None:
        now = self._clock()
        self._claim_at = now + _CLAIM_POLL_SECONDS * (0.5 + self._chance())
        if not self._publisher.usable:
            await self._log.check()
            return
        for claim in await self._log.claim(self._limits.shards):
            self._window.open(claim.shard, claim.claim_token, claim.position)
            self._trusted_until[claim.shard] = now + self._pace.claim_seconds
        self._renew_at = min(self._renew_at, now + self._pace.claim_seconds / 3)

    async def _renew(self) -> None:
        now = self._clock()
        claims = self._window.claims
        if not claims or now < self._renew_at:
            return
        self._keep(claims, await self._log.renew(claims), now)
        self._renew_at = now + self._pace.claim_seconds / 3

    def _keep(self, claims: Iterable[int], held: set[int], asked_at: float) -> None:
        """Of ``claims`` the ones in ``held`` were prolonged by a request sent at ``asked_at``."""
        for shard in claims:
            if shard in held:
                self._trusted_until[shard] = asked_at + self._pace.claim_seconds
            else:
                self._drop(shard)
                self._metrics.claims_lost.inc()

    def _drop_untrusted(self) -> None:
        now = self._clock()
        over = [shard for shard, until in self._trusted_until.items() if until <= now]
        for shard in over:
            self._drop(shard)
            self._metrics.claims_lost.inc()

    def _drop(self, shard: int) -> None:
        self._window.close(shard)
        self._trusted_until.pop(shard, None)

    async def _read(self) -> None:
        if not self._trusted_until:
            return
        wanted = self._window.wanted()
        if not wanted:
            # Everything known was read, or there is no room: the cheap question.
            head = await self._log.head(self._head)
            if head is None:
                return
            self._head = head
            self._window.grown()
            wanted = self._window.wanted()
            if not wanted:
                return
        rows = await self._log.read(wanted)
        self._window.add(wanted, rows)
        if rows:
            self._last_rows = self._clock()
            self._metrics.read.inc(len(rows))

    async def _advance(self, *, at_once: bool = False) -> None:
        now = self._clock()
        cursors = self._window.cursors()
        if not cursors or (now < self._advance_at and not at_once):
            return
        self._advance_at = now + self._pace.advance_seconds
        await self._faults.reach(FaultPoint.BEFORE_CURSOR_MOVE)
        moved = await self._log.advance(cursors)
        await self._faults.reach(FaultPoint.AFTER_CURSOR_MOVE)
        unmoved = {
            cursor.shard: cursor.claim_token for cursor in cursors if cursor.shard not in moved
        }
        if unmoved:
            # Lost to another relay, which goes on from the stored cursor; or an earlier call moved
            # it and its answer was lost.
            asked_at = self._clock()
            self._keep(unmoved, await self._log.renew(unmoved), asked_at)
        for cursor in cursors:
            self._window.moved(cursor)  # without effect where the claim was dropped

    # Waiting and ending

    async def _pause(self) -> None:
        if self._window.wanted() and self._clock() >= self._database_at:
            await asyncio.sleep(0)  # there is more to read: only let the connections work
            return
        now = self._clock()
        idle = now - self._last_rows > self._pace.idle_after_seconds
        seconds = self._pace.idle_poll_seconds if idle else self._pace.poll_seconds
        retry = self._window.next_retry()
        if retry is not None and self._publisher.usable:
            seconds = min(seconds, max(0.0, retry / 1e6 - now))
        await self._wait(seconds)

    def hurry(self) -> None:
        """Drain no longer: what is unconfirmed will be published again."""
        self._hurry = True
        self._wake.set()

    async def _drain(self) -> None:
        deadline = self._clock() + self._pace.drain_seconds
        try:
            while True:
                self._wake.clear()
                await self._settle()
                self._drop_untrusted()
                await self._renew()
                await self._judge_returned()
                over = self._hurry or self._clock() >= deadline or not self._publisher.connected
                if over or not self._window.in_flight:
                    break
                await self._wait(self._pace.poll_seconds)
            await self._advance(at_once=True)
            if claims := self._window.claims:
                await self._log.release(claims)
        except LogUnavailable as error:
            self._notices.trouble(error)  # the claims run out by themselves
        self._logger.info("drained", unconfirmed=self._window.in_flight)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass  # time for the next turn

    def _microseconds(self) -> int:
        return int(self._clock() * 1_000_000)


def _said(words: str, error: TenureError | None) -> str:
    return words if error is None else f"{words} ({error.code}: {error})"
