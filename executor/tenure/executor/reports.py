"""One stream of reports for all slots of the node.

Reports that are made while a request is under way go together in the next one: no timer, no delay
when idle. A request without a usable answer is repeated with the same report ids until there is
one, so an unknown outcome is settled by the coordinator's record of the first. The order of one
attempt's reports is kept; attempts do not wait for each other.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import structlog

from tenure.contract.codes import Code
from tenure.contract.ids import IncarnationId, NodeId
from tenure.contract.reports import (
    MAX_REPORTS_PER_REQUEST,
    Report,
    ReportReplies,
    ReportReply,
    Reports,
    Take,
)
from tenure.executor.clock import Clock
from tenure.executor.errors import CoordinatorRefused, CoordinatorUnavailable, NodeGone
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition, jitter_seconds, retrying

MAX_REQUEST_BYTES: Final = 1024 * 1024
"""Of one request with several reports; a larger report goes alone."""
_TAKE_BYTES: Final = 250
"""Every take: identifiers and nothing else."""
_REPORTS_FAULT: Final = frozenset({400, 413, 422})

log = structlog.get_logger("tenure.executor")


_Answered: TypeAlias = tuple[int, dict[str, ReportReply]]
"""When a request was sent, and its replies by report id."""


class Reporting(Protocol):
    """The coordinator, as this stream uses it."""

    async def report(self, node_id: NodeId, reports: Reports) -> ReportReplies:
        """One batch. Raises CoordinatorError."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a report, and when the request that it answers was sent: authority counts from
    there (LEASE-09). Microseconds on the executor's clock."""

    reply: ReportReply
    sent_at: int


@dataclass(slots=True, eq=False)
class _Waiting:
    report: Report
    size: int
    answer: asyncio.Future[Answer]
    failures: int = 0
    due_at: float = 0.0


class ReportStream:
    """``send`` from any task; ``run`` does the sending."""

    def __init__(
        self,
        coordinator: Reporting,
        *,
        node_id: NodeId,
        incarnation: IncarnationId,
        clock: Clock,
        condition: Condition,
        metrics: ExecutorMetrics,
        on_unknown_node: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._incarnation = incarnation
        self._clock = clock
        self._condition = condition
        self._metrics = metrics
        self._on_unknown_node = on_unknown_node
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._gone: NodeGone | None = None

    async def send(self, report: Report) -> Answer:
        """Report, and wait for the answer for as long as it takes.

        Raises NodeGone once the coordinator has ended this incarnation.
        """
        if self._gone is not None:
            raise self._gone
        item = _Waiting(report, _size(report), asyncio.get_running_loop().create_future())
        self._waiting.append(item)
        self._wake.set()
        try:
            return await item.answer
        finally:
            self._forget(item)

    async def run(self) -> None:
        """Until cancelled, or this incarnation is gone."""
        try:
            while True:
                batch = await self._next_batch()
                await self._send(batch)
        except NodeGone as gone:
            self._end(gone)

    def _end(self, gone: NodeGone) -> None:
        self._gone = gone
        for item in self._waiting:
            if not item.answer.done():
                item.answer.set_exception(gone)
        self._waiting.clear()

    async def _next_batch(self) -> list[_Waiting]:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            batch, due_at = self._due(loop.time())
            if batch:
                return batch
            try:
                async with asyncio.timeout_at(due_at):
                    await self._wake.wait()
            except TimeoutError:
                pass  # something is due

    def _due(self, now: float) -> tuple[list[_Waiting], float | None]:
        """What may be sent now, in order; else when something may."""
        batch: list[_Waiting] = []
        size = 0
        held: set[str] = set()  # attempts whose earlier report waits
        due_at: float | None = None
        for item in self._waiting:
            attempt_id = item.report.attempt_id
            if attempt_id in held:
                continue
            if item.due_at > now:
                held.add(attempt_id)
                due_at = item.due_at if due_at is None else min(due_at, item.due_at)
                continue
            if batch and size + item.size > MAX_REQUEST_BYTES:
                break
            batch.append(item)
            size += item.size
            held.add(attempt_id)  # its next one waits for this one's answer
            if len(batch) == MAX_REPORTS_PER_REQUEST:
                break
        return batch, due_at

    async def _send(self, batch: Sequence[_Waiting]) -> None:
        """Send until answered. A request that is refused as such is halved until the report that
        spoils it is alone, and is told so."""
        try:
            answered: _Answered = await retrying(self._condition, CoordinatorUnavailable)(
                self._post, batch
            )
        except CoordinatorRefused as error:
            if len(batch) > 1:
                await self._send(batch[: len(batch) // 2])
                await self._send(batch[len(batch) // 2 :])
            else:
                log.error("report refused", code=error.code, error=str(error))
                self._settle(batch[0], Answer(_refused(batch[0].report, error), self._clock()))
            return
        sent_at, replies = answered
        self._condition.well()
        self._metrics.report_batch.observe(len(batch))
        now = asyncio.get_running_loop().time()
        for item in batch:
            reply = replies.get(item.report.report_id)
            if reply is None or reply.outcome == "retry":
                item.failures += 1
                item.due_at = now + jitter_seconds(item.failures)
            else:
                self._settle(item, Answer(reply, sent_at))

    async def _post(self, batch: Sequence[_Waiting]) -> _Answered:
        request = Reports(
            incarnation=self._incarnation, reports=tuple(item.report for item in batch)
        )
        sent_at = self._clock()
        try:
            answer = await self._coordinator.report(self._node_id, request)
        except CoordinatorRefused as error:
            if error.status in _REPORTS_FAULT:
                raise
            # The token, the protocol or the node's name is at fault: no report is, so they wait.
            if error.code == Code.UNKNOWN_NODE:
                self._on_unknown_node()
            raise CoordinatorUnavailable(str(error), code=error.code) from error
        return sent_at, {reply.report_id: reply for reply in answer.replies}

    def _settle(self, item: _Waiting, answer: Answer) -> None:
        self._metrics.reports.labels(kind=item.report.kind, outcome=answer.reply.outcome).inc()
        self._forget(item)
        if not item.answer.done():
            item.answer.set_result(answer)

    def _forget(self, item: _Waiting) -> None:
        if item in self._waiting:
            self._waiting.remove(item)


def _size(report: Report) -> int:
    """Bytes of a report in a request, about."""
    return _TAKE_BYTES if isinstance(report, Take) else len(report.model_dump_json())


def _refused(report: Report, error: CoordinatorRefused) -> ReportReply:
    return ReportReply(
        report_id=report.report_id, outcome="refused", code=error.code, message=error.message
    )
