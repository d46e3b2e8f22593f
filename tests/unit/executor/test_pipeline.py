"""What happens to one attempt, step by step, and what the coordinator is told at the end."""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from tenure.contract.codes import Code, Reason
from tenure.contract.reports import Deliver, Fail, LeaseTerms, Reject, Report, ReportReply
from tenure.executor import Context, Executor, Retry, TaskType
from tenure.executor import Fail as FailForGood
from tenure.executor.core.intake import Assignment
from tenure.executor.errors import AuthorityOver, GuardNotInstalled, GuardUnavailable, StaleToken
from tenure.executor.execution import Stop
from tenure.executor.lease import Lease
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.pipeline import Pipeline
from tenure.executor.reports import Answer
from tenure.executor.work import Work
from tests.support.attempts import EXPIRES, HandClock, assignment
from tests.support.waiting import eventually


class In(BaseModel):
    text: str


class Out(BaseModel):
    text: str = Field(max_length=2000)
    weight: float = 0.0
    more: Any = None


ECHO = TaskType("echo", input=In, output=Out)

Handler = Callable[[In, Context[Any]], Awaitable[Out] | Out]


class ScriptedReports:
    """Takes with a lease of 30 s, applies everything else; keeps what was reported."""

    def __init__(self, clock: HandClock) -> None:
        self.sent: list[Report] = []
        self.input: object = {"text": "hello"}
        self.take = {"outcome": "applied", "remaining_seconds": 30.0, "expires_at": EXPIRES}
        self.clock = clock

    async def send(self, report: Report) -> Answer:
        self.sent.append(report)
        fields: dict[str, object] = {"outcome": "applied"}
        if report.kind == "take":
            fields = {"input": self.input, **self.take}
        reply = ReportReply.model_validate({"report_id": report.report_id, **fields})
        return Answer(reply, self.clock())


class Held:
    """The leases given to the renewals."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []

    def hold(self, lease: Lease) -> None:
        self.leases.append(lease)


class Bench:
    """One node with two slots, its clock in the test's hand."""

    def __init__(self, handler: Handler, **options: Any) -> None:
        self.app = Executor("bench", version="1")
        self.app.task(ECHO, **options)(handler)  # type: ignore[arg-type]  # either kind of handler
        self.clock = HandClock()
        self.reports = ScriptedReports(self.clock)
        self.renewals = Held()
        self.ended: list[str] = []
        metrics = ExecutorMetrics()
        self.work = Work(
            self.app.handlers, slots=2, metrics=metrics, ended=lambda each: self.ended.append(each)
        )
        self.work.use(
            Pipeline(
                reports=self.reports,
                renewals=self.renewals,
                resources="the resources",
                clock=self.clock,
                terms=LeaseTerms(
                    duration_seconds=30.0,
                    renewal_interval_seconds=10.0,
                    clock_tolerance_seconds=1.0,
                    policy_version=1,
                ),
                output_limit_bytes=4096,
                metrics=metrics,
                authority_changed=self.work.look_again,
            )
        )

    async def run(self, given: Assignment | None = None) -> list[Report]:
        """Run one attempt to its end; what was reported after the take."""
        given = given or assignment()
        self.work.start(given)
        await self.work.idle()
        assert self.ended[-1] == given.attempt_id
        return self.reports.sent[1:]


async def echo(input: In, context: Context[Any]) -> Out:
    return Out(text=input.text)


def only_fail(reports: list[Report]) -> Fail:
    assert len(reports) == 1
    assert isinstance(reports[0], Fail)
    return reports[0]


async def test_an_attempt_is_taken_run_and_delivered() -> None:
    seen: list[Context[Any]] = []

    async def handler(input: In, context: Context[Any]) -> Out:
        seen.append(context)
        return Out(text=input.text)

    b = Bench(handler)
    given = assignment()
    reports = await b.run(given)
    assert [report.kind for report in b.reports.sent] == ["take", "deliver"]
    assert isinstance(reports[0], Deliver)
    assert reports[0].output == {"text": "hello", "weight": 0.0, "more": None}
    assert seen[0].resources == "the resources"
    assert (seen[0].task_id, seen[0].ordinal) == (given.task_id, 1)
    assert [lease.attempt_id for lease in b.renewals.leases] == [given.attempt_id]


