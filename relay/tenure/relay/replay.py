"""Replays, beside the live loop (REPLAY-01): claim, read, publish, note how far they have come.

Live comes first. Replays have a connection to the broker of their own, which is there while there
is something to replay, and the second connection to the database; few publishes are in flight, and
while live rows wait for room in the window next to none.

A claim is trusted as a shard's is: from before the request that gave or prolonged it. What is
confirmed is noted twice a second; what was not noted when a relay dies is published again by the
next.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.contract.states import ReplayState
from tenure.relay.core.outcome import Verdict
from tenure.relay.core.replay import Bounds, Course, Repeat
from tenure.relay.errors import LogUnavailable
from tenure.relay.metrics import RelayMetrics
from tenure.relay.publisher import Publisher
from tenure.relay.replay_log import ReplayLog

SUBJECT: Final = "replay"
"""Of the fault points that replays reach."""
_REPEAT_CAP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReplayPace:
    """How often what is done, in seconds, and how much at once."""

    claim_seconds: float = 4.0
    look_seconds: float = 1.0  # for replays that nobody holds
    read_seconds: float = 0.2  # where the live cursors were reached
    publish_seconds: float = 0.01
    advance_seconds: float = 0.5
    linger_seconds: float = 10.0  # the connection stays after the last replay
    drain_seconds: float = 3.0
    at_once: int = 4  # replays
    in_flight: int = 200  # publishes of all replays
    in_flight_beside_live: int = 10  # while live rows wait for room
    batch: int = 64


class Replays:
    """Publishes the replays it holds; ``run`` until stopped.

    ``live_waits``: whether live rows wait for room in the window.
    """

    def __init__(
        self,
        log: ReplayLog,
        publisher: Publisher[Repeat],
        metrics: RelayMetrics,
        *,
        wake: asyncio.Event,
        live_waits: Callable[[], bool],
        pace: ReplayPace,
        bounds: Bounds,
        faults: FaultPoints = NO_FAULTS,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._metrics = metrics
        self._wake = wake
        self._live_waits = live_waits
        self._pace = pace
        self._bounds = bounds
        self._faults = faults
        self._clock = clock
        self._chance = chance
        self._courses: dict[str, Course] = {}
        self._trusted_until: dict[str, float] = {}
        self._read_at: dict[str, float] = {}
        self._in_flight = 0  # those of courses that were dropped included
        self._connection: asyncio.Task[None] | None = None
        self._needed_at = 0.0
        self._look_at = 0.0
        self._advance_at = 0.0
        self._unusable_since: float | None = None
        self._failures = 0
        self._database_at = 0.0
        self._logger = structlog.get_logger("tenure.relay")

    @property
    def courses(self) -> list[Course]:
        """For observers."""
        return list(self._courses.values())

    @property
    def in_flight(self) -> int:
        """Unconfirmed publishes."""
        return self._in_flight

    async def run(self, stop: asyncio.Event) -> None:
        """Replay until ``stop`` is set; then settle what is in flight, up to the drain limit, note
        it and give the claims back. Raises what the connection to the broker failed with."""
        for replay_id in list(self._courses):
            self._drop(replay_id)  # of a run that failed
        try:
            while not stop.is_set():
                self._wake.clear()
                await self._settle()
                self._drop_untrusted()
                await self._ask()
                await self._publish()
                await self._wait(stop)
            await self._drain()
        finally:
            await self._disconnect()

    # Settling and publishing

    async def _settle(self) -> None:
        self._publisher.expire()
        settled = self._publisher.collect()
        if settled:
            await self._faults.reach(FaultPoint.AFTER_CONFIRM, SUBJECT)
        now = self._microseconds()
        for repeat, outcome, detail in settled:
            self._in_flight -= 1
            self._metrics.replay_outcomes[outcome].inc()
            course = repeat.course
            if self._courses.get(course.replay_id) is not course:
                continue  # its claim was lost: the next relay publishes it again
            if course.settle(repeat, outcome, detail, now, self._chance()) is Verdict.DONE:
                self._metrics.replayed.inc()

    async def _publish(self) -> None:
        limit = self._pace.in_flight_beside_live if self._live_waits() else self._pace.in_flight
        suspicious = [course for course in self._courses.values() if course.suspects]
        if suspicious:
            if not self._in_flight and self._publisher.usable:
                self._in_flight = 1
                await self._publisher.publish([suspicious[0].take_suspect()])
            return
        # In turns, so that none of them takes all the room.
        for replay_id in list(self._courses):
            course = self._courses.pop(replay_id)
            self._courses[replay_id] = course
            room = min(self._pace.batch, limit - self._in_flight)
            if room <= 0 or not self._publisher.usable:
                return
            if batch := course.take(self._microseconds(), room):
                self._in_flight += len(batch)
                await self._faults.reach(FaultPoint.BEFORE_PUBLISH, SUBJECT)
                await self._publisher.publish(batch)
                await self._faults.reach(FaultPoint.AFTER_PUBLISH, SUBJECT)

    # The database

    async def _ask(self) -> None:
        if self._clock() < self._database_at:
            return
        try:
            await self._keep_connected()
            await self._look()
            await self._read()
            await self._advance()
        except LogUnavailable:  # the live loop says so
            self._failures += 1
            bound = min(_REPEAT_CAP_SECONDS, 0.05 * 2 ** min(self._failures, 10))
            self._database_at = self._clock() + bound * self._chance()
        else:
            self._failures = 0

    async def _keep_connected(self) -> None:
        """Give up the broker when there is nothing to replay, and replays when there is no
        broker: another relay may reach it."""
        now = self._clock()
        if self._courses:
            self._needed_at = now
        elif self._connection is not None and now - self._needed_at > self._pace.linger_seconds:
            await self._disconnect()
        if self._publisher.usable or not self._courses:
            self._unusable_since = None
        elif self._unusable_since is None:
            self._unusable_since = now
        elif now - self._unusable_since > 2 * self._pace.claim_seconds:
            await self._log.release(self.courses)
            for replay_id in list(self._courses):
                self._drop(replay_id)

    async def _look(self) -> None:
        """Take replays that nobody holds. The broker is asked for before the first is taken."""
        now = self._clock()
        if now < self._look_at or len(self._courses) >= self._pace.at_once:
            return
        self._look_at = now + self._pace.look_seconds * (0.5 + self._chance())
        if not self._publisher.usable:
            if await self._log.unclaimed():
                self._needed_at = now
                self._look_at = now + self._pace.read_seconds
                self._connect()
            return
        for claim in await self._log.claim(self._pace.at_once):
            self._courses[claim.replay_id] = Course(
                replay_id=claim.replay_id,
                claim_token=claim.claim_token,
                queue=claim.queue,
                rate=claim.rate,
                start=claim.progress,
                to_position=claim.to_position,
                now=self._microseconds(),
                bounds=self._bounds,
            )
            self._trusted_until[claim.replay_id] = now + self._pace.claim_seconds
            self._read_at[claim.replay_id] = now
            self._logger.info(
                "replay_taken", replay_id=claim.replay_id, position=claim.progress.position
            )
        self._metrics.replays.set(len(self._courses))

    async def _read(self) -> None:
        for replay_id, course in list(self._courses.items()):
            rows, body_bytes = course.wants
            if not rows or self._clock() < self._read_at[replay_id]:
                continue
            asked_at, before = self._clock(), course.read_to
            found = await self._log.read(course, rows, body_bytes)
            if found is None:
                self._drop(replay_id)
                continue
            course.add(found.rows, found.held, found.scanned_to)
            if found.stopped is not None:
                course.stop(found.stopped.code, found.stopped.detail)
            now = self._clock()
            # Looking through what does not match takes half of the time at most.
            breath = self._pace.read_seconds if course.read_to == before else now - asked_at
            self._read_at[replay_id] = now + breath

    async def _advance(self) -> None:
        """Note how far they have come; let go of what is done, or is to go on no more."""
        now = self._clock()
        over = [
            course
            for course in self._courses.values()
            if not course.in_flight and (course.done or course.stopped is not None)
        ]
        if not self._courses or (now < self._advance_at and not over):
            return
        self._advance_at = now + self._pace.advance_seconds
        courses = self.courses
        await self._faults.reach(FaultPoint.BEFORE_CURSOR_MOVE, SUBJECT)
        states = await self._log.advance(courses)
        await self._faults.reach(FaultPoint.AFTER_CURSOR_MOVE, SUBJECT)
        for course in courses:
            state = states.get(course.replay_id)
            if state is None:
                self._drop(course.replay_id)
                continue
            self._trusted_until[course.replay_id] = now + self._pace.claim_seconds
            if state is not ReplayState.RUNNING:
                course.stop(None)
            if course.stopped is not None and not course.in_flight:
                await self._let_go(course, state)

    async def _let_go(self, course: Course, state: ReplayState) -> None:
        why = course.stopped
        if why is not None and why.code is not None and state is ReplayState.RUNNING:
            await self._log.stop(course, why)
            self._logger.warning(
                "replay_paused", replay_id=course.replay_id, code=why.code, detail=why.detail
            )
        else:
            await self._log.release([course])
            self._logger.info("replay_left", replay_id=course.replay_id, state=state)
        self._drop(course.replay_id)
        self._look_at = 0.0  # another one may wait for its turn

    def _drop_untrusted(self) -> None:
        now = self._clock()
        for replay_id in [one for one, until in self._trusted_until.items() if until <= now]:
            self._drop(replay_id)

    def _drop(self, replay_id: str) -> None:
        del self._courses[replay_id], self._trusted_until[replay_id], self._read_at[replay_id]
        self._metrics.replays.set(len(self._courses))

    # The broker

    def _connect(self) -> None:
        if self._connection is None:
            self._connection = asyncio.create_task(self._publisher.run())
        elif self._connection.done():
            self._connection.result()  # it never ends by itself: raises

    async def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.cancel()
            with suppress(asyncio.CancelledError):
                await self._connection
            self._connection = None

    # Waiting and ending

    async def _wait(self, stop: asyncio.Event) -> None:
        now = self._clock()
        until = now + self._pace.look_seconds
        if len(self._courses) < self._pace.at_once:
            until = min(until, self._look_at)
        for replay_id, course in self._courses.items():
            until = min(until, self._advance_at)
            if course.wants[0]:
                until = min(until, self._read_at[replay_id])
            next_at = course.next_at()
            if next_at is not None and self._publisher.usable:
                # Tokens come in handfuls, and room comes with the confirms, which wake this up.
                until = min(until, max(next_at / 1e6, now + self._pace.publish_seconds))
        until = max(until, self._database_at)
        if until > now and not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(until - now):
                    await self._wake.wait()
        else:
            await asyncio.sleep(0)  # only let the connections work

    async def _drain(self) -> None:
        deadline = self._clock() + self._pace.drain_seconds
        for course in self._courses.values():
            course.stop(None)
        while self._in_flight and self._clock() < deadline and self._publisher.connected:
            self._wake.clear()
            await self._settle()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._wake.wait()
        await self._settle()
        if self._courses:
            with suppress(LogUnavailable):  # the claims run out by themselves
                await self._log.advance(self.courses)
                await self._log.release(self.courses)

    def _microseconds(self) -> int:
        return int(self._clock() * 1_000_000)
