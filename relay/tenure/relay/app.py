"""Puts the relay together and runs it. The only module that constructs things."""

import asyncio
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

import structlog

from tenure.contract import topology
from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.relay.config import RelaySettings
from tenure.relay.core.replay import Bounds, Repeat
from tenure.relay.core.streams import Publish
from tenure.relay.log import RelayLog
from tenure.relay.loop import Relay
from tenure.relay.metrics import RelayMetrics
from tenure.relay.pace import Pace
from tenure.relay.publisher import Publisher, PublishT
from tenure.relay.replay import ReplayPace, Replays
from tenure.relay.replay_log import ReplayLog
from tenure.relay.status import StatusPages, serve
from tenure.settings.given_up import expect_given_up
from tenure.settings.logs import configure

OBJECTS_A_COLLECTION: Final = 50_000
"""A window full of rows is no garbage, and would be looked through again and again."""
REPLAYS_AGAIN_SECONDS: Final = 5.0
"""After a fault of our own in replaying."""
_SILENCED: Final = ("aiormq",)
"""It reports each failed attempt as an error; the publisher says it once a minute."""


@dataclass(frozen=True, slots=True)
class Parts:
    """One relay, put together and not yet running."""

    relay_id: UUID
    wake: asyncio.Event
    log: RelayLog
    publisher: Publisher[Publish]
    metrics: RelayMetrics
    relay: Relay
    replay_wake: asyncio.Event
    replays: Replays

    async def work(self, stop: asyncio.Event) -> None:
        """Publish until ``stop`` is set; then drain."""
        try:
            async with asyncio.TaskGroup() as tasks:
                connection = tasks.create_task(self.publisher.run())
                replaying = tasks.create_task(self._replay(stop))
                await self.relay.run(stop)
                await replaying
                connection.cancel()
        finally:
            await self.log.close()

    async def _replay(self, stop: asyncio.Event) -> None:
        """Replay until ``stop`` is set. What goes wrong there is no reason to publish nothing."""

        async def pass_on() -> None:
            await stop.wait()
            self.replay_wake.set()

        passing_on = asyncio.create_task(pass_on())
        try:
            while not stop.is_set():
                try:
                    await self.replays.run(stop)
                except Exception:  # noqa: BLE001 - a fault of ours: live goes on
                    structlog.get_logger("tenure.relay").exception("replays_failed")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REPLAYS_AGAIN_SECONDS):
                            await stop.wait()
        finally:
            passing_on.cancel()

    async def metrics_page(self) -> bytes:
        """The text of ``/metrics``."""
        return await self.metrics.render(
            self.relay.window,
            self.log.lag,
            database_well=self.relay.database_well,
            broker_usable=self.publisher.usable,
            unconfirmed_seconds=self.publisher.unconfirmed_seconds,
        )


def build(settings: RelaySettings, faults: FaultPoints = NO_FAULTS) -> Parts:
    """Put a relay together as the settings say. ``faults``: for crash tests only."""
    relay_id = uuid4()
    wake = asyncio.Event()
    log = RelayLog(
        settings.database_url.current,
        relay_id,
        settings.relay_claim_seconds,
        pooled=settings.pooled,
        wake=wake,
    )
    replay_wake = asyncio.Event()
    publisher: Publisher[Publish] = _publisher(settings, wake)
    again: Publisher[Repeat] = _publisher(settings, replay_wake)
    metrics = RelayMetrics()
    pace = Pace(
        claim_seconds=settings.relay_claim_seconds, drain_seconds=settings.relay_drain_seconds
    )
    relay = Relay(
        log, publisher, metrics, wake=wake, limits=settings.limits(), pace=pace, faults=faults
    )
    replays = Replays(
        ReplayLog(log, relay_id, settings.relay_claim_seconds),
        again,
        metrics,
        wake=replay_wake,
        live_waits=lambda: relay.window.has_ready,
        bounds=Bounds(),
        pace=ReplayPace(
            claim_seconds=settings.relay_claim_seconds, drain_seconds=settings.relay_drain_seconds
        ),
        faults=faults,
    )
    return Parts(relay_id, wake, log, publisher, metrics, relay, replay_wake, replays)


def _publisher(settings: RelaySettings, wake: asyncio.Event) -> Publisher[PublishT]:
    return Publisher(
        settings.broker_url_now,
        wake=wake,
        events_exchange=topology.events_exchange(settings.name_prefix),
        confirm_timeout_seconds=settings.relay_confirm_timeout_seconds,
        max_body_bytes=settings.relay_max_body_bytes,
    )


async def run(settings: RelaySettings, faults: FaultPoints = NO_FAULTS) -> None:
    """Relay until SIGTERM or SIGINT, then drain and return; a second signal cuts draining short.

    Servers that are away are waited for. Raises ListenRefused.
    """
    configure_logging(settings)
    gc.freeze()  # modules and their like: never garbage
    gc.set_threshold(OBJECTS_A_COLLECTION, *gc.get_threshold()[1:])
    logger = structlog.get_logger("tenure.relay")
    parts = build(settings, faults)
    stop = asyncio.Event()
    pages = StatusPages(not_ready=lambda: parts.relay.not_ready, metrics=parts.metrics_page)
    server = await serve(settings.listen_address, pages)

    def asked_to_stop() -> None:
        if stop.is_set():
            parts.relay.hurry()
        stop.set()
        parts.wake.set()

    try:
        with _signals(asked_to_stop):
            host, port = server.sockets[0].getsockname()[:2]
            logger.info("relay_started", relay_id=str(parts.relay_id), listen=f"{host}:{port}")
            await parts.work(stop)
    finally:
        server.close()
    logger.info("relay_stopped")


def configure_logging(settings: RelaySettings) -> None:
    """The process's log. See ``configure`` of ``tenure.settings.logs``."""
    configure(settings.log_format, settings.log_level, silenced=_SILENCED)
    expect_given_up()


@contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
