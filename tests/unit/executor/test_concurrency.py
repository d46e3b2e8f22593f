"""How many tasks of a type a node runs at once: declared, set, and kept to."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

import pytest
from pydantic import BaseModel

from tenure.contract.codes import Reason
from tenure.contract.ids import AttemptId, EventId, FencingToken, TaskId
from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.core.intake import Assignment
from tenure.executor.errors import DeclarationError
from tenure.executor.execution import Execution
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.runner import run_until
from tenure.executor.stopping import Stopping
from tenure.executor.work import Stayed, Work
from tenure.settings.errors import SettingsInvalid
from tests.support.waiting import eventually


class Nothing(BaseModel):
    """Input and output."""


async def handle(input: Nothing, context: Context[None]) -> Nothing:
    return input


def app(**concurrency: int) -> Executor:
    made = Executor("bench", version="1")
    for name in ("resize", "ocr"):
        task_type = TaskType(name, input=Nothing, output=Nothing)
        made.task(task_type, concurrency=concurrency.get(name))(handle)
    return made


def settings(concurrency: str) -> dict[str, object]:
    return {"token": "t" * 16, "no_broker": True, "concurrency": concurrency}


class Held:
    """A pipeline whose runs end when they are told to."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ran: list[str] = []
        self.may_end = asyncio.Semaphore(0)

    async def run(self, execution: Execution) -> None:
        name = execution.assignment.task_type
        self.ran.append(name)
        self.running[name] += 1
        self.most[name] = max(self.most[name], self.running[name])
        await self.may_end.acquire()
        self.running[name] -= 1

    async def reject(self, given: Assignment, reason: Reason) -> None:
        raise AssertionError

    async def acknowledge_cancel(self, given: Assignment) -> None:
        raise AssertionError


def assignment(name: str) -> Assignment:
    return Assignment(
        event_id=EventId(str(uuid4())),
        task_id=TaskId(str(uuid4())),
        attempt_id=AttemptId(str(uuid4())),
        task_type=name,
        fencing_token=FencingToken(2**32 + 1),
    )


def shown(metrics: ExecutorMetrics) -> dict[str, tuple[float | None, float | None]]:
    """By type, how many run and how many may, as Prometheus is told."""
    read = metrics.registry.get_sample_value

    def of(name: str) -> tuple[float | None, float | None]:
        labels = {"task_type": name}
        return (
            read("tenure_executor_running", labels),
            read("tenure_executor_concurrency", labels),
        )

    return {name: of(name) for name in ("resize", "ocr")}


async def test_no_more_of_a_type_run_than_it_says_and_others_do_not_wait_for_it() -> None:
    metrics = ExecutorMetrics()
    work = Work(
        app().handlers,
        slots=4,
        concurrency={"resize": 2},
        metrics=metrics,
        ended=lambda _: None,
    )
    held = Held()
    work.use(held)
    for _ in range(6):
        work.start(assignment("resize"))
    work.start(assignment("ocr"))
    await eventually(lambda: len(held.ran) == 3)
    assert Counter(held.ran) == {"resize": 2, "ocr": 1}, "the last one did not wait for the others"
    assert shown(metrics) == {"resize": (2, 2), "ocr": (1, 4)}
    for _ in range(7):
        held.may_end.release()
    await work.idle()
    assert Counter(held.ran) == {"resize": 6, "ocr": 1}
    assert shown(metrics) == {"resize": (0, 2), "ocr": (0, 4)}
    assert held.most["resize"] == 2


class Staying:
    """A pipeline whose handlers end when they like, and not when they are asked to."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ran = 0

    async def run(self, execution: Execution) -> None:
        self.ran += 1
        execution.handler = asyncio.create_task(self._stay())
        await asyncio.wait({execution.handler})

    async def _stay(self) -> None:
        while not self.may_end.is_set():
            with suppress(asyncio.CancelledError):
                await self.may_end.wait()

    async def reject(self, given: Assignment, reason: Reason) -> None:
        raise AssertionError

    async def acknowledge_cancel(self, given: Assignment) -> None:
        raise AssertionError


async def test_who_stays_keeps_its_slot_over_incarnations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.executor.work.LEAVING_SECONDS", 0.01)
    metrics = ExecutorMetrics()

    def incarnation(stayed: Sequence[Stayed]) -> Work:
        return Work(
            app().handlers,
            slots=3,
            concurrency={"resize": 1},
            metrics=metrics,
            ended=lambda _: None,
            stayed=stayed,
        )

    staying, held = Staying(), Held()
    first = incarnation(())
    first.use(staying)
    first.start(assignment("resize"))
    await eventually(lambda: staying.ran == 1)
    await first.abandon()
    second = incarnation(first.stayed)
    await second.abandon()
    assert [each.task_type for each in second.stayed] == ["resize"]
    work = incarnation(second.stayed)
    work.use(held)
    assert shown(metrics)["resize"] == (1, 1)
    for name in ("resize", "ocr", "ocr", "ocr"):
        work.start(assignment(name))
    await eventually(lambda: len(held.ran) == 2)
    assert held.ran == ["ocr", "ocr"], "one slot is taken, and the only one of its type"
    staying.may_end.set()
    await eventually(lambda: len(held.ran) == 3)
    assert held.ran[2] == "resize"
    for _ in range(4):
        held.may_end.release()
    await work.idle()
    assert shown(metrics) == {"resize": (0, 1), "ocr": (0, 3)}


@pytest.mark.parametrize("number", [0, -1, 100_001])
def test_a_concurrency_that_no_node_has_is_refused(number: int) -> None:
    with pytest.raises(DeclarationError, match=f"concurrency={number}"):
        app(resize=number)


@pytest.mark.parametrize("text", ["resize", "resize=", "resize=0", "resize=two", "resize=1.5"])
def test_a_setting_that_is_not_written_like_type_and_number_is_refused(text: str) -> None:
    with pytest.raises(SettingsInvalid, match="concurrency"):
        load_settings(**settings(text))


def test_the_setting_names_types_and_numbers() -> None:
    read = load_settings(**settings("resize=2, ocr=1"))
    assert read.concurrency_by_type == {"resize": 2, "ocr": 1}


async def test_a_setting_about_a_type_that_is_not_run_says_which_are() -> None:
    with pytest.raises(DeclarationError, match="'thumbnails'") as raised:
        await run_until(app(), load_settings(**settings("thumbnails=1")), Stopping(1.0))
    assert "ocr, resize" in str(raised.value.next_step)
