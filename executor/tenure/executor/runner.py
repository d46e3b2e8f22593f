"""Runs an executor: puts the process together, keeps an incarnation alive, drains at a signal."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from uuid import uuid4

import structlog

from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.contract.ids import IncarnationId
from tenure.executor.app import Executor
from tenure.executor.blocking_calls import in_own_thread
from tenure.executor.clock import Clock, counts_suspend, system_clock
from tenure.executor.config import ExecutorSettings
from tenure.executor.errors import DeclarationError, NodeGone
from tenure.executor.executable import executable_of_app, place_of
from tenure.executor.http import Coordinator
from tenure.executor.inbox import Inbox, inbox_path
from tenure.executor.isolation.sandbox import Sandbox
from tenure.executor.lifespans import NotOpened, opened
from tenure.executor.logs import configure_logs
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition
from tenure.executor.session import Ended, Session, Surroundings
from tenure.executor.status import StatusPages, serve
from tenure.executor.stopping import Stopping
from tenure.executor.work import Stayed

REJOIN_AFTER_SECONDS: Final = 60.0
"""A node that was heard more lately than this and is gone was replaced by another process."""
_INBOX_STOP_SECONDS: Final = 5.0

log = structlog.get_logger("tenure.executor")


async def run(app: Executor, settings: ExecutorSettings, faults: FaultPoints = NO_FAULTS) -> None:
    """Run until SIGTERM or SIGINT, drain, and return; a second signal cuts the drain short.

    Servers that are away are waited for. Raises DeclarationError for an executor without handlers
    and for settings about a type that it does not run, ListenRefused, NodeGone when another process
    took this node's name, and LifespanFailed.
    """
    configure_logs(settings.log_format, settings.log_level)
    gc.freeze()  # modules and their like: never garbage. What handlers leave is the collector's
    stopping = Stopping(settings.drain_seconds)
    with _signals(stopping.ask):
        await run_until(app, settings, stopping, faults)


def check(app: Executor, settings: ExecutorSettings) -> None:
    """See that there is something to run, and that the settings are about that.

    Raises DeclarationError.
    """
    app.refuse_empty()
    _concurrency(app, settings)


async def run_until(
    app: Executor,
    settings: ExecutorSettings,
    stopping: Stopping,
    faults: FaultPoints = NO_FAULTS,
    *,
    clock: Clock | None = None,
    metrics: ExecutorMetrics | None = None,
    make_sandbox: Callable[..., Sandbox] = Sandbox,
) -> None:
    """As ``run``, without signals and logging of its own: until ``stopping`` is asked. ``clock``:
    None is the best of this platform; ``metrics``: None are new ones. ``make_sandbox``: what runs
    handlers in processes of their own, asked for with what ``Sandbox`` is."""
    check(app, settings)
    concurrency = _concurrency(app, settings)
    if not counts_suspend():
        log.warning("no clock here counts suspended time: the wall clock is watched beside it")
    counted = metrics or ExecutorMetrics()
    conditions = [Condition("the coordinator"), Condition("the broker")]
    used = conditions[:1] if settings.no_broker else conditions
    incarnation = IncarnationId(str(uuid4()))
    node_id = settings.node_id(app.name, incarnation)
    pages = StatusPages(
        not_ready=lambda: _not_ready(used, stopping),
        metrics=lambda: counted.render(
            [(name, each.usable) for name, each in zip(_SERVERS, used, strict=False)]
        ),
    )
    inbox = Inbox(
        inbox_path(settings.state_dir, node_id),
        retention_seconds=settings.inbox_retention_seconds,
        on_replaced=counted.inbox_replaced.inc,
        keep=settings.node is not None,
    )
    coordinator = Coordinator(settings.url, settings.token.current)
    sandbox = make_sandbox(
        settings.place, output_limit_bytes=settings.output_limit_bytes, application=place_of(app)
    )
    lifespan = opened(app.open_resources(), stopping, whose=f"executor {app.name!r}")
    try:
        async with _listening(settings.listen_address, pages), lifespan as resources:
            inbox.start()
            await in_own_thread(sandbox.clear)
            around = Surroundings(
                settings=settings,
                handlers=app.handlers,
                concurrency=concurrency,
                software=f"{app.name} {app.version}",
                executable=executable_of_app(app, build_digest=settings.build_digest),
                sandbox=sandbox,
                resources=resources,
                coordinator=coordinator,
                inbox=inbox,
                clock=clock or system_clock(),
                metrics=counted,
                coordinator_condition=conditions[0],
                broker_condition=conditions[1],
                faults=faults,
            )
            try:
                stayed: Sequence[Stayed] = ()
                while True:
                    session = Session(
                        around, node_id=node_id, incarnation=incarnation, stayed=stayed
                    )
                    ended = await session.run(stopping)
                    if ended is Ended.DRAINED or stopping.asked:
                        break
                    _check_rejoin(session, node_id)
                    stayed = session.stayed
                    incarnation = IncarnationId(str(uuid4()))
            finally:
                await inbox.stop(_INBOX_STOP_SECONDS)
                await coordinator.close()
    except NotOpened:
        log.info("asked to end before what handlers share was open")
        await coordinator.close()
    log.info("executor ended", node_id=node_id)


def _concurrency(app: Executor, settings: ExecutorSettings) -> dict[str, int]:
    """By task type, as handlers declare it and the settings say otherwise."""
    stated = settings.concurrency_by_type
    if strangers := stated.keys() - app.handlers.keys():
        raise DeclarationError(
            f"TENURE_CONCURRENCY names {min(strangers)!r}, which executor {app.name!r} does not"
            " run.",
            next_step=f"It runs {', '.join(sorted(app.handlers))}.",
        )
    declared = {
        name: each.concurrency
        for name, each in app.handlers.items()
        if each.concurrency is not None
    }
    return declared | stated


_SERVERS: Final = ("coordinator", "broker")


def _check_rejoin(session: Session, node_id: str) -> None:
    """After a long silence the coordinator has given the node up, and it may come back under a new
    incarnation. Otherwise somebody else has its name, and coming back would end *their* work."""
    silent_seconds = session.silent_seconds()
    if silent_seconds < REJOIN_AFTER_SECONDS:
        raise NodeGone(
            f"the coordinator has ended this start of node {node_id!r} while it was in touch.",
            next_step="Another process runs under the same name: give each its own TENURE_NODE.",
        )
    log.warning(
        "given up by the coordinator after a silence, joining again",
        silent_seconds=round(silent_seconds),
    )


def _not_ready(conditions: Sequence[Condition], stopping: Stopping) -> str:
    if stopping.asked:
        return "draining"
    return "; ".join(
        f"{each.name}: {each.error.code} {each.error}" for each in conditions if each.error
    )


@asynccontextmanager
async def _listening(address: tuple[str, int] | None, pages: StatusPages) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    server = await serve(address, pages)
    host, port = server.sockets[0].getsockname()[:2]
    log.info("health and metrics", listen=f"{host}:{port}")
    try:
        yield
    finally:
        server.close()


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
