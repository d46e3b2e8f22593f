"""A lost lease is said once, when it is noticed, with the reason; whatever the handler does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from tenure.contract.codes import Code, Reason
from tenure.executor import Context, TaskType
from tenure.executor import Fail as FailForGood
from tenure.executor.errors import AuthorityOver, NodeGone, StaleToken
from tenure.executor.losses import DEADLINE, FAULT, PROCESS_ENDS
from tenure.executor.side_effects import effect_id
from tests.support.attempts import assignment
from tests.support.isolated_app import Done, Job, work
from tests.support.pipeline_bench import Bench, In, Out, Waiting, echo, only_fail
from tests.support.waiting import eventually

pytestmark = pytest.mark.requirement("LEASE-09")


@asynccontextmanager
async def watched(b: Bench, let_go: Callable[[], None]) -> AsyncIterator[None]:
    """With the watchdog; a handler that does not end when it is asked to is let go in the end."""
    watchdog = asyncio.create_task(b.work.watch())
    try:
        yield
    finally:
        watchdog.cancel()
        let_go()


def losses(said: list[Any]) -> list[str]:
    return [entry["why"] for entry in said if entry["event"] == "lease_lost"]


def counted(b: Bench, why: str) -> float | None:
    labels = {"task_type": "echo", "why": why}
    return b.metrics.registry.get_sample_value("tenure_executor_lease_lost_total", labels)


@pytest.mark.parametrize("why", [Code.NOT_CURRENT, Code.LEASE_EXPIRED, DEADLINE])
@pytest.mark.parametrize("kept", ["cancel", "isolate"])
async def test_a_lease_that_is_refused_or_runs_out_is_said_while_the_handler_runs(
    why: str, kept: str
) -> None:
    handler = Waiting(stubborn=True)
    b = Bench(handler, on_authority_loss=kept)
    given = assignment()
    with capture_logs() as said:
        async with watched(b, handler.release.set):
            b.work.start(given)
            await handler.began.wait()
            if why == DEADLINE:
                b.clock.pass_seconds(29)
            else:
                b.renewals.leases[0].end(why)
            b.work.look_again()
            await eventually(lambda: losses(said) != [])
            handler.release.set()
            await b.work.idle()
    assert losses(said) == [why]
    (line,) = [entry for entry in said if entry["event"] == "lease_lost"]
    assert (line["task_id"], line["attempt_id"]) == (given.task_id, given.attempt_id)
    assert counted(b, why) == 1


async def test_a_thread_that_cannot_be_ended_has_lost_its_lease_when_it_is_over() -> None:
    goes_on = threading.Event()
    began = threading.Event()

    def handler(input: In, context: Context[Any]) -> Out:
        with context.side_effect("mail", key="a"):
            began.set()
            goes_on.wait()
        return Out(text="late")

    b = Bench(handler)
    with capture_logs() as said:
        async with watched(b, goes_on.set):
            b.work.start(assignment())
            await eventually(began.is_set)
            b.clock.pass_seconds(29)
            b.work.look_again()
            await eventually(lambda: losses(said) == [DEADLINE])
            goes_on.set()
            await b.work.idle()
    effects = [
        (entry["log_level"], [each.split()[0::2] for each in entry["side_effects"]])
        for entry in said
        if "side_effects" in entry
    ]
    assert effects == [("warning", [["mail", "begun"]]), ("info", [["mail", "done"]])]
    assert b.reports.sent[-1].kind == "deliver", "the coordinator judges"


async def test_a_loss_after_a_cancellation_is_said_too() -> None:
    handler = Waiting(stubborn=True)
    b = Bench(handler)
    given = assignment()
    with capture_logs() as said:
        async with watched(b, handler.release.set):
            b.work.start(given)
            await handler.began.wait()
            b.work.cancel(given.attempt_id)
            b.clock.pass_seconds(29)
            b.work.look_again()
            await eventually(lambda: losses(said) == [DEADLINE])
            handler.release.set()
            await b.work.idle()


async def _fails_late(input: In, context: Context[Any]) -> Out:
    raise FailForGood("no_such_file", "none")


@pytest.mark.parametrize("handler", [echo, _fails_late])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"outcome": "recorded", "code": Code.LEASE_EXPIRED}, [Code.LEASE_EXPIRED]),
        ({"outcome": "refused", "code": Code.NOT_CURRENT}, [Code.NOT_CURRENT]),
        ({"outcome": "refused", "code": Code.PAYLOAD_TOO_LARGE}, []),
        ({"outcome": "applied"}, []),
    ],
)
async def test_a_last_report_that_comes_too_late_is_a_lost_lease(
    handler: Any, answer: dict[str, object], expected: list[str]
) -> None:
    """Nobody had noticed before."""
    b = Bench(handler)
    b.reports.last = answer
    with capture_logs() as said:
        await b.run()
    assert losses(said) == expected


@pytest.mark.parametrize("why", [Code.NODE_GONE, PROCESS_ENDS])
async def test_what_runs_when_the_node_is_gone_has_lost_its_lease(why: str) -> None:
    contexts: list[Context[Any]] = []
    goes_on = threading.Event()

    def handler(input: In, context: Context[Any]) -> Out:
        contexts.append(context)
        goes_on.wait()
        return Out(text="")

    b = Bench(handler)
    with capture_logs() as said:
        async with watched(b, goes_on.set):
            b.work.start(assignment())
            await eventually(lambda: contexts != [])
            leaving = asyncio.create_task(b.work.abandon(why))
            await eventually(lambda: losses(said) != [])
            with pytest.raises(AuthorityOver, match=why):
                contexts[0].check_authority()
            goes_on.set()
            await leaving
    assert losses(said) == [why]
    assert counted(b, why) == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NodeGone("gone"), "not answered: how the attempt ended is not known here"),
        (RuntimeError("a fault"), "the run ended by a fault; its lease will run out"),
    ],
)
async def test_a_last_report_without_an_answer_is_said_to_be_unknown(
    error: Exception, says: str
) -> None:
    b = Bench(echo)
    b.reports.last = error
    with capture_logs() as said:
        await b.run()
    assert says in [entry["event"] for entry in said]
    assert losses(said) == [], "it may have been applied"
    assert b.renewals.leases[0].ended in (Code.NODE_GONE, FAULT)


JOB = TaskType("job", input=Job, output=Done)


async def test_what_a_process_has_begun_is_named_when_its_lease_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted: list[str] = []
    note = Context.note_effect

    def noting(self: Context[Any], name: str, effect: str, state: str) -> None:
        noted.append(state)
        note(self, name, effect, state)

    monkeypatch.setattr(Context, "note_effect", noting)
    b = Bench(work, task_type=JOB, runs_in="process")
    b.reports.input = {"do": "effect_and_stay"}
    given = assignment("job")
    with capture_logs() as said:
        b.work.start(given)
        await eventually(lambda: noted == ["begun", "done", "begun"])
        b.renewals.leases[0].end(Code.NOT_CURRENT)
        b.work.look()
        await b.work.idle()
    assert _said_with(said, "lease_lost")["side_effects"] == [
        f"mail {effect_id(given.task_id, 'mail', 'one')} done",
        f"mail {effect_id(given.task_id, 'mail', 'two')} begun",
    ]


class Refusing:
    """A receiver that has seen a successor."""

    async def raise_fence(self, context: Context[Any]) -> None:
        raise StaleToken("a newer one was here", seen_token=5)


async def test_a_receiver_that_refuses_says_why() -> None:
    b = Bench(echo, effects="guarded", guards=lambda _: [Refusing()])
    with capture_logs() as said:
        failed = only_fail(await b.run())
    assert failed.reason == Reason.AUTHORITY_LOST
    assert losses(said) == [Code.STALE_TOKEN]
    assert _said_with(said, "lease_lost")["said"] == "a newer one was here"


def _said_with(said: list[Any], event: str) -> Mapping[str, Any]:
    (line,) = [entry for entry in said if entry["event"] == event]
    assert isinstance(line, dict)
    return line
