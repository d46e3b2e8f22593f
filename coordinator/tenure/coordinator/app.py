"""Constructs the coordinator and runs it. Nothing else constructs anything.

HTTP listens from the first moment: a process whose servers are away is alive and not ready, and
answers what it can. The loops begin once the database has the right schema.
"""

import asyncio
import gc
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.coordinator.api.applications import Applications
from tenure.coordinator.api.bulk import Bulk
from tenure.coordinator.api.dead_letters import DeadLetterControl
from tenure.coordinator.api.endpoint import Entrance, Limits
from tenure.coordinator.api.executors import Executors
from tenure.coordinator.api.flow import FlowControl
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.interventions import Interventions
from tenure.coordinator.api.leases import Leases
from tenure.coordinator.api.limits import LimitControl
from tenure.coordinator.api.operators import Operators
from tenure.coordinator.api.parking import ParkingControl
from tenure.coordinator.api.problems import NEXT_STEP
from tenure.coordinator.api.programs import Programs
from tenure.coordinator.api.progress import ProgressOfAttempts
from tenure.coordinator.api.replays import ReplayControl
from tenure.coordinator.api.retention import RetentionPolicy
from tenure.coordinator.api.routes import Handlers, application, endpoints
from tenure.coordinator.api.scheduling import Scheduling
from tenure.coordinator.api.subscriptions import SubscriptionControl
from tenure.coordinator.api.topology import TopologyControl
from tenure.coordinator.api.words import Words
from tenure.coordinator.authority import Authority
from tenure.coordinator.broker import Broker
from tenure.coordinator.config import CoordinatorSettings
from tenure.coordinator.dead_letters import DeadLetterBox
from tenure.coordinator.errors import BrokerUnreachable, Unavailable
from tenure.coordinator.health import Condition, Health
from tenure.coordinator.hints import hints_over
from tenure.coordinator.http_server import HttpServer, listen
from tenure.coordinator.intake import Intake
from tenure.coordinator.logs import SILENCED, log_ends
from tenure.coordinator.metrics import CONTENT_TYPE, Metrics, Scrape
from tenure.coordinator.news import News
from tenure.coordinator.reconciler import Reconciler
from tenure.coordinator.retention import Retention
from tenure.coordinator.scheduler import Scheduler
from tenure.coordinator.store import migrate
from tenure.coordinator.store.dead_letters import DeadLetters
from tenure.coordinator.store.errors import DatabaseUnreachable
from tenure.coordinator.store.figures import read_figures
from tenure.coordinator.store.flow import Flow
from tenure.coordinator.store.limits import StatedLimits
from tenure.coordinator.store.parking import ParkedRows
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError, open_pool
from tenure.coordinator.store.progress import ProgressStore
from tenure.coordinator.store.reading import PoolReader
from tenure.coordinator.store.reads import Reads
from tenure.coordinator.store.replay import Replays
from tenure.coordinator.store.retention import Retention as RetentionReads
from tenure.coordinator.store.scheduling import SchedulingReads
from tenure.coordinator.store.subscriptions import Subscriptions
from tenure.coordinator.sweeper import Sweeper
from tenure.coordinator.waiters import Waiters
from tenure.settings.given_up import expect_given_up
from tenure.settings.logs import configure

log = structlog.get_logger()

DATABASE_CHECK_SECONDS: Final = 3.0
DATABASE_ANSWER_SECONDS: Final = 10.0
"""For a whole check. A connection that has fallen silent would not end it otherwise."""
POOL_CLOSE_SECONDS: Final = 2.0
OBJECTS_A_COLLECTION: Final = 50_000
"""Before Python looks for cycles again. A batch of 256 commands makes some ten thousand objects,
none in a cycle and all gone with it: a look after every 700 takes a tenth of the whole time."""


class Loop(Protocol):
    """Something that runs until cancelled and says when it last came round."""

    last_run_at: float | None

    async def run(self) -> None:
        """Until cancelled."""