async def test_a_plain_function_runs_beside_the_event_loop() -> None:
    loop_thread = threading.get_ident()
    threads: list[int] = []

    def handler(input: In, context: Context[Any]) -> Out:
        threads.append(threading.get_ident())
        return Out(text=input.text)

    reports = await Bench(handler).run()
    assert reports[0].kind == "deliver"
    assert threads[0] != loop_thread


@pytest.mark.requirement("LEASE-09")
async def test_nothing_begins_when_the_take_is_refused() -> None:
    b = Bench(echo)
    b.reports.take = {"outcome": "refused", "code": Code.NOT_CURRENT}
    assert await b.run() == []
    assert b.renewals.leases == []


@pytest.mark.requirement("LEASE-09")
async def test_nothing_begins_when_the_answer_came_too_late() -> None:
    ran: list[object] = []

    async def handler(input: In, context: Context[Any]) -> Out:
        ran.append(input)
        return Out(text="")

    b = Bench(handler)
    b.reports.take["remaining_seconds"] = 1.0  # no more than the tolerance
    assert await b.run() == [], "the lease runs out; the coordinator knows"
    assert ran == []


async def test_an_input_that_does_not_fit_fails_without_another_attempt() -> None:
    b = Bench(echo)
    b.reports.input = {"text": 5}
    failed = only_fail(await b.run())
    assert (failed.reason, failed.retryable) == (Reason.INPUT_INVALID, False)
    # One line, without the value: it may be large, or secret.
    assert failed.message == "the input does not fit: text: Input should be a valid string"


async def _none(input: In, context: Context[Any]) -> Out:
    return None  # type: ignore[return-value]  # what a handler without types may do


async def _large(input: In, context: Context[Any]) -> Out:
    return Out.model_construct(text="x" * 5000, weight=0.0)


async def _unchecked(input: In, context: Context[Any]) -> Out:
    return Out.model_construct(text="x" * 3000, weight=0.0)


async def _not_a_number(input: In, context: Context[Any]) -> Out:
    return Out(text="", weight=float("nan"))


async def _no_number_anywhere(input: In, context: Context[Any]) -> Out:
    return Out(text="", more={"weights": [1.0, float("nan")]})


async def _unstorable(input: In, context: Context[Any]) -> Out:
    return Out(text="\x00")


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (_none, "returned NoneType, not Out"),
        (_large, "more than the limit of 4096"),
        (_unchecked, "at most 2000"),
        (_not_a_number, "NaN"),
        (_no_number_anywhere, "NaN"),
        (_unstorable, "u0000"),
    ],
)
async def test_an_output_that_cannot_be_delivered_fails(handler: Handler, says: str) -> None:
    failed = only_fail(await Bench(handler).run())
    assert failed.reason == Reason.OUTPUT_INVALID
    assert says in failed.message


async def test_an_exception_fails_with_its_message_made_storable() -> None:
    async def handler(input: In, context: Context[Any]) -> Out:
        raise ValueError("bad \x00 text \ud800 " + "x" * 3000)

    failed = only_fail(await Bench(handler).run())
    assert (failed.reason, failed.retryable) == (Reason.HANDLER_FAILED, True)
    assert failed.message.startswith("ValueError: bad \N{REPLACEMENT CHARACTER} text ?")
    assert len(failed.message) == 2000


async def test_a_permanent_failure_is_not_tried_again() -> None:
    async def handler(input: In, context: Context[Any]) -> Out:
        raise FailForGood("file_missing", "no such file")

    failed = only_fail(await Bench(handler).run())
    assert (failed.reason, failed.retryable) == ("file_missing", False)
    assert failed.message == "no such file"


