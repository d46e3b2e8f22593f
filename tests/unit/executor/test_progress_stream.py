"""What handlers say of their progress: whatever it is, it harms nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenure.contract.ids import IncarnationId, NodeId
from tenure.contract.progress import ProgressReplies, ProgressReply, ProgressReports
from tenure.executor.errors import CoordinatorUnavailable
from tenure.executor.lease import Lease
from tenure.executor.patience import Condition
from tenure.executor.progress import ProgressStream
from tests.support.attempts import lease, new_id
from tests.support.waiting import eventually


class Told:
    """A coordinator that records everything."""

    def __init__(self) -> None:
        self.requests: list[ProgressReports] = []

    async def tell_progress(self, node_id: NodeId, reports: ProgressReports) -> ProgressReplies:
        self.requests.append(ProgressReports.model_validate_json(reports.model_dump_json()))
        return ProgressReplies(
            replies=tuple(
                ProgressReply(attempt_id=each.attempt_id, outcome="recorded")
                for each in reports.progress
            )
        )


@asynccontextmanager
async def streaming(told: Told) -> AsyncIterator[ProgressStream]:
    stream = ProgressStream(
        told,
        node_id=NodeId("node-1"),
        incarnation=IncarnationId(new_id()),
        condition=Condition("the coordinator"),
    )
    running = asyncio.create_task(stream.run())
    try:
        yield stream
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Away(Told):
    """One that does not answer the first request, and ends the lease of whoever asked."""

    def __init__(self, given: Lease) -> None:
        super().__init__()
        self.given = given

    async def tell_progress(self, node_id: NodeId, reports: ProgressReports) -> ProgressReplies:
        if self.given.may_act():
            self.given.end("its time is up")
            raise CoordinatorUnavailable("no answer")
        return await super().tell_progress(node_id, reports)


async def test_progress_whose_attempt_is_over_is_dropped_and_the_stream_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.executor.progress.jitter_seconds", lambda failures: 0.0)
    over, live = lease(), lease()
    told = Away(over)
    async with streaming(told) as stream:
        stream.note(over, 0.5, None)
        await eventually(lambda: not over.may_act())
        for _ in range(10):  # turns of the loop: nothing is left to be told
            await asyncio.sleep(0)
        stream.note(live, 0.5, None)
        await eventually(lambda: bool(told.requests))
    (progress,) = told.requests[0].progress
    assert progress.attempt_id == live.attempt_id


@pytest.mark.parametrize(
    ("said", "told_as"),
    [
        ((0.5, "\ud800"), (0.5, "?")),
        ((0.5, "a\x00b"), (0.5, "a\N{REPLACEMENT CHARACTER}b")),
        ((7, "x" * 1000), (1.0, "x" * 500)),
        ((float("nan"), 5), (0.0, "5")),
        ((None, b"bytes"), (None, "b'bytes'")),
    ],
)
async def test_whatever_is_said_is_told_and_the_stream_goes_on(
    said: tuple[Any, Any], told_as: tuple[float | None, str]
) -> None:
    told = Told()
    async with streaming(told) as stream:
        stream.note(lease(), *said)
        await eventually(lambda: bool(told.requests))
        await stream.save(lease(), {"row": 1})
    (first,) = told.requests[0].progress
    assert (first.fraction, first.message) == told_as


async def test_a_fraction_that_is_no_number_is_the_callers_fault() -> None:
    async with streaming(Told()) as stream:
        with pytest.raises(ValueError, match="could not convert"):
            stream.note(lease(), "much", None)  # type: ignore[arg-type] # as untyped code may
        with pytest.raises(TypeError):
            stream.note(lease(), [], None)  # type: ignore[arg-type] # the same


async def test_many_large_checkpoints_go_in_several_requests() -> None:
    told = Told()
    async with streaming(told) as stream:
        await asyncio.gather(*(stream.save(lease(), "é" * 30_000) for _ in range(100)))
    sizes = [len(request.model_dump_json()) for request in told.requests]
    assert max(sizes) < 2_000_000
    assert sum(len(request.progress) for request in told.requests) == 100


async def test_however_often_a_thread_says_it_the_loop_is_called_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, given, calls = Told(), lease(), 0
    loop = asyncio.get_running_loop()
    call = loop.call_soon_threadsafe

    def counted(*arguments: Any, **options: Any) -> asyncio.Handle:
        nonlocal calls
        calls += 1
        return call(*arguments, **options)

    async with streaming(told) as stream:
        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        for row in range(1000):  # the loop does not look meanwhile
            stream.note(given, row / 1000, None)
        stream.note(given, None, "nearly done")
        monkeypatch.undo()
        await eventually(lambda: bool(told.requests))
    assert calls == 1
    (progress,) = told.requests[0].progress
    assert (progress.fraction, progress.message) == (0.999, "nearly done")
