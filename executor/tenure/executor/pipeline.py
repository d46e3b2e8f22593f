"""What happens to one attempt: small named steps over one record, in this order.

    take → check the input → raise the fences → handler → check the output → deliver

Before every step it is asked whether the attempt may still act (LEASE-09). A step that ends the run
gives an ``Ending``: what is reported, and a word for log and metrics. An output is reported even
when the authority is over by then: the coordinator judges, and keeps a late one as evidence.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import structlog
from pydantic import ValidationError
from pydantic_core import to_json
from structlog.contextvars import bind_contextvars

from tenure.contract.codec import encode_json, json_value
from tenure.contract.codes import Code, Reason
from tenure.contract.errors import InvalidPayload
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.contract.ids import TaskId
from tenure.contract.reports import (
    MAX_REASON_CHARACTERS,
    Cancelled,
    CancelReceived,
    Deliver,
    LeaseTerms,
    Reject,
    Report,
    Take,
)
from tenure.contract.reports import Fail as Failed
from tenure.contract.scope import UNLIMITED
from tenure.executor.clock import Clock
from tenure.executor.context import Context, Recorder
from tenure.executor.core.intake import Assignment
from tenure.executor.errors import (
    AuthorityError,
    ExecutorError,
    Fail,
    GuardUnavailable,
    OutOfScope,
    Retry,
    RunEnded,
    StaleToken,
)
from tenure.executor.execution import Execution, Stop
from tenure.executor.guards import Guard
from tenure.executor.handlers import call, within_handler
from tenure.executor.isolation.sandbox import Sandbox
from tenure.executor.lease import Lease
from tenure.executor.losses import REFUSALS, say_ended, say_lost, why_over
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import jitter_seconds
from tenure.executor.reports import Answer
from tenure.executor.user_text import faults_of, storable, text_of

log = structlog.get_logger("tenure.executor")

GUARD_CAP_SECONDS = 2.0


class Sending(Protocol):
    """The stream of reports, as the pipeline uses it."""

    async def send(self, report: Report) -> Answer:
        """Report and wait for the answer. Raises NodeGone."""


class Holding(Protocol):
    """The renewals, as the pipeline uses them."""

    def hold(self, lease: Lease) -> None:
        """Renew this lease from now on."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended; ``report`` is None where the coordinator has nothing to learn."""

    outcome: str
    report: Report | None = None


async def _to_nobody(task_id: TaskId, seen_token: int) -> None:
    """Nobody wants to know."""