async def test_a_permanent_failure_in_whatever_words_ends_the_task() -> None:
    async def handler(input: In, context: Context[Any]) -> Out:
        raise FailForGood(
            404,  # type: ignore[arg-type]  # what a handler without types may do
            KeyError("n"),  # type: ignore[arg-type]  # the same
        )

    failed = only_fail(await Bench(handler).run())
    assert (failed.reason, failed.message, failed.retryable) == ("404", "'n'", False)


@pytest.mark.parametrize(
    ("after", "seconds"), [(None, None), (0, 0.0), (1.5, 1.5), (timedelta(minutes=2), 120.0)]
)
async def test_a_handler_that_wants_another_attempt_says_when(
    after: float | timedelta | None, seconds: float | None
) -> None:
    async def handler(input: In, context: Context[Any]) -> Out:
        raise Retry("not yet", after=after)

    failed = only_fail(await Bench(handler).run())
    assert (failed.reason, failed.message) == (Reason.RETRY_REQUESTED, "not yet")
    assert (failed.retryable, failed.retry_after_seconds) == (True, seconds)


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, 31 * 86_400, timedelta(days=-1)])
async def test_a_wait_that_is_none_fails_as_any_fault_of_the_handler(after: Any) -> None:
    async def handler(input: In, context: Context[Any]) -> Out:
        raise Retry(after=after)

    failed = only_fail(await Bench(handler).run())
    assert (failed.reason, failed.retry_after_seconds) == (Reason.HANDLER_FAILED, None)
    assert "Retry(after=" in failed.message


class Picky(BaseModel):
    """Its validator raises what pydantic does not catch."""

    text: str

    @field_validator("text")
    @classmethod
    def look_up(cls, text: str) -> str:
        return {"known": text}[text]


async def _known(input: Picky, context: Context[Any]) -> Out:
    return Out(text=input.text)


async def _unknown(input: In, context: Context[Any]) -> Picky:
    return Picky.model_construct(text="unknown")


@pytest.mark.parametrize(
    ("task_type", "handler", "says"),
    [
        (TaskType("input", input=Picky, output=Out), _known, "KeyError: 'hello'"),
        (TaskType("output", input=In, output=Picky), _unknown, "KeyError: 'unknown'"),
    ],
)
async def test_a_validator_that_raises_fails_the_attempt_instead_of_losing_it(
    task_type: TaskType[Any, Any], handler: Any, says: str
) -> None:
    b = Bench(echo)
    b.app.task(task_type)(handler)
    failed = only_fail(await b.run(assignment(task_type.name)))
    assert (failed.reason, failed.message) == (Reason.HANDLER_FAILED, says)
    assert failed.retryable, "a validator may look at the world"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_handler_that_leaves_in_its_own_way_fails(error: BaseException) -> None:
    async def handler(input: In, context: Context[Any]) -> Out:
        raise error

    assert only_fail(await Bench(handler).run()).reason == Reason.HANDLER_FAILED


class ScriptedGuard:
    """Raises what the script says, then succeeds."""

    def __init__(self, *script: Exception) -> None:
        self.script = list(script)
        self.raised = 0

    async def raise_fence(self, context: Context[Any]) -> None:
        if self.script:
            raise self.script.pop(0)
        self.raised += 1


@pytest.mark.requirement("LEASE-10")
async def test_fences_are_raised_before_the_handler_has_control() -> None:
    guard = ScriptedGuard(GuardUnavailable("away"), GuardUnavailable("away"))
    order: list[int] = []

    async def handler(input: In, context: Context[Any]) -> Out:
        order.append(guard.raised)
        return Out(text="")

    reports = await Bench(handler, effects="guarded", guards=lambda _: [guard]).run()
    assert reports[0].kind == "deliver"
    assert order == [1]


