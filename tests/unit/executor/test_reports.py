"""The stream of reports: batches without a timer, order kept, unknown outcomes repeated."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import IncarnationId, NodeId
from tenure.contract.reports import Deliver, Report, ReportReplies, ReportReply, Reports, Take
from tenure.executor.core.intake import Assignment
from tenure.executor.errors import CoordinatorRefused, CoordinatorUnavailable, NodeGone
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition
from tenure.executor.reports import MAX_REQUEST_BYTES, ReportStream
from tests.support.attempts import HandClock, assignment, new_id

Answering = Callable[[Reports], ReportReplies]


def applied(request: Reports) -> ReportReplies:
    return ReportReplies(
        replies=tuple(
            ReportReply(report_id=report.report_id, outcome="applied") for report in request.reports
        )
    )


class ScriptedCoordinator:
    """Answers each request with the next entry of the script, then applies everything."""

    def __init__(self, clock: HandClock) -> None:
        self.requests: list[Reports] = []
        self.script: list[Answering | Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self._clock = clock

    async def report(self, node_id: NodeId, reports: Reports) -> ReportReplies:
        self.requests.append(reports)
        self.arrived.set()
        await self.gate.wait()
        self._clock.pass_seconds(1)
        step = self.script.pop(0) if self.script else applied
        if isinstance(step, Exception):
            raise step
        return step(reports)

    def batches(self) -> list[list[str]]:
        return [[report.report_id for report in request.reports] for request in self.requests]


class Bench:
    """A stream over a scripted coordinator."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.coordinator = ScriptedCoordinator(self.clock)
        self.unknown_node = 0
        self.stream = ReportStream(
            self.coordinator,
            node_id=NodeId("n"),
            incarnation=IncarnationId(new_id()),
            clock=self.clock,
            condition=Condition("the coordinator"),
            metrics=ExecutorMetrics(),
            on_unknown_node=self._count,
        )

    def _count(self) -> None:
        self.unknown_node += 1


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off without the waiting: its length is not what these tests are about."""
    monkeypatch.setattr("tenure.executor.patience.BASE_SECONDS", 0.0001)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    running = asyncio.create_task(made.stream.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def take(given: Assignment | None = None) -> Take:
    given = given or assignment()
    return Take(
        report_id=new_id(),
        task_id=given.task_id,
        attempt_id=given.attempt_id,
        fencing_token=given.fencing_token,
    )


def deliver(given: Assignment, output: object = None) -> Deliver:
    return Deliver(
        report_id=new_id(),
        task_id=given.task_id,
        attempt_id=given.attempt_id,
        fencing_token=given.fencing_token,
        output=output,
    )


async def test_reports_that_are_made_while_one_is_under_way_go_together() -> None:
    async with bench() as b:
        b.coordinator.gate.clear()
        first = asyncio.create_task(b.stream.send(take()))
        await b.coordinator.arrived.wait()
        others = [asyncio.create_task(b.stream.send(take())) for _ in range(20)]
        await asyncio.sleep(0)
        b.coordinator.gate.set()
        await asyncio.gather(first, *others)
        assert [len(batch) for batch in b.coordinator.batches()] == [1, 20]


@pytest.mark.requirement("LEASE-09")
async def test_an_answer_tells_when_the_request_that_it_answers_was_sent() -> None:
    async with bench() as b:
        b.coordinator.script = [CoordinatorUnavailable("away")]
        answer = await b.stream.send(take())
        assert answer.sent_at == 1_000_000, "the second request; each took a second"
        assert b.clock.now == 2_000_000


@pytest.mark.requirement("LATE-04")
async def test_an_unknown_outcome_is_repeated_with_the_same_report_ids() -> None:
    async with bench() as b:
        b.coordinator.script = [
            CoordinatorUnavailable("away"),
            CoordinatorUnavailable("overloaded", code=Code.OVERLOADED, retry_after_seconds=0.0),
        ]
        await b.stream.send(take())
        batches = b.coordinator.batches()
        assert len(batches) == 3
        assert batches[0] == batches[1] == batches[2]


async def test_a_report_to_be_repeated_does_not_hold_up_the_others() -> None:
    def first_again(request: Reports) -> ReportReplies:
        replies = list(applied(request).replies)
        replies[0] = ReportReply(report_id=replies[0].report_id, outcome="retry")
        return ReportReplies(replies=tuple(replies))

    async with bench() as b:
        b.coordinator.script = [first_again]
        reports = [take() for _ in range(3)]
        await asyncio.gather(*(b.stream.send(report) for report in reports))
        ids = [report.report_id for report in reports]
        assert b.coordinator.batches() == [ids, ids[:1]]


async def test_the_order_of_one_attempts_reports_is_kept() -> None:
    async with bench() as b:
        b.coordinator.script = [
            lambda request: ReportReplies(
                replies=(ReportReply(report_id=request.reports[0].report_id, outcome="retry"),)
            )
        ]
        given = assignment()
        reports: list[Report] = [take(given), deliver(given)]
        await asyncio.gather(*(b.stream.send(report) for report in reports))
        ids = [report.report_id for report in reports]
        assert b.coordinator.batches() == [ids[:1], ids[:1], ids[1:]]


async def test_a_report_that_spoils_its_request_is_refused_alone() -> None:
    bad = take()

    def strict(request: Reports) -> ReportReplies:
        if any(report.report_id == bad.report_id for report in request.reports):
            raise CoordinatorRefused("no", status=400, code=Code.INVALID_FIELD)
        return applied(request)

    async with bench() as b:
        b.coordinator.script = [strict] * 20
        reports = [take(), take(), bad, take(), take()]
        answers = await asyncio.gather(*(b.stream.send(report) for report in reports))
        outcomes = [answer.reply.outcome for answer in answers]
        assert outcomes == ["applied", "applied", "refused", "applied", "applied"]
        assert answers[2].reply.code == Code.INVALID_FIELD


async def test_reports_wait_while_the_token_or_the_node_is_refused() -> None:
    async with bench() as b:
        b.coordinator.script = [
            CoordinatorRefused("who", status=401, code=Code.UNAUTHENTICATED),
            CoordinatorRefused("where", status=404, code=Code.UNKNOWN_NODE),
        ]
        answer = await b.stream.send(take())
        assert answer.reply.outcome == "applied"
        assert b.unknown_node == 1


async def test_reports_of_an_incarnation_that_is_gone_are_nobodys() -> None:
    async with bench() as b:
        b.coordinator.script = [NodeGone("gone")]
        waiting = [asyncio.create_task(b.stream.send(take())) for _ in range(3)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [NodeGone] * 3
        with pytest.raises(NodeGone):
            await b.stream.send(take())


async def test_a_report_that_nobody_waits_for_any_more_is_not_sent() -> None:
    async with bench() as b:
        b.coordinator.gate.clear()
        first = asyncio.create_task(b.stream.send(take()))
        await b.coordinator.arrived.wait()
        given_up = asyncio.create_task(b.stream.send(take()))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        b.coordinator.gate.set()
        await first
        last = take()
        await b.stream.send(last)
        assert b.coordinator.batches()[1:] == [[last.report_id]]


async def test_large_outputs_do_not_share_a_request() -> None:
    async with bench() as b:
        output = "x" * (MAX_REQUEST_BYTES // 2)
        reports = [deliver(assignment(), output) for _ in range(3)]
        await asyncio.gather(*(b.stream.send(report) for report in reports))
        assert [len(batch) for batch in b.coordinator.batches()] == [1, 1, 1]