class Pipeline:
    """The steps; one for the node, shared by all runs."""

    def __init__(
        self,
        *,
        reports: Sending,
        renewals: Holding,
        resources: object,
        clock: Clock,
        terms: LeaseTerms,
        output_limit_bytes: int,
        metrics: ExecutorMetrics,
        authority_changed: Callable[[], None],
        sandbox: Sandbox | None = None,
        recorder: Recorder | None = None,
        present_token: Callable[[TaskId, int], Awaitable[None]] = _to_nobody,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        """``sandbox``: for what runs in processes of its own, where something does. ``recorder``:
        who is told of progress. ``present_token``: tell what a receiver has seen for a task. Never
        raises."""
        self._present_token = present_token
        self._sandbox = sandbox
        self._recorder = recorder
        self._reports = reports
        self._renewals = renewals
        self._resources = resources
        self._clock = clock
        self._terms = terms
        self._output_limit_bytes = output_limit_bytes
        self._metrics = metrics
        self._authority_changed = authority_changed
        self._faults = faults

    async def run(self, execution: Execution) -> None:
        """From the assignment to the answered last report. Raises NodeGone."""
        ending = await self._work(execution)
        if execution.seen_token is not None:
            # Where the coordinator has granted no such token, its database has lost history.
            await self._present_token(execution.assignment.task_id, execution.seen_token)
        if ending.report is not None:
            await self._faults.reach(FaultPoint.BEFORE_REPORT, execution.assignment.attempt_id)
            answer = await self._reports.send(ending.report)
            reply = answer.reply
            if reply.outcome != "applied":
                if reply.code in REFUSALS and execution.lease is not None:
                    say_lost(execution, self._metrics, str(reply.code))
                log.warning(
                    f"{ending.report.kind} was not applied",
                    outcome=reply.outcome,
                    code=reply.code,
                    message=reply.message,
                )
                ending = Ending(f"{ending.outcome}_{reply.outcome}")
        if execution.lost is not None:
            say_ended(execution)
        self._count(execution, ending)

    async def reject(self, assignment: Assignment, reason: Reason) -> None:
        """Tell the coordinator that another node may have it. Raises NodeGone."""
        answer = await self._reports.send(_reject(assignment, reason))
        log.info(
            "attempt rejected",
            task_id=assignment.task_id,
            attempt_id=assignment.attempt_id,
            task_type=assignment.task_type,
            reason=reason,
            outcome=answer.reply.outcome,
        )

    async def acknowledge_cancel(self, assignment: Assignment) -> None:
        """Tell the coordinator that the cancellation has arrived here, however long the handler may
        take to end. Raises NodeGone."""
        await self._reports.send(CancelReceived(**_about(assignment)))

    async def _work(self, execution: Execution) -> Ending:
        for step in (self._take, self._check_input, self._raise_fences, self._handle):
            ending = self._interrupted(execution) or await step(execution)
            if ending is not None:
                return ending
        return self._delivery(execution)

    def _interrupted(self, execution: Execution) -> Ending | None:
        """Why the next step may not begin."""
        if execution.lease is None:  # nothing has begun; a cancellation comes with the answer
            if execution.stop is Stop.DRAIN:
                return Ending("rejected", _reject(execution.assignment, Reason.NODE_DRAINING))
            return None
        if execution.stop is not None:
            return self._stopped(execution)
        if not execution.lease.may_act():
            return self._lost(execution)
        return None

    # The steps, in order --------------------------------------------------------------------------

    async def _take(self, execution: Execution) -> Ending | None:
        """Accept and start in one commit; nothing begins before the answer."""
        assignment = execution.assignment
        answer = await self._reports.send(Take(**_about(assignment)))
        reply = answer.reply
        if reply.code == Code.CANCEL_REQUESTED:
            return Ending("cancelled", Cancelled(**_about(assignment)))
        if reply.outcome != "applied" or reply.remaining_seconds is None or not reply.expires_at:
            log.info("take was not applied", outcome=reply.outcome, code=reply.code)
            return Ending("not_taken")
        terms = reply.lease or self._terms
        execution.lease = Lease(
            task_id=assignment.task_id,
            attempt_id=assignment.attempt_id,
            fencing_token=assignment.fencing_token,
            clock=self._clock,
            tolerance_seconds=terms.clock_tolerance_seconds,
            renewal_interval_seconds=terms.renewal_interval_seconds,
            sent_at=answer.sent_at,
            remaining_seconds=reply.remaining_seconds,
            expires_at=reply.expires_at,
        )
        execution.context = Context(
            lease=execution.lease,
            task_type=assignment.task_type,
            resources=self._resources,
            ordinal=assignment.ordinal,
            scope=reply.scope or UNLIMITED,
            narrowed=reply.narrowed,
            traceparent=reply.traceparent,
            input=reply.input if isinstance(reply.input, dict) else None,
            last_checkpoint=reply.checkpoint,
            recorder=self._recorder,
            faults=self._faults,
        )
        execution.raw_input = reply.input
        execution.suspect = reply.suspect
        self._renewals.hold(execution.lease)
        self._authority_changed()
        if reply.traceparent is not None:
            bind_contextvars(trace_id=reply.traceparent.split("-")[1])
        if reply.cancel_requested and execution.stop is None:
            execution.ask_to_stop(Stop.CANCELLED, asyncio.get_running_loop().time())
        return None

    async def _check_input(self, execution: Execution) -> Ending | None:
        try:
            # As JSON: a strict model takes a date from JSON text, and not from a Python string.
            execution.input = execution.declaration.task_type.input.model_validate_json(
                to_json(execution.raw_input)
            )
        except ValidationError as error:
            message = f"the input does not fit: {faults_of(error)}"
            return self._failed(execution, Reason.INPUT_INVALID, message, retryable=False)
        except Exception as error:  # noqa: BLE001 - a validator of the user's raised what it likes
            return self._handler_failed(execution, error)
        return None

    async def _raise_fences(self, execution: Execution) -> Ending | None:
        """Shut older attempts out of every receiver before the handler has control (LEASE-10)."""
        if execution.declaration.guards is None:
            return None
        # A receiver that does not answer at all is ended as a handler is: by the watchdog, by a
        # cancellation, by the limit of a drain.
        raising = execution.handler = asyncio.create_task(self._raise_each(execution))
        await _ended(raising)
        if raising.cancelled():
            if execution.stop is not None:
                return self._stopped(execution)
            return self._failed(execution, Reason.HANDLER_FAILED, "a guard cancelled itself")
        error = raising.exception()
        if isinstance(error, AuthorityError):
            return self._authority_lost(execution, error)
        return None if error is None else self._handler_failed(execution, error)

    async def _raise_each(self, execution: Execution) -> None:
        context = _present(execution.context)
        for guard in _present(execution.declaration.guards)(context.resources):
            await self._raise_fence(guard, execution, context)

    async def _raise_fence(self, guard: Guard, execution: Execution, context: Context[Any]) -> None:
        failures = 0
        while True:
            context.check_authority()
            if execution.stop is not None:
                return  # the next step does not begin
            try:
                await guard.raise_fence(context)
            except GuardUnavailable as error:
                failures += 1
                log.warning("fence not raised, trying again", error=str(error))
                await asyncio.sleep(jitter_seconds(failures, cap_seconds=GUARD_CAP_SECONDS))
            else:
                return

    async def _handle(self, execution: Execution) -> Ending | None:
        """Give the handler control, until it ends or was asked to and ended."""
        context = _present(execution.context)
        execution.handler_began_at = asyncio.get_running_loop().time()
        execution.handler = asyncio.create_task(self._called(execution, context))
        with self._metrics.handler_seconds.labels(task_type=execution.assignment.task_type).time():
            await _ended(execution.handler)
        if execution.handler.cancelled():
            if execution.stop is not None:
                return self._stopped(execution)
            return self._failed(execution, Reason.HANDLER_FAILED, "the handler cancelled itself")
        error = execution.handler.exception()
        if error is not None:
            return self._raised(execution, error)
        execution.output = execution.handler.result()
        if execution.output is None and execution.stop is not None:
            return self._stopped(execution)  # a thread that looked, and went home
        return None

    async def _called(self, execution: Execution, context: Context[Any]) -> object:
        declaration, input = execution.declaration, _present(execution.input)
        await self._faults.reach(FaultPoint.BEFORE_HANDLER, execution.assignment.attempt_id)
        sandbox = self._sandbox
        if declaration.runs_in == "executor" and not (
            execution.suspect and sandbox is not None and sandbox.can_run_alone
        ):
            return await call(declaration, input, context)
        if declaration.runs_in == "executor":
            log.warning("attempts of this task were lost: it runs alone, in a process of its own")
            self._metrics.suspects.labels(task_type=execution.assignment.task_type).inc()
        return await _present(sandbox).run(
            declaration, input, context, _present(execution.lease), execution.note_enforced
        )

    def _delivery(self, execution: Execution) -> Ending:
        """The output as a report, when it is what was declared."""
        declared = execution.declaration.task_type.output
        try:
            if not isinstance(execution.output, declared):
                raise InvalidPayload(
                    f"the handler returned {type(execution.output).__name__},"
                    f" not {declared.__name__}."
                )
            value = json_value(execution.output, "the output")
            text = encode_json(value, limit_bytes=self._output_limit_bytes, what="the output")
            declared.model_validate_json(text)  # what the application will read it with
        except ValidationError as error:
            message = f"the output does not fit: {faults_of(error)}"
            return self._failed(execution, Reason.OUTPUT_INVALID, message)
        except (InvalidPayload, ValueError, TypeError) as error:
            return self._failed(execution, Reason.OUTPUT_INVALID, str(error))
        except Exception as error:  # noqa: BLE001 - a validator of the user's raised what it likes
            return self._handler_failed(execution, error)
        report = Deliver(**_about(execution.assignment), output=value, enforced=execution.enforced)
        return Ending("delivered", report)

    # Endings --------------------------------------------------------------------------------------

    def _stopped(self, execution: Execution) -> Ending:
        match execution.stop:
            case Stop.CANCELLED:
                return Ending("cancelled", Cancelled(**_about(execution.assignment)))
            case Stop.DRAIN:
                message = "the node's drain limit was reached"
                return self._failed(execution, Reason.NODE_DRAINING, message)
            case Stop.TIME_LIMIT:
                limit = execution.declaration.time_limit_seconds
                message = f"it ran longer than {limit:g} s, and went on when it was cancelled"
                return self._failed(execution, Reason.TIME_LIMIT, message)
            case _:
                return self._lost(execution)

    def _raised(self, execution: Execution, error: BaseException) -> Ending:
        if isinstance(error, Fail):
            return self._failed(execution, error.reason, error.message, retryable=False)
        if execution.stop is not None:
            return self._stopped(execution)
        if isinstance(error, Retry):
            reason = Reason.RETRY_REQUESTED
            return self._failed(execution, reason, error.message, after_seconds=error.after_seconds)
        if isinstance(error, AuthorityError):
            return self._authority_lost(execution, error)
        if isinstance(error, OutOfScope):
            return self._failed(execution, error.code, error.message, retryable=False)
        if isinstance(error, RunEnded):
            log.warning(
                "handler failed", reason=error.reason, error=error.message,
                exception=error.traceback or None,
            )  # fmt: skip
            alone = execution.suspect and execution.declaration.runs_in == "executor"
            died = error.reason is Reason.PROCESS_DIED and alone
            return self._failed(
                execution, Reason.DIED_ALONE if died else error.reason, error.message
            )
        return self._handler_failed(execution, error)

    def _authority_lost(self, execution: Execution, error: AuthorityError) -> Ending:
        if isinstance(error, StaleToken):
            execution.seen_token = error.seen_token
        self._metrics.refused_effects.labels(
            task_type=execution.assignment.task_type, code=str(error.code)
        ).inc()
        return self._lost(execution, error)

    def _handler_failed(self, execution: Execution, error: BaseException) -> Ending:
        log.warning(
            "handler failed",
            error=type(error).__name__,
            exc_info=None
            if isinstance(error, ExecutorError)
            else (type(error), error, within_handler(error.__traceback__)),
        )
        return self._failed(
            execution, Reason.HANDLER_FAILED, f"{type(error).__name__}: {text_of(error)}"
        )

    def _failed(
        self,
        execution: Execution,
        reason: str,
        message: str,
        *,
        retryable: bool = True,
        after_seconds: float | None = None,
    ) -> Ending:
        if reason == Reason.OUTPUT_INVALID:  # a fault of the program, as an exception is
            log.warning("output invalid", error=message)
        report = Failed(
            **_about(execution.assignment),
            reason=storable(reason, 100) or Reason.HANDLER_FAILED,
            message=storable(message, MAX_REASON_CHARACTERS),
            retryable=retryable,
            retry_after_seconds=after_seconds,
        )
        return Ending(report.reason if report.reason in _REASONS else "failed", report)

    def _lost(self, execution: Execution, error: AuthorityError | None = None) -> Ending:
        """The authority was over before the work was done. Where the lease has run out the
        coordinator knows already; where a receiver's clock said so it does not. What becomes of a
        task that is handed back in the middle of its work is the coordinator's rule (STATE-05)."""
        live = execution.lease is not None and execution.lease.may_act()
        if live and error is not None:
            say_lost(execution, self._metrics, str(error.code), said=error.message)
        else:
            say_lost(execution, self._metrics, why_over(execution))
        if not live:
            return Ending(Reason.AUTHORITY_LOST)
        said = execution.lost if error is None else error.message
        return self._failed(execution, Reason.AUTHORITY_LOST, f"authority lost: {said}")

    def _count(self, execution: Execution, ending: Ending) -> None:
        self._metrics.attempts.labels(
            task_type=execution.assignment.task_type, outcome=ending.outcome
        ).inc()
        log.debug("attempt ended here", outcome=ending.outcome)


_REASONS = frozenset(reason.value for reason in Reason)


async def _ended(handler: "asyncio.Task[object]") -> None:
    """Wait for the end of a handler; to cancel this wait does not cancel it. ``asyncio.wait`` would
    do the same for any number of tasks, and takes several times as long for one."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    handler.add_done_callback(tell)
    await ended


def _about(assignment: Assignment) -> dict[str, Any]:
    """What every report about an attempt begins with; its id is new."""
    return {
        "report_id": str(uuid4()),
        "task_id": assignment.task_id,
        "attempt_id": assignment.attempt_id,
        "fencing_token": assignment.fencing_token,
    }


def _reject(assignment: Assignment, reason: Reason) -> Reject:
    return Reject(**_about(assignment), reason=reason)


def _present(value: Any) -> Any:
    """A field that an earlier step has filled in."""
    assert value is not None
    return value
