"""One incarnation of the node: from its registration to its end.

Makes the parts that belong to the incarnation and runs them together. Everything else (settings,
clients, inbox, metrics, the application's resources) outlives it and is passed in.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import structlog

from tenure.contract.codes import Code
from tenure.contract.faultpoints import FaultPoints
from tenure.contract.ids import AttemptId, IncarnationId, NodeId
from tenure.contract.reports import (
    PROTOCOL_VERSIONS,
    DrainRequest,
    Executable,
    Registration,
    RegistrationReply,
)
from tenure.executor.assignments import AssignmentConsumer
from tenure.executor.clock import Clock
from tenure.executor.config import ExecutorSettings
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.errors import (
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    InboxUnavailable,
    NodeGone,
)
from tenure.executor.execution import Stop
from tenure.executor.http import Coordinator, RenewingCoordinator
from tenure.executor.inbox import Inbox
from tenure.executor.isolation.sandbox import Sandbox
from tenure.executor.losses import PROCESS_ENDS
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition, jitter_seconds, retrying
from tenure.executor.pipeline import Pipeline
from tenure.executor.progress import ProgressStream
from tenure.executor.reception import Reception
from tenure.executor.renewals import Heard, Renewer
from tenure.executor.reports import ReportStream
from tenure.executor.stopping import Stopping
from tenure.executor.work import Stayed, Work

RENEWAL_SECONDS: Final = (0.5, 5.0)
"""Shortest and longest time that a renewal request may take."""
LAST_WORDS_SECONDS: Final = 5.0
"""For the reports of handlers that were ended by the drain limit, and for saying goodbye."""
ANNOUNCE_SECONDS: Final = 1.0
"""How long work that is ended by the drain limit waits for the coordinator to know of the drain:
told after what is handed back, the same work could be assigned to this node once more."""
NEWS_WAIT_SECONDS: Final = 10.0
"""How long the coordinator is asked to wait for something new: less than a request may take."""
NEWS_PAUSE_SECONDS: Final = 1.0

log = structlog.get_logger("tenure.executor")


class Ended(Enum):
    """Why a session ended."""

    DRAINED = auto()
    NODE_GONE = auto()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What outlives an incarnation."""

    settings: ExecutorSettings
    handlers: Mapping[str, HandlerDeclaration]
    concurrency: Mapping[str, int]
    software: str
    executable: Executable | None
    resources: object
    sandbox: Sandbox
    coordinator: Coordinator
    inbox: Inbox
    clock: Clock
    metrics: ExecutorMetrics
    coordinator_condition: Condition
    broker_condition: Condition
    faults: FaultPoints