@pytest.mark.parametrize("error", [StaleToken("late"), AuthorityOver("late")])
async def test_a_receiver_that_refuses_ends_the_attempt(error: Exception) -> None:
    b = Bench(echo, effects="guarded", guards=lambda _: [ScriptedGuard(error)])
    assert only_fail(await b.run()).reason == Reason.AUTHORITY_LOST


async def test_a_receiver_without_its_guard_fails_the_attempt() -> None:
    guard = ScriptedGuard(GuardNotInstalled("missing", next_step="install it"))
    failed = only_fail(await Bench(echo, effects="guarded", guards=lambda _: [guard]).run())
    assert failed.reason == Reason.HANDLER_FAILED
    assert "install it" in failed.message


@pytest.mark.requirement("LEASE-09")
async def test_a_receiver_that_stays_away_is_given_up_when_the_authority_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.executor.patience.BASE_SECONDS", 0.0001)

    class Away:
        async def raise_fence(self, context: Context[Any]) -> None:
            b.clock.pass_seconds(5)
            raise GuardUnavailable("away")

    b = Bench(echo, effects="guarded", guards=lambda _: [Away()])
    assert await b.run() == [], "the lease has run out; the coordinator knows"
    assert b.clock.now == 30_000_000


class Waiting:
    """A handler that waits until it is ended, and tells when it has begun."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.began = asyncio.Event()
        self.release = asyncio.Event()
        self.asked = 0
        self.stubborn = stubborn

    async def __call__(self, input: In, context: Context[Any]) -> Out:
        self.began.set()
        while True:
            try:
                await self.release.wait()
                return Out(text="done")
            except asyncio.CancelledError:
                assert context.cancelled
                self.asked += 1
                if not self.stubborn:
                    raise


@pytest.mark.requirement("LEASE-09")
async def test_the_watchdog_ends_a_handler_when_its_authority_is_over() -> None:
    handler = Waiting()
    b = Bench(handler)
    watchdog = asyncio.create_task(b.work.watch())
    b.work.start(assignment())
    await handler.began.wait()
    b.clock.pass_seconds(28.9)
    b.work.look_again()
    await asyncio.sleep(0)
    assert handler.asked == 0
    b.clock.pass_seconds(0.1)
    b.work.look_again()
    await b.work.idle()
    watchdog.cancel()
    assert handler.asked == 1
    assert [report.kind for report in b.reports.sent] == ["take"]


async def test_a_refused_renewal_ends_the_handler() -> None:
    handler = Waiting()
    b = Bench(handler)
    watchdog = asyncio.create_task(b.work.watch())
    b.work.start(assignment())
    await handler.began.wait()
    b.renewals.leases[0].end(Code.LEASE_EXPIRED)
    b.work.look_again()
    await b.work.idle()
    watchdog.cancel()
    assert handler.asked == 1


@pytest.mark.requirement("LATE-02")
async def test_an_output_is_reported_although_the_authority_is_over() -> None:
    """It changes nothing by itself: the coordinator keeps it as evidence."""

    async def handler(input: In, context: Context[Any]) -> Out:
        b.clock.pass_seconds(100)
        return Out(text="late")

    b = Bench(handler)
    assert [report.kind for report in await b.run()] == ["deliver"]


async def test_a_handler_that_goes_on_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.executor.work.NUDGE_SECONDS", 0.0)
    handler = Waiting(stubborn=True)
    b = Bench(handler)
    b.work.start(assignment())
    await handler.began.wait()
    b.clock.pass_seconds(60)
    watchdog = asyncio.create_task(b.work.watch())
    while handler.asked < 3:
        b.work.look_again()
        await asyncio.sleep(0)
    watchdog.cancel()
    handler.release.set()
    await b.work.idle()
    assert [report.kind for report in b.reports.sent] == ["take", "deliver"]


@pytest.mark.requirement("STATE-06")
async def test_a_cancellation_is_confirmed_once_the_handler_has_ended() -> None:
    handler = Waiting()
    b = Bench(handler)
    given = assignment()
    b.work.start(given)
    await handler.began.wait()
    b.work.cancel(given.attempt_id)
    await b.work.idle()
    assert [report.kind for report in b.reports.sent] == ["take", "cancel_received", "cancelled"]


async def test_a_cancellation_that_comes_with_the_take_keeps_the_handler_from_starting() -> None:
    b = Bench(echo)
    b.reports.take["cancel_requested"] = True
    assert [report.kind for report in await b.run()] == ["cancelled"]


async def test_work_that_was_done_all_the_same_is_delivered() -> None:
    handler = Waiting(stubborn=True)
    b = Bench(handler)
    given = assignment()
    b.work.start(given)
    await handler.began.wait()
    b.work.cancel(given.attempt_id)
    await eventually(lambda: handler.asked > 0)
    handler.release.set()
    await b.work.idle()
    assert [report.kind for report in b.reports.sent] == ["take", "cancel_received", "deliver"]


@pytest.mark.parametrize("leaves_by", ["returning nothing", "end_if_cancelled"])
async def test_a_thread_learns_of_its_cancellation_by_looking(leaves_by: str) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handler(input: In, context: Context[Any]) -> Out:
        loop.call_soon_threadsafe(began.set)
        assert context.wait_cancelled(60)
        if leaves_by == "end_if_cancelled":
            context.end_if_cancelled()
        return None  # type: ignore[return-value]  # it has nothing to give

    b = Bench(handler)
    given = assignment()
    b.work.start(given)
    await began.wait()
    b.work.cancel(given.attempt_id)
    await b.work.idle()
    assert [report.kind for report in b.reports.sent] == ["take", "cancel_received", "cancelled"]


async def test_no_more_run_at_once_than_there_are_slots() -> None:
    handler = Waiting()
    b = Bench(handler)
    for _ in range(3):
        b.work.start(assignment())
    await handler.began.wait()
    assert [report.kind for report in b.reports.sent] == ["take", "take"]
    handler.release.set()
    await b.work.idle()
    assert [report.kind for report in b.reports.sent].count("deliver") == 3


@pytest.mark.requirement("OPS-03")
async def test_a_drain_hands_back_what_has_not_started_and_lets_the_rest_go_on() -> None:
    handler = Waiting()
    b = Bench(handler)
    running, also, waiting = assignment(), assignment(), assignment()
    for each in (running, also, waiting):
        b.work.start(each)
    await handler.began.wait()
    b.work.drain()
    handler.release.set()
    await b.work.idle()
    rejected = [report for report in b.reports.sent if isinstance(report, Reject)]
    assert [(report.attempt_id, report.reason) for report in rejected] == [
        (waiting.attempt_id, Reason.NODE_DRAINING)
    ]
    assert [report.kind for report in b.reports.sent].count("deliver") == 2
    assert sorted(b.ended) == sorted(each.attempt_id for each in (running, also, waiting))


@pytest.mark.parametrize("effects", ["idempotent", "unguarded"])
@pytest.mark.requirement("STATE-05")
async def test_the_drain_limit_ends_handlers_and_hands_their_work_back(effects: str) -> None:
    handler = Waiting()
    b = Bench(handler, effects=effects)
    b.work.start(assignment())
    await handler.began.wait()
    b.work.stop_all(Stop.DRAIN)
    await b.work.idle()
    assert only_fail(b.reports.sent[1:]).reason == Reason.NODE_DRAINING


async def test_a_fault_in_one_run_leaves_the_slot_free() -> None:
    b = Bench(echo)

    class Broken:
        async def run(self, execution: object) -> None:
            raise LookupError("a fault of ours")

        async def reject(self, given: Assignment, reason: Reason) -> None:
            raise LookupError

        async def acknowledge_cancel(self, given: Assignment) -> None:
            raise LookupError

    b.work.use(Broken())
    for _ in range(5):
        b.work.start(assignment())
    await b.work.idle()
    assert len(b.ended) == 5
