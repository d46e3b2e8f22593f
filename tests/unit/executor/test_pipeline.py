"""What happens to one attempt, step by step, and what the coordinator is told at the end."""

import asyncio
import math
import threading
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from structlog.testing import capture_logs

from tenure.contract.codes import Code, Reason
from tenure.contract.reports import Deliver
from tenure.executor import Context, Retry, TaskType
from tenure.executor import Fail as FailForGood
from tenure.executor.errors import AuthorityOver, GuardNotInstalled, GuardUnavailable, StaleToken
from tests.support.attempts import assignment
from tests.support.pipeline_bench import Bench, Handler, In, Out, echo, only_fail


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
    with capture_logs() as said:
        failed = only_fail(await Bench(handler).run())
    assert failed.reason == Reason.OUTPUT_INVALID
    assert says in failed.message
    (line,) = [each for each in said if each["event"] == "output invalid"]
    assert line["error"] == failed.message


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
async def test_a_receiver_that_refuses_ends_the_attempt_and_is_counted(
    error: StaleToken | AuthorityOver,
) -> None:
    b = Bench(echo, effects="guarded", guards=lambda _: [ScriptedGuard(error)])
    assert only_fail(await b.run()).reason == Reason.AUTHORITY_LOST
    counted = b.metrics.registry.get_sample_value(
        "tenure_executor_refused_effects_total", {"task_type": "echo", "code": error.code}
    )
    assert counted == 1


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


class Silent:
    """A receiver that takes what it is told and never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def raise_fence(self, context: Context[Any]) -> None:
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.requirement("LEASE-09")
async def test_a_receiver_that_never_answers_is_left_at_the_end_of_authority() -> None:
    silent = Silent()
    b = Bench(echo, effects="guarded", guards=lambda _: [silent], on_authority_loss="isolate")
    watchdog = asyncio.create_task(b.work.watch())
    b.work.start(assignment())
    await silent.asked.wait()
    b.clock.pass_seconds(29.0)
    b.work.look_again()
    await b.work.idle()
    watchdog.cancel()
    assert [report.kind for report in b.reports.sent] == ["take"]


async def test_a_receiver_that_never_answers_keeps_no_cancelled_task() -> None:
    silent = Silent()
    b = Bench(echo, effects="guarded", guards=lambda _: [silent])
    given = assignment()
    b.work.start(given)
    await silent.asked.wait()
    b.work.cancel(given.attempt_id)
    await b.work.idle()
    assert [report.kind for report in b.reports.sent] == ["take", "cancel_received", "cancelled"]