class Session:
    """``run`` until drained or gone."""

    def __init__(
        self,
        around: Surroundings,
        *,
        node_id: NodeId,
        incarnation: IncarnationId,
        stayed: Sequence[Stayed] = (),
    ) -> None:
        """``stayed``: handlers that an earlier incarnation of this process could not end."""
        self.stayed = tuple(stayed)
        self._around = around
        self._node_id = node_id
        self._incarnation = incarnation
        settings = around.settings
        self._registration = Registration(
            node_id=node_id,
            incarnation=incarnation,
            protocol_version=PROTOCOL_VERSIONS[1],
            software=around.software,
            slots=settings.slots,
            resources=settings.resources,
            task_types=tuple(each.to_wire() for each in around.handlers.values()),
            executable=around.executable,
            queue=not settings.no_broker,
            facts=settings.facts,
            concurrency=around.concurrency,
        )
        self._register_again = asyncio.Event()
        self._compare_now = asyncio.Event()
        self._gone = asyncio.Event()
        self._drained_by_operator = False
        self._renewer: Renewer | None = None
        self._running: Work | None = None

    def silent_seconds(self) -> float:
        """Since the coordinator was last heard by a heartbeat; 0 before the first."""
        return 0.0 if self._renewer is None else self._renewer.silent_seconds()

    async def run(self, stopping: Stopping) -> Ended:
        """Register, work, drain. Raises what only a person can mend."""
        registering = asyncio.create_task(self._register())
        asked = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({registering, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not registering.done():
                await self._take_back(registering)
                return Ended.DRAINED  # nothing was begun
            reply = await registering
        except NodeGone:
            return Ended.NODE_GONE
        finally:
            registering.cancel()
            asked.cancel()
        log.info(
            "registered",
            node_id=self._node_id,
            incarnation=self._incarnation,
            slots=self._around.settings.slots,
            task_types=sorted(self._around.handlers),
            lease_seconds=reply.lease.duration_seconds,
        )
        return await self._work(reply, stopping)

    async def _take_back(self, registering: "asyncio.Task[RegistrationReply]") -> None:
        """A registration that is under way may arrive: work would be given to a node that is not
        there, and found out by its silence only."""
        away = self._around.coordinator_condition.in_trouble
        limit = ANNOUNCE_SECONDS if away else LAST_WORDS_SECONDS
        await asyncio.wait({registering}, timeout=limit)
        if registering.done() and registering.exception() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self._tell(gone=True)

    async def _register(self) -> RegistrationReply:
        condition = self._around.coordinator_condition

        async def register() -> RegistrationReply:
            try:
                return await self._around.coordinator.register(self._registration)
            except CoordinatorRefused as error:
                # A person may mend it at the other end: a token, an upgrade.
                raise CoordinatorUnavailable(
                    f"the coordinator refuses the registration: {error}", code=error.code
                ) from error

        reply: RegistrationReply = await retrying(condition, CoordinatorUnavailable)(register)
        condition.well()
        return reply

    async def _work(self, reply: RegistrationReply, stopping: Stopping) -> Ended:
        around, settings = self._around, self._around.settings
        around.inbox.begin(self._incarnation)
        reports = ReportStream(
            around.coordinator,
            node_id=self._node_id,
            incarnation=self._incarnation,
            clock=around.clock,
            condition=around.coordinator_condition,
            metrics=around.metrics,
            on_unknown_node=self._register_again.set,
        )
        progress = ProgressStream(
            around.coordinator,
            node_id=self._node_id,
            incarnation=self._incarnation,
            condition=around.coordinator_condition,
        )
        work = Work(
            around.handlers,
            slots=settings.slots,
            concurrency=around.concurrency,
            metrics=around.metrics,
            ended=self._attempt_ended,
            stayed=self.stayed,
        )
        self._running = work
        shortest, longest = RENEWAL_SECONDS
        interval = reply.lease.renewal_interval_seconds
        renewer = self._renewer = Renewer(
            RenewingCoordinator(
                settings.url,
                settings.token.current,
                timeout_seconds=max(shortest, min(longest, interval)),
            ),
            node_id=self._node_id,
            incarnation=self._incarnation,
            interval_seconds=interval,
            clock=around.clock,
            condition=around.coordinator_condition,
            metrics=around.metrics,
            heard=Heard(
                lease_refused=lambda _: work.look_again(),
                cancel_requested=work.cancel,
                unknown_node=self._register_again.set,
                node_gone=self._gone.set,
                draining=self._operator_drains,
            ),
            loop=asyncio.get_running_loop(),
        )
        work.use(
            Pipeline(
                reports=reports,
                renewals=renewer,
                resources=around.resources,
                clock=around.clock,
                terms=reply.lease,
                output_limit_bytes=settings.output_limit_bytes,
                metrics=around.metrics,
                authority_changed=work.look_again,
                sandbox=around.sandbox,
                recorder=progress,
                present_token=around.coordinator.present_token,
                faults=around.faults,
            )
        )
        reception = Reception(
            incarnation=self._incarnation,
            task_types=around.handlers.keys(),
            inbox=around.inbox,
            work=work,
            metrics=around.metrics,
            faults=around.faults,
        )
        consumer: AssignmentConsumer | None = None
        if not settings.no_broker:
            consumer = AssignmentConsumer(
                settings.broker_url_now,
                queue=reply.queue,
                prefetch=min(500, 2 * settings.slots + 16),
                receive=reception.messages,
                queue_missing=self._register_again.set,
                consuming=self._compare_now.set,
                condition=around.broker_condition,
                metrics=around.metrics,
                faults=around.faults,
            )
        renewer.start()
        loops = [
            asyncio.create_task(loop)
            for loop in (
                reports.run(),
                progress.run(),
                work.watch(),
                _forever() if consumer is None else consumer.run(),
                self._ask_for_news(reception, work),
                self._compare(reception),
                self._register_when_asked(),
            )
        ]
        try:
            await self._until_stopped(loops, stopping)
            if self._gone.is_set():
                return Ended.NODE_GONE
            await self._drain(work, consumer, reception, stopping)
            return Ended.DRAINED
        finally:
            await work.abandon(Code.NODE_GONE if self._gone.is_set() else PROCESS_ENDS)
            self.stayed = work.stayed
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await renewer.stop(LAST_WORDS_SECONDS)

    async def _until_stopped(self, loops: list[asyncio.Task[None]], stopping: Stopping) -> None:
        """Until asked to drain, or gone. A loop that ends by itself has a fault: it is raised."""
        signals = [
            asyncio.create_task(stopping.wait()),
            asyncio.create_task(self._gone.wait()),
        ]
        try:
            await asyncio.wait({*loops, *signals}, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done() and not self._gone.is_set():
                    loop.result()
                    self._gone.set()  # the reports were told so
        finally:
            for signal in signals:
                signal.cancel()

    async def _drain(
        self,
        work: Work,
        consumer: AssignmentConsumer | None,
        reception: Reception,
        stopping: Stopping,
    ) -> None:
        """Nothing new; hand back what has not started; let what runs go on under renewals until
        the limit; say goodbye (OPS-03). Servers that are away cost no more than the last words."""
        log.info("draining", drain_seconds=self._around.settings.drain_seconds)
        told = asyncio.Event()
        telling = asyncio.create_task(self._announce_drain(reception, told))
        limit = asyncio.create_task(stopping.limit())
        idle = asyncio.create_task(work.idle())
        said_goodbye = False
        try:
            work.drain()
            if consumer is not None:
                consumer.stop()
            await asyncio.wait({idle, limit}, return_when=asyncio.FIRST_COMPLETED)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    if not idle.done():
                        log.warning("drain limit reached, ending what still runs")
                        with suppress(TimeoutError):
                            await asyncio.wait_for(told.wait(), ANNOUNCE_SECONDS)
                        work.stop_all(Stop.DRAIN)
                    await asyncio.wait({telling})
                    await work.idle()
                    await self._tell(gone=True)
                    said_goodbye = True
        finally:
            for task in (telling, limit, idle):
                task.cancel()
        log.info("drained", everything_answered=said_goodbye)

    async def _announce_drain(self, reception: Reception, told: asyncio.Event) -> None:
        """From the answer on nothing new is assigned; what was assigned before and has not come by
        message is found by one more comparison, and handed back."""
        await self._tell(gone=False)
        told.set()
        await self._compare_once(reception)

    async def _tell(self, *, gone: bool) -> None:
        """Tell the coordinator that this incarnation drains, or ends; until it is answered."""
        request = DrainRequest(incarnation=self._incarnation, gone=gone)
        failures = 0
        while True:
            try:
                await self._around.coordinator.drain(self._node_id, request)
            except CoordinatorUnavailable as error:
                self._around.coordinator_condition.trouble(error)
                failures += 1
                await asyncio.sleep(jitter_seconds(failures, cap_seconds=1.0))
            except CoordinatorError as error:
                log.warning("the coordinator refused the drain", code=error.code, error=str(error))
                return
            else:
                return

    async def _compare(self, reception: Reception) -> None:
        """Compare after a reconnect, and again and again."""
        while True:
            await self._compare_once(reception)
            await _wait(self._compare_now, self._around.settings.comparison_seconds)

    async def _ask_for_news(self, reception: Reception, work: Work) -> None:
        """Without a broker, and while it is not usable, wait for assignments at the coordinator."""
        around, seen = self._around, ""
        while True:
            needed = around.settings.no_broker or around.broker_condition.in_trouble
            if not needed or work.draining:
                await asyncio.sleep(NEWS_PAUSE_SECONDS)
                continue
            try:
                listed = await around.coordinator.news(
                    self._node_id, self._incarnation, seen=seen, wait_seconds=NEWS_WAIT_SECONDS
                )
                around.metrics.messages.labels(source="poll", why="answered").inc()
                await reception.listed(listed.assignments)
                seen = listed.version
                continue
            except NodeGone:
                self._gone.set()
            except CoordinatorRefused as error:
                log.warning("waiting for assignments was refused", code=error.code)
                self._register_again.set()
            except CoordinatorError as error:
                around.coordinator_condition.trouble(error)
            except InboxUnavailable as error:
                log.error("assignments cannot be stored", error=str(error))
            await asyncio.sleep(NEWS_PAUSE_SECONDS)

    async def _compare_once(self, reception: Reception) -> None:
        """Ask what this incarnation should have, and take in what no message brought (OPS-01)."""
        try:
            listed = await self._around.coordinator.assignments(self._node_id, self._incarnation)
            await reception.listed(listed.assignments)
        except NodeGone:
            self._gone.set()
        except CoordinatorRefused as error:
            log.warning("the comparison was refused", code=error.code, error=str(error))
            self._register_again.set()
        except CoordinatorError as error:
            self._around.coordinator_condition.trouble(error)
        except InboxUnavailable as error:
            log.error("the comparison cannot be stored", error=str(error))

    async def _register_when_asked(self) -> None:
        """The queue is missing or the node is not known: register again, same incarnation."""
        failures = 0
        while True:
            await self._register_again.wait()
            await asyncio.sleep(jitter_seconds(failures, cap_seconds=5.0))
            self._register_again.clear()
            failures = failures + 1 if failures < 6 else 6
            try:
                await self._register()
            except NodeGone:
                self._gone.set()

    def _operator_drains(self) -> None:
        if not self._drained_by_operator:
            self._drained_by_operator = True
            log.info("drained by an operator: nothing new comes until the next start")
            if self._running is not None:
                self._running.drain()  # what runs goes on; what has not begun is handed back

    def _attempt_ended(self, attempt_id: AttemptId) -> None:
        if self._renewer is not None:
            self._renewer.let_go(attempt_id)
        self._around.inbox.close_attempt(attempt_id)


async def _forever() -> None:
    """In the place of a loop that is not needed; until cancelled."""
    await asyncio.Event().wait()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or about that time; the event is cleared."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds * random.uniform(0.8, 1.2)):
            await event.wait()
    event.clear()