class Coordinator:
    """One replica. ``start``, then ``wait`` for something to fail, then ``stop``.

    ``faults``: for crash tests only.
    """

    def __init__(self, settings: CoordinatorSettings, faults: FaultPoints = NO_FAULTS) -> None:
        self._settings = settings
        self._faults = faults
        self.metrics = Metrics()
        self._database = Condition(
            "database", DatabaseUnreachable("The database has not answered yet.")
        )
        self._broker_condition = Condition(
            "broker", BrokerUnreachable("The broker has not answered yet.")
        )
        self.health = Health((self._database, self._broker_condition))
        self._schema_usable = asyncio.Event()
        self._pooler_known = settings.pooled
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._pools: list[Pool] = []
        self._gates = {
            name: Gate(
                max_requests=settings.max_waiting_requests, max_bytes=settings.max_waiting_bytes
            )
            for name in ("applications", "executors")
        }

    @property
    def url(self) -> str:
        """Where it listens, after ``start``."""
        return self._http.url

    async def start(self) -> None:
        """Listen, and begin to look for the servers. Raises ListenRefused."""
        settings = self._settings
        listener = listen(*settings.listen_address)
        commits = await self._pool("commits", settings.commit_connections, planned_once=True)
        nodes = await self._pool("nodes", settings.node_connections, planned_once=True)
        people = await self._pool("reads", settings.read_connections)
        self._authority = Authority(
            commits,
            nodes,
            self.metrics,
            policy=settings.policy(),
            prefix=settings.name_prefix,
            faults=self._faults,
        )
        reads, node_reads = Reads(self._reader(people)), Reads(self._reader(nodes))
        self._waiters = Waiters(
            node_reads.ended_since,
            interval_seconds=settings.tail_interval_seconds,
            max_waiters=settings.max_waiters,
            on_tick=self.metrics.tail_ticked,
        )
        box = DeadLetterBox(
            DeadLetters(self._reader(nodes)).record, on_recorded=self.metrics.dead_letter
        )
        self._broker = Broker(
            settings.broker_url_now,
            name_prefix=settings.name_prefix,
            queues=node_reads.queues,
            subscriptions=Subscriptions(self._reader(nodes)).queues,
            condition=self._broker_condition,
            dead_letters=box,
            heard=node_reads.heard_queues,
        )
        self._authority.on_commit(self.metrics.happened)
        self._authority.on_commit(log_ends)
        self._authority.on_commit(self._waiters.on_commit)
        self._news = News(max_waiting=settings.max_waiters)
        self._authority.on_commit(self._news.on_commit)
        self._authority.on_commit(self._broker.on_commit)
        hints = hints_over(commits)
        if not settings.pooled:  # nobody can listen through a pooler in transaction mode
            self._authority.on_commit(hints.on_commit)
        self._scrape = Scrape(self.metrics, partial(read_figures, self._reader(people)))
        self._reconciler = Reconciler(commits)
        self._retention = Retention(commits, self.metrics.removed)
        self._loops: dict[str, Loop] = {
            "intake": Intake(
                commits, self._authority, payload_limit_bytes=settings.payload_limit_bytes
            ),
            "scheduler": Scheduler(commits, self._authority),
            "sweeper": Sweeper(
                commits,
                self._authority,
                node_retired_seconds=settings.node_retired_seconds,
            ),
            "reconciler": self._reconciler,
            "retention": self._retention,
        }
        self._http = HttpServer(
            self._application(people, reads, self._reader(nodes), node_reads),
            listener,
            drain_seconds=settings.drain_seconds,
        )
        self._spawn("lanes", self._authority.run())
        self._spawn("database watch", self._watch_database())
        self._spawn("broker", self._broker.run())
        self._spawn("dead letters", box.run())
        self._spawn("tail", self._waiters.run())
        self._spawn("hints", hints.run())
        for name, loop in self._loops.items():
            self._spawn(name, self._once_usable(loop))
        self._spawn("http", self._http.run())
        log.info("listening", url=self.url)

    async def wait(self) -> None:
        """Return only when a part has failed, by raising what it failed with."""
        done, _ = await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            raise RuntimeError(f"{task.get_name()} ended by itself")

    async def stop(self) -> None:
        """Answer what is under way, take nothing new, and close everything. Bounded."""
        self.health.stopping = True
        self._waiters.close()
        self._news.close()
        self._http.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_seconds + 1):
                await self._ended("http")
        await self._cancel(*self._loops, "database watch", "tail")
        self._authority.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_seconds):
                await self._ended("lanes")
        await self._cancel(*self._tasks)
        for pool in self._pools:
            try:
                async with asyncio.timeout(POOL_CLOSE_SECONDS):
                    await pool.close()
            except TimeoutError:
                pool.terminate()
        log.info("stopped")

    async def _pool(self, purpose: str, size: int, *, planned_once: bool = False) -> Pool:
        pool = await open_pool(
            self._settings.database_url.current,
            size=size,
            application_name=f"tenure-coordinator {purpose}",
            pooled=self._settings.pooled,
            planned_once=planned_once,
        )
        self._pools.append(pool)
        return pool

    def _reader(self, pool: Pool) -> PoolReader:
        return PoolReader(pool, deadline_seconds=self._settings.request_deadline_seconds)

    def _application(
        self, people: Pool, reads: Reads, node_reader: PoolReader, node_reads: Reads
    ) -> Any:
        settings = self._settings
        scheduling = SchedulingReads(self._reader(people))
        words = Words(
            admission=self._authority,
            reads=reads,
            scheduling=scheduling,
            payload_limit_bytes=settings.payload_limit_bytes,
        )
        handlers = Handlers(
            applications=Applications(
                admission=self._authority,
                reads=reads,
                waiters=self._waiters,
                payload_limit_bytes=settings.payload_limit_bytes,
            ),
            executors=Executors(
                admission=self._authority,
                reads=node_reads,
                declare_queue=self._broker.declare_queue,
                policies=self._authority.policies,
                name_prefix=settings.name_prefix,
                payload_limit_bytes=settings.payload_limit_bytes,
                news=self._news,
            ),
            progress=ProgressOfAttempts(ProgressStore(node_reader)),
            operators=Operators(reads),
            leases=Leases(reads, self._authority),
            scheduling=Scheduling(
                scheduling,
                self._authority.policies,
                payload_limit_bytes=settings.payload_limit_bytes,
            ),
            interventions=Interventions(words, reads),
            bulk=Bulk(words, reads),
            programs=Programs(scheduling, schema_limit_bytes=settings.payload_limit_bytes),
            flow=FlowControl(Flow(self._reader(people))),
            subscriptions=SubscriptionControl(
                Subscriptions(self._reader(people)),
                declare=self._broker.keep_subscription,
                name_prefix=settings.name_prefix,
            ),
            dead_letters=DeadLetterControl(
                DeadLetters(self._reader(people)), publish=self._broker.publish_again
            ),
            parking=ParkingControl(ParkedRows(self._reader(people))),
            retention=RetentionPolicy(RetentionReads(self._reader(people)), self._retention),
            limits=LimitControl(StatedLimits(self._reader(people))),
            replays=ReplayControl(Replays(self._reader(people)), name_prefix=settings.name_prefix),
            topology=TopologyControl(self._broker),
            healthz=_alive,
            readyz=self._ready,
            metrics=self._metrics,
        )
        entrance = Entrance(
            identities=settings.identities(),
            limits=Limits(
                payload_bytes=settings.payload_limit_bytes,
                batch_bytes=settings.batch_limit_bytes,
                arrival_seconds=settings.request_deadline_seconds,
            ),
            check_usable=self._check_usable,
            check_writable=self._check_writable,
            observer=self.metrics,
        )
        table = endpoints(
            handlers,
            application_gate=self._gates["applications"],
            executor_gate=self._gates["executors"],
        )
        return application(handlers, entrance, table)

    def _spawn(self, name: str, work: Any) -> None:
        self._tasks[name] = asyncio.create_task(work, name=name)

    async def _ended(self, name: str) -> None:
        await asyncio.wait([self._tasks[name]])

    async def _cancel(self, *names: str) -> None:
        tasks = [self._tasks[name] for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _once_usable(self, loop: Loop) -> None:
        await self._schema_usable.wait()
        await loop.run()

    async def _watch_database(self) -> None:
        """Log in, compare the schema with this program's, again and again."""
        while True:
            try:
                async with asyncio.timeout(DATABASE_ANSWER_SECONDS):
                    await self._check_database()
            except TimeoutError:
                self._database.not_usable(
                    DatabaseUnreachable(
                        f"The database did not answer within {DATABASE_ANSWER_SECONDS:g} s."
                    )
                )
            except TenureError as error:
                self._database.not_usable(error)
            except (PostgresError, *ConnectionLost) as error:
                self._database.not_usable(DatabaseUnreachable(f"The database went away: {error}."))
            else:
                self._database.usable()
            await asyncio.sleep(DATABASE_CHECK_SECONDS * random.uniform(0.5, 1.0))

    async def _check_database(self) -> None:
        url = self._settings.database_url.current()
        if not self._pooler_known:
            await migrate.check_pooler(url)
            self._pooler_known = True
        (await migrate.status(url)).check()
        if self._schema_usable.is_set():
            await self._authority.policies.refresh()
        else:
            await self._authority.policies.establish()
        self._schema_usable.set()
        await self._check_authority()

    async def _check_authority(self) -> None:
        found = await self._authority.standing()
        clock = self._authority.clock
        self.metrics.set_clock_steps(backward=clock.backward_steps, forward=clock.forward_steps)
        self.metrics.set_standing(found.epoch, lost=found.lost_since is not None)
        if found.epoch is None:
            refused = await self._authority.why_unconfirmed()
            raise TenureError(
                f"{refused.message[0].upper()}{refused.message[1:]}.",
                next_step=NEXT_STEP[refused.code],
                code=refused.code,
            )
        await self._authority.standby.look()
        self.metrics.set_standby_silent(self._authority.standby.silent)
        self._check_writable()

    def _check_usable(self) -> None:
        """Raises what keeps every request from being served.

        A database that is away for a moment does not: requests wait for it until their deadline.
        Nor does an authority in doubt: reads are answered, and every commit is refused by itself.
        """
        error = self._database.error
        passing = isinstance(error, DatabaseUnreachable | Unavailable)
        if error is None or (passing and self._schema_usable.is_set()):
            return
        if error.code in (Code.AUTHORITY_UNCONFIRMED, Code.AUTHORITY_HISTORY_LOST):
            return
        if error.code in (Code.NOT_MIGRATED, Code.SCHEMA_TOO_NEW):
            raise TenureError(error.message, next_step=error.next_step, code=error.code)
        raise Unavailable(error.message)

    def _check_writable(self) -> None:
        """Raises StandbyNotAnswering: what would be committed now would wait without end."""
        refusal = self._authority.standby.refusal()
        if refusal is not None:
            raise refusal

    async def _ready(self, _: Request) -> Response:
        return PlainTextResponse(self.health.lines(), 200 if self.health.ready else 503)

    async def _metrics(self, _: Request) -> Response:
        await self._scrape.refresh()
        now = asyncio.get_running_loop().time()
        for lane in self._authority.lanes:
            self.metrics.set_queued(lane.name, lane.queued)
        for name, gate in self._gates.items():
            self.metrics.set_waiting_requests(name, gate.requests)
        for name, loop in self._loops.items():
            if loop.last_run_at is not None:
                self.metrics.set_last_run(name, now - loop.last_run_at)
        self.metrics.set_policy_version(self._authority.policy.version)
        self.metrics.set_sent_again(self._reconciler.sent_again)
        self.metrics.set_waiters(len(self._waiters))
        self.metrics.set_broker(
            connected=self._broker_condition.error is None, silent_queues=self._broker.silent_queues
        )
        return Response(self.metrics.text(), media_type=CONTENT_TYPE)


async def run(settings: CoordinatorSettings, faults: FaultPoints = NO_FAULTS) -> None:
    """Run one replica until SIGTERM or SIGINT; returns when it has drained.

    Raises ListenRefused, and whatever a part fails with that must not fail.
    """
    configure(settings.log_format, settings.log_level, silenced=SILENCED)
    expect_given_up(*ConnectionLost)
    gc.freeze()  # modules and their like: never garbage
    gc.set_threshold(OBJECTS_A_COLLECTION, *gc.get_threshold()[1:])
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    coordinator = Coordinator(settings, faults)
    await coordinator.start()
    try:
        await _first(coordinator.wait, stopping.wait)
    finally:
        await coordinator.stop()


async def _first(*waits: Callable[[], Awaitable[Any]]) -> None:
    """Return, or raise, as the first of ``waits`` does."""
    tasks: Sequence[asyncio.Future[Any]] = [asyncio.ensure_future(wait()) for wait in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in done:
        task.result()


async def _alive(_: Request) -> Response:
    return PlainTextResponse("ok\n")
