"""What ends a handler that runs, and what is reported then."""

import asyncio
from typing import Any

import pytest

from tenure.contract.codes import Code, Reason
from tenure.contract.reports import Reject
from tenure.executor import Context
from tenure.executor.core.intake import Assignment
from tenure.executor.execution import Stop
from tests.support.attempts import assignment
from tests.support.pipeline_bench import Bench, In, Out, Waiting, echo, only_fail
from tests.support.waiting import eventually


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


@pytest.mark.requirement("LEASE-11")
async def test_a_coroutine_is_cancelled_at_its_time_limit() -> None:
    async def wait(input: In, context: Context[Any]) -> Out:
        await asyncio.Event().wait()
        return Out(text="never")

    failed = only_fail(await Bench(wait, time_limit_seconds=0.01).run())
    assert (failed.reason, failed.retryable) == (Reason.TIME_LIMIT, True)


@pytest.mark.requirement("LEASE-11")
async def test_a_coroutine_that_goes_on_after_its_time_limit_loses_its_authority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.executor.work.NUDGE_SECONDS", 0.0)
    release = asyncio.Event()
    asked = 0

    async def stubborn(input: In, context: Context[Any]) -> Out:
        nonlocal asked
        while True:
            try:
                await release.wait()
            except asyncio.CancelledError:
                asked += 1
                continue
            raise RuntimeError("at last")

    b = Bench(stubborn, time_limit_seconds=0.01)
    watchdog = asyncio.create_task(b.work.watch())
    b.work.start(assignment())
    await eventually(lambda: asked > 1)
    (lease,) = b.renewals.leases
    assert not lease.may_act()
    release.set()
    await b.work.idle()
    watchdog.cancel()
    failed = only_fail(b.reports.sent[1:])
    assert failed.reason == Reason.TIME_LIMIT
    assert "went on" in failed.message
