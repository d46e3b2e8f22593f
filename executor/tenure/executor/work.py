"""What runs on this node: the slots, the runs in them, and the watchdog over their authority."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog
from structlog.contextvars import bind_contextvars

from tenure.contract.codes import Code, Reason
from tenure.contract.ids import AttemptId
from tenure.executor.core.intake import Assignment
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.errors import NodeGone
from tenure.executor.execution import Execution, Stop
from tenure.executor.lease import Lease
from tenure.executor.losses import FAULT, PROCESS_ENDS, say_given_up, say_lost, why_over
from tenure.executor.metrics import ExecutorMetrics

WATCH_SECONDS: Final = 1.0
"""Longest sleep of the watchdog: its timer does not count suspended time, the deadlines do."""
NUDGE_SECONDS: Final = 5.0
"""How often a handler that goes on after it was asked to end is asked again; and how long one may
take to end after its time limit."""
LEAVING_SECONDS: Final = 2.0
REMEMBERED: Final = 10_000

log = structlog.get_logger("tenure.executor")


class Running(Protocol):
    """The pipeline, as this module uses it."""

    async def run(self, execution: Execution) -> None:
        """One attempt from its assignment to its answered last report. Raises NodeGone."""

    async def reject(self, assignment: Assignment, reason: Reason) -> None:
        """Hand an assignment back. Raises NodeGone."""

    async def acknowledge_cancel(self, assignment: Assignment) -> None:
        """Say that a cancellation has arrived. Raises NodeGone."""


class Stayed(NamedTuple):
    """A handler that has not ended although it was asked to, and its task type."""

    task_type: str
    handler: "asyncio.Task[object]"


class Work:
    """Starts, cancels and drains runs. At most ``slots`` run at once, and of a type at most as many
    as ``concurrency`` says; the coordinator counts too, so assignments wait here only while a
    handler stays beyond its authority."""

    def __init__(
        self,
        handlers: Mapping[str, HandlerDeclaration],
        *,
        slots: int,
        concurrency: Mapping[str, int] | None = None,
        metrics: ExecutorMetrics,
        ended: Callable[[AttemptId], None],
        settled: Callable[[], None] = lambda: None,
        stayed: Sequence[Stayed] = (),
    ) -> None:
        """``ended`` is told of each attempt that has ended here, ``settled`` of everything that was
        under way and is not any more. ``stayed``: handlers of an earlier incarnation of this
        process; each keeps its slot until it ends."""
        self._handlers = handlers
        self._free = slots
        self._at_once = concurrency or {}
        self._running: Counter[str] = Counter()
        self._metrics = metrics
        self._ended = ended
        self._settled = settled
        self._pipeline: Running | None = None
        self._waiting: deque[Assignment] = deque()
        self._executions: dict[AttemptId, Execution] = {}
        self._recent: OrderedDict[AttemptId, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self.stayed: tuple[Stayed, ...] = ()  # who has not ended, once the runs were abandoned
        metrics.slots.set(slots)
        for name in handlers:  # what has no limit of its own has the slots
            at_once = min(slots, self._at_once.get(name, slots))
            metrics.concurrency.labels(task_type=name).set(at_once)
            self._count_running(name, 0)
        self._stayed = {
            each: partial(self._left, each) for each in stayed if not each.handler.done()
        }
        for one, left in self._stayed.items():
            self._occupy(one.task_type)
            one.handler.add_done_callback(left)

    def use(self, pipeline: Running) -> None:
        """The pipeline needs this module's wake-up, so it is made second."""
        self._pipeline = pipeline

    @property
    def under_way(self) -> int:
        """Runs, rejections and acknowledgements that have not ended."""
        return len(self._tasks)

    def knows(self, attempt_id: AttemptId) -> bool:
        """Whether the attempt was started here, by this process."""
        return attempt_id in self._recent

    def runs(self, attempt_id: AttemptId) -> bool:
        """Whether the attempt is under way here."""
        return attempt_id in self._executions

    def start(self, assignment: Assignment) -> None:
        """Run an assignment that the inbox has stored, as soon as a slot is free."""
        self._recent[assignment.attempt_id] = None
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        self._waiting.append(assignment)
        self._fill_slots()

    def reject(self, assignment: Assignment, reason: Reason) -> None:
        """Hand an assignment back to the coordinator."""
        self._spawn(self._reject(assignment, reason))

    def hand_back(self, assignment: Assignment) -> None:
        """It was stored, and is not begun because the node drains: it has ended here."""
        self._ended(assignment.attempt_id)
        self.reject(assignment, Reason.NODE_DRAINING)

    def cancel(self, attempt_id: AttemptId) -> None:
        """The task is no longer wanted: end the handler; the pipeline confirms."""
        execution = self._executions.get(attempt_id)
        if execution is not None and execution.stop is None:
            log.info("cancellation asked for", attempt_id=attempt_id)
            execution.ask_to_stop(Stop.CANCELLED, self._now())
            if execution.lease is not None:
                self._spawn(self._acknowledge_cancel(execution.assignment))

    def look_again(self) -> None:
        """A lease was granted, refused or is over: the watchdog judges now."""
        self._changed.set()

    def drain(self) -> None:
        """Start nothing more; hand back what has not started. What runs goes on."""
        self.draining = True
        while self._waiting:
            self.hand_back(self._waiting.popleft())

    def stop_all(self, stop: Stop) -> None:
        """Ask every run to end."""
        for execution in self._executions.values():
            if execution.stop is None:
                execution.ask_to_stop(stop, self._now())

    async def idle(self) -> None:
        """Wait until nothing runs and nothing waits."""
        await self._idle.wait()

    async def abandon(self, why: str = PROCESS_ENDS) -> None:
        """End all runs without further reports; ``why`` their leases are given up. What handlers do
        on their way out is waited for a while, so that the resources they use are still open."""
        self._waiting.clear()
        for execution in self._executions.values():
            say_given_up(execution, self._metrics, why)
        self.stop_all(Stop.AUTHORITY)
        types = {
            each.handler: each.assignment.task_type
            for each in self._executions.values()
            if each.handler is not None
        }
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        stay = set[asyncio.Task[object]]()
        if types:
            _, stay = await asyncio.wait(types, timeout=LEAVING_SECONDS)
        for one, left in self._stayed.items():  # whoever comes after this counts them
            one.handler.remove_done_callback(left)
            self._metrics.slots_used.dec()
        self.stayed = (*self._stayed, *(Stayed(types[handler], handler) for handler in stay))

    async def watch(self) -> None:
        """The watchdog: ends handlers before their authority ends, with the network down too
        (LEASE-09). Until cancelled."""
        while True:
            self._changed.clear()
            pause = self.look()
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time to look

    def look(self) -> float:
        """End what may act no longer; seconds until the next deadline, WATCH_SECONDS at most."""
        pause = WATCH_SECONDS
        now = self._now()
        for execution in self._executions.values():
            lease = execution.lease
            if lease is None or not execution.handler_runs:
                continue
            if execution.stop is None and lease.may_act() and self._overran(execution, now):
                self._give_up(execution, lease, now)
            # What goes on without authority, of itself or by its declaration, makes evidence only.
            kept_aside = (
                execution.declaration.on_authority_loss == "isolate"
                and execution.handler_began_at is not None
            )
            if lease.may_act():
                pause = min(pause, lease.remaining_seconds())
            else:
                more = {"output": "kept aside"} if kept_aside else {}
                say_lost(execution, self._metrics, why_over(execution), **more)
                if execution.stop is None and not kept_aside:
                    execution.ask_to_stop(Stop.AUTHORITY, now)
            if execution.stop is not None and now - execution.stop_asked_at >= NUDGE_SECONDS:
                self._nudge(execution, now)
        return max(0.001, pause)

    def _overran(self, execution: Execution, now: float) -> bool:
        """Whether it goes on although it was cancelled at its time limit a while ago."""
        limit, began_at = execution.declaration.time_limit_seconds, execution.handler_began_at
        if limit is None or began_at is None:
            return False
        return now >= began_at + limit + NUDGE_SECONDS

    def _give_up(self, execution: Execution, lease: Lease, now: float) -> None:
        """A lease that is renewed for as long as a handler likes would keep its task from ever
        ending: it is left to run out, and another attempt may begin."""
        log.warning(
            "the handler goes on after its time limit: its lease is given up",
            attempt_id=execution.assignment.attempt_id,
            task_type=execution.assignment.task_type,
        )
        lease.end(Reason.TIME_LIMIT)
        execution.ask_to_stop(Stop.TIME_LIMIT, now)

    def _nudge(self, execution: Execution, now: float) -> None:
        log.warning(
            "the handler goes on although it was asked to end",
            attempt_id=execution.assignment.attempt_id,
            task_type=execution.assignment.task_type,
            asked_because=execution.stop,
        )
        execution.ask_to_stop(execution.stop or Stop.AUTHORITY, now)

    def _fill_slots(self) -> None:
        while self._free > 0 and (assignment := self._next()) is not None:
            execution = Execution(assignment, self._handlers[assignment.task_type])
            self._executions[assignment.attempt_id] = execution
            self._occupy(assignment.task_type)
            self._spawn(self._run(execution))

    def _next(self) -> Assignment | None:
        """The first that may begin: it does not wait for those before it of which too many run."""
        for number, assignment in enumerate(self._waiting):
            name = assignment.task_type
            if name not in self._at_once or self._running[name] < self._at_once[name]:
                del self._waiting[number]
                return assignment
        return None

    def _occupy(self, name: str) -> None:
        self._free -= 1
        self._metrics.slots_used.inc()
        self._count_running(name, 1)

    def _vacate(self, name: str) -> None:
        self._free += 1
        self._count_running(name, -1)
        self._metrics.slots_used.dec()
        self._fill_slots()

    def _left(self, one: Stayed, _: object) -> None:
        del self._stayed[one]
        self._vacate(one.task_type)

    def _count_running(self, name: str, more: int) -> None:
        self._running[name] += more
        self._metrics.running.labels(task_type=name).set(self._running[name])

    async def _run(self, execution: Execution) -> None:
        assignment = execution.assignment
        assert self._pipeline is not None
        # This task's own variables: they need not be taken back.
        bind_contextvars(
            task_id=assignment.task_id,
            attempt_id=assignment.attempt_id,
            task_type=assignment.task_type,
            fencing_token=assignment.fencing_token,
        )
        try:
            await self._pipeline.run(execution)
        except NodeGone:
            log.info("the attempt's outcome is nobody's any more: the node is gone")
            say_given_up(execution, self._metrics, Code.NODE_GONE)
        except Exception:
            log.exception("the run ended by a fault; its lease will run out")
            say_given_up(execution, self._metrics, FAULT)
        finally:
            if execution.handler is not None:
                execution.handler.cancel()
            del self._executions[assignment.attempt_id]
            self._ended(assignment.attempt_id)
            self._vacate(assignment.task_type)

    async def _reject(self, assignment: Assignment, reason: Reason) -> None:
        assert self._pipeline is not None
        try:
            await self._pipeline.reject(assignment, reason)
        except NodeGone:
            log.info("nothing to hand back: the node is gone", attempt_id=assignment.attempt_id)

    async def _acknowledge_cancel(self, assignment: Assignment) -> None:
        assert self._pipeline is not None
        with suppress(NodeGone):
            await self._pipeline.acknowledge_cancel(assignment)

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        self._idle.clear()
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.set()
        self._settled()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
