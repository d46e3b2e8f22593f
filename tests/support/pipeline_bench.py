"""One node whose handlers run for real, with scripted answers and the clock in the test's hand."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, Field

from tenure.contract.reports import Fail, LeaseTerms, Report, ReportReply
from tenure.executor import Context, Executor, TaskType
from tenure.executor.core.intake import Assignment
from tenure.executor.isolation.place import Place
from tenure.executor.isolation.sandbox import Sandbox
from tenure.executor.lease import Lease
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.pipeline import Pipeline
from tenure.executor.reports import Answer
from tenure.executor.work import Work
from tests.support.attempts import EXPIRES, HandClock, assignment


class In(BaseModel):
    text: str


class Out(BaseModel):
    text: str = Field(max_length=2000)
    weight: float = 0.0
    more: Any = None


ECHO = TaskType("echo", input=In, output=Out)

Handler = Callable[[Any, Context[Any]], Awaitable[BaseModel] | BaseModel]


class ScriptedReports:
    """Takes with a lease of 30 s, answers everything else with ``last``; keeps what was
    reported."""

    def __init__(self, clock: HandClock) -> None:
        self.sent: list[Report] = []
        self.input: object = {"text": "hello"}
        self.take = {"outcome": "applied", "remaining_seconds": 30.0, "expires_at": EXPIRES}
        self.last: dict[str, object] | Exception = {"outcome": "applied"}
        self.clock = clock

    async def send(self, report: Report) -> Answer:
        self.sent.append(report)
        if isinstance(self.last, Exception) and report.kind != "take":
            raise self.last
        fields = {} if isinstance(self.last, Exception) else self.last
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

    def __init__(
        self,
        handler: Handler,
        *,
        task_type: TaskType[Any, Any] = ECHO,
        place: Place | None = None,
        **options: Any,
    ) -> None:
        self.app = Executor("bench", version="1")
        self.app.task(task_type, **options)(handler)
        self._build(place)

    @classmethod
    def of(cls, app: Executor, place: Place | None = None) -> "Bench":
        """A node that runs ``app``."""
        made = cls.__new__(cls)
        made.app = app
        made._build(place)
        return made

    def _build(self, place: Place | None) -> None:
        self.clock = HandClock()
        self.reports = ScriptedReports(self.clock)
        self.renewals = Held()
        self.ended: list[str] = []
        metrics = self.metrics = ExecutorMetrics()
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
                sandbox=Sandbox(place or Place(), output_limit_bytes=4096),
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
