"""The relay's one loop: settle, keep claims, read, move cursors, publish, wait.

All decisions are the window's; all that can fail is the log's or the publisher's. The loop never
stops for either: without the database it goes on with what it holds until its claims run out, and
without the broker it holds what it has read and reads no more than fits.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from tenure.contract.errors import TenureError
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.relay.claims import Claims
from tenure.relay.core.outcome import Outcome, Verdict, may_arrive_twice
from tenure.relay.core.rows import Limits, Row
from tenure.relay.core.streams import Publish
from tenure.relay.core.window import Window
from tenure.relay.errors import LogUnavailable
from tenure.relay.log import RelayLog
from tenure.relay.metrics import RelayMetrics
from tenure.relay.notices import Notices
from tenure.relay.pace import Pace
from tenure.relay.publisher import Publisher, Settled

_BATCH_ROWS: Final = 256
_REPEAT_CAP_SECONDS: Final = 5.0
_FAILURES_LOGGED_EVERY_SECONDS: Final = 60.0
_UNCONFIRMED_SECONDS: Final = 3.0
"""For so long a broker that has publishes to confirm may confirm nothing and count as ready."""


class Relay:
    """Publishes the rows of the shards it holds; ``run`` until stopped."""

    def __init__(
        self,
        log: RelayLog,
        publisher: Publisher[Publish],
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
        self._claims = Claims(
            log,
            self._window,
            metrics,
            shards=limits.shards,
            pace=pace,
            usable=lambda: publisher.usable,
            clock=clock,
            chance=chance,
        )
        self._look_at = 0.0
        self._last_rows = 0.0
        self._due_at = 0.0
        self._advance_at = 0.0
        self._database_failures = 0
        self._database_at = 0.0
        self._database_well = False
        self._notices = Notices("database")
        self._logger = structlog.get_logger("tenure.relay")
        self._failure_logged: dict[str, float] = {}
        self._late_confirms = 0
        self._returned: list[Settled[Publish]] = []
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
        elif (silent := self._publisher.unconfirmed_seconds) >= _UNCONFIRMED_SECONDS:
            faults.append(
                f"the broker has confirmed nothing for {silent:.0f} s"
                f" while {self._window.in_flight} publishes wait"
            )
        return ", ".join(faults)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set, then settle what is in flight, up to the drain limit, move
        the cursors and give the claims back."""
        while not stop.is_set():
            self._wake.clear()
            await self._settle()
            self._claims.drop_untrusted()
            await self._ask(
                self._claims.keep,
                self._judge_returned,
                self._note_unparked,
                self._take_up,
                self._read,
            )
            await self._publish()
            await self._ask(self._advance, self._claims.hand_over)
            if not stop.is_set():
                await self._pause()
        await self._drain()

    # Settling and publishing

    async def _settle(self) -> None:
        self._publisher.expire()
        all_settled = self._publisher.collect()
        if all_settled:
            await self._faults.reach(FaultPoint.AFTER_CONFIRM)
        to_settle = []
        for settled in all_settled:
            row = settled.publish.row
            if settled.outcome is Outcome.RETURNED and row.required and row.is_void_once_ended:
                self._returned.append(settled)  # until the database says whether it still matters
            else:
                to_settle.append(settled)
        self._settle_these(to_settle)
        late = self._publisher.late_confirms
        self._metrics.late_confirms.inc(late - self._late_confirms)
        self._late_confirms = late

    def _settle_these(self, these: Iterable[Settled[Publish]]) -> None:
        now = self._microseconds()
        counts: Counter[Outcome] = Counter()
        published = doubles = 0
        for publish, outcome, detail in these:
            row = publish.row
            verdict = self._window.settle(publish, outcome, now, self._chance(), detail)
            counts[outcome] += 1
            if verdict is Verdict.PARKED:
                self._metrics.parked[outcome].inc()
                self._logger.warning(
                    "parked",
                    reason=outcome.value,
                    position=row.position,
                    event_id=row.event_id,
                    detail=detail,
                )
                continue
            if verdict is Verdict.DONE:
                published += outcome is not Outcome.WITHDRAWN
                continue
            doubles += may_arrive_twice(outcome)
            if verdict is Verdict.AGAIN_LATER:
                self._say(outcome, row.position, detail, row.required)
        if not counts:
            return
        for outcome, count in counts.items():
            self._metrics.outcomes[outcome].inc(count)
        self._metrics.published.inc(published)
        self._metrics.duplicates_possible.inc(doubles)

    async def _judge_returned(self) -> None:
        """A message to a node that is gone is void once its attempt has ended."""
        if not self._returned:
            return
        attempts = {settled.publish.row.attempt_id for settled in self._returned}
        ended = await self._log.withdrawn([one for one in attempts if one is not None])
        returned, self._returned = self._returned, []
        self._settle_these(
            settled._replace(outcome=Outcome.WITHDRAWN)
            if settled.publish.row.attempt_id in ended
            else settled
            for settled in returned
        )

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

    async def _ask(self, *questions: Callable[[], Awaitable[None]]) -> None:
        if self._clock() < self._database_at:
            return
        answers = self._log.answers
        try:
            for question in questions:
                await question()
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

    async def _read(self) -> None:
        """Whoever is behind reads at once; all others when it is time to look, and before their
        cursors move: what a cursor passes was read before what is read now."""
        if not self._window.claims:
            return
        found = 0
        if wanted := self._window.wanted():
            rows, end = await self._log.read(wanted)
            self._window.add(wanted, rows, end)
            found = len(rows)
        if self._log.grown or self._clock() >= self._look_at or self._cursors_are_due:
            found += await self._look()
        if found:
            self._last_rows = self._clock()
            self._metrics.read.inc(found)

    async def _look(self) -> int:
        """Read what was appended since; how many rows."""
        rows: list[Row] = []
        more = self._log.grown = False
        if asked := self._window.follow():
            rows, end = await self._log.follow(asked)
            more = self._window.followed(asked, rows, end)
        self._look_at = self._clock()
        if not more:
            busy = bool(rows) or self._look_at - self._last_rows <= self._pace.idle_after_seconds
            self._look_at += self._poll_seconds(busy=busy)
        return len(rows)

    def _poll_seconds(self, *, busy: bool = False) -> float:
        if self._log.listens:
            return self._pace.listening_poll_seconds
        return self._pace.poll_seconds if busy else self._pace.idle_poll_seconds

    @property
    def _cursors_are_due(self) -> bool:
        return self._window.movable and self._clock() >= self._advance_at

    async def _advance(self, *, at_once: bool = False) -> None:
        if not self._cursors_are_due and not at_once:
            return
        cursors = self._window.cursors()
        if not cursors:
            return
        self._advance_at = self._clock() + self._pace.advance_seconds
        await self._faults.reach(FaultPoint.BEFORE_CURSOR_MOVE)
        try:
            moved = await self._log.advance(cursors)
        except LogUnavailable:
            self._claims.forget(
                {
                    each.shard: each.claim_token
                    for each in cursors
                    if self._window.sets_aside(each.shard)
                }
            )
            raise
        await self._faults.reach(FaultPoint.AFTER_CURSOR_MOVE)
        unmoved = {
            cursor.shard: cursor.claim_token for cursor in cursors if cursor.shard not in moved
        }
        if unmoved:
            # Lost to another relay, which goes on from the stored cursor; or an earlier call moved
            # it and its answer was lost.
            await self._claims.ask_again(unmoved)
        for cursor in cursors:
            self._window.moved(cursor)  # without effect where the claim was dropped

    # Parked rows

    async def _take_up(self) -> None:
        """Read parked rows that are due, once those that were read before have an end."""
        now = self._clock()
        window = self._window
        if now < self._due_at or window.due or not window.parked or not self._publisher.usable:
            return
        due = await self._log.due(window.claims)
        window.take_up(due)
        self._due_at = now + (0 if due else self._pace.due_seconds)

    async def _note_unparked(self) -> None:
        unparked = self._window.unparked()
        if not unparked:
            return
        await self._faults.reach(FaultPoint.BEFORE_UNPARK)
        claims = {each.shard: each.claim_token for each in unparked}
        try:
            noted = await self._log.unpark(unparked)
        except LogUnavailable:
            self._claims.forget(claims)
            raise
        await self._faults.reach(FaultPoint.AFTER_UNPARK)
        released = [stream for stream, held in noted.items() if not held]
        self._window.noted([each for each in unparked if each.stream in noted], released)
        self._claims.lose({each.shard for each in unparked if each.stream not in noted})
        for each in unparked:
            self._metrics.unparked[each.what].inc()

    # Waiting and ending

    async def _pause(self) -> None:
        now = self._clock()
        if self._window.wanted() and now >= self._database_at:
            await asyncio.sleep(0)  # there is more to read: only let the connections work
            return
        ask_at = min(self._look_at, self._advance_at) if self._window.movable else self._look_at
        until = min(now + self._poll_seconds(), max(ask_at, self._database_at))
        retry = self._window.next_retry()
        if retry is not None and self._publisher.usable:
            until = min(until, retry / 1e6)
        await self._wait(until - now)

    def hurry(self) -> None:
        """Drain no longer: what is unconfirmed will be published again."""
        self._hurry = True
        self._wake.set()

    async def _drain(self) -> None:
        deadline = self._clock() + self._pace.drain_seconds
        by = int(deadline * 1_000_000)
        for shard in self._window.claims.keys() - self._window.leaving():
            self._window.leave(shard, by)
        try:
            await self._log.leave()
            while True:
                self._wake.clear()
                await self._settle()
                self._claims.drop_untrusted()
                await self._claims.renew()
                await self._judge_returned()
                await self._note_unparked()
                await self._publish()
                await self._advance(at_once=True)
                await self._claims.hand_over()
                over = self._hurry or self._clock() >= deadline or not self._publisher.connected
                if over or not (self._window.in_flight or self._window.claims):
                    break
                await self._wait(self._pace.poll_seconds)
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
