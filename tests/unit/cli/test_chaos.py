"""What ``tenure chaos`` submits, plans and finds wrong; without anything that runs."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.cli.chaos import books, storm, workload
from tenure.cli.chaos.books import AttemptOutcome, TaskOutcome
from tenure.cli.chaos.plan import Planned
from tenure.cli.exits import Exit, UsageError
from tenure.cli.main import run
from tests.support.chaos_apps import right

ATTEMPTS = (
    AttemptOutcome(1, "expired", "lease_expired", "executor-1", 2**32 + 1, True),
    AttemptOutcome(2, "delivered", None, "executor-2", 2**32 + 2, True),
)
TASK = TaskOutcome("t-1", "book", "idempotent", "delivered", None, {}, {"cents": 1}, ATTEMPTS)
LOST = replace(TASK, task_id="t-2", state="failed", reason="no", output=None, attempts=())


def test_examples_that_the_inputs_declare_are_submitted_in_turn() -> None:
    asked = workload.repeated(workload.of_examples(right), 3)
    assert [one.input["cents"] for one in asked] == [100, 250, 100]
    assert {one.type for one in asked} == {"book"}


def test_each_line_of_a_file_is_a_task(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"input": {"cents": 1}}\n\n{"type": "book", "input": {"cents": 2}}\n')
    assert [one.input["cents"] for one in workload.of_file(file, right)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 of .*is no JSON"),
        ("[]", "line 2 of .*is not written like"),
        ('{"input": {}, "key": 1}', "line 2 of .*is not written like"),
        ('{"type": "other", "input": {}}', "runs no 'other', it runs book"),
        ('{"input": {}}', "line 2 of .*is no Amount: cents"),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(f'{{"input": {{"cents": 1}}}}\n{line}\n')
    with pytest.raises(UsageError, match=said):
        workload.of_file(file, right)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seconds", "0"], "--seconds"),
        (["--slots", "0"], "--slots"),
        (["--tasks", "0"], "--tasks"),
        (["--type", "book"], "--type needs --data"),
        (["--data", '{"cents": "many"}'], "--data is no Amount"),
        (["--input", "x", "--data", "{}"], "--input says everything"),
        (["--check", "tests.support.chaos_apps:LEDGER"], "is no function"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["chaos", "--app", "tests.support.chaos_apps:right", *words]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_a_seed_is_a_plan_and_every_plan_interrupts_handlers() -> None:
    def planned(seed: int, seconds: float = 60.0) -> list[Planned]:
        return storm.plan(
            random.Random(seed), seconds=seconds, every_seconds=2.0, longest_seconds=8.0
        )

    assert planned(7) == planned(7) != planned(8)
    assert planned(7, seconds=0.0)[0].act == storm.Act.KILL_EXECUTOR
    acts = Counter(one.act for one in planned(7))
    assert acts.keys() == set(storm.Act), "a minute has some of each"


def test_tasks_that_ended_under_growing_tokens_are_right() -> None:
    assert books.judge([TASK, LOST], ["t-1", "t-2"]) == []


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (replace(TASK, state="open"), "has not ended"),
        (replace(TASK, state="held"), "is held without a reason"),
        (replace(TASK, attempts=ATTEMPTS[::-1]), "its tokens do not grow"),
        (replace(TASK, attempts=(ATTEMPTS[1], replace(ATTEMPTS[1], fencing_token=2**33))),
         "was delivered twice"),
        (replace(TASK, task_id="another"), "task t-1 was answered to its submitter"),
    ],
)  # fmt: skip
def test_each_fault_of_a_task_is_told_with_what_became_of_it(task: TaskOutcome, said: str) -> None:
    (fault,) = books.judge([task], ["t-1"])
    assert said in fault


async def test_a_check_counts_complains_or_fails() -> None:
    tasks = [TASK, LOST]

    async def twice(given: object) -> dict[str, int]:
        assert given == tasks
        return {"t-1": 2}

    verdict = await books.checked(twice, tasks)
    assert verdict.twice == {"book": "idempotent"}
    assert verdict.faults == [f"2 effects instead of one: {TASK}"]
    assert "attempt 1 on executor-1 under token 4294967297: expired (lease_expired)" in str(TASK)
    assert books.advice(verdict.twice)[0].startswith("'book' is declared idempotent")
    assert (await books.checked(lambda _: {"t-1": 1}, tasks)).faults == []
    assert "without its effect" in (await books.checked(lambda _: {"t-2": 1}, tasks)).faults[0]
    stranger = await books.checked(lambda _: {"t-1": 1, "x": 1}, tasks)
    assert stranger.faults == ["an effect of a task that nobody submitted: x"]
    assert (await books.checked(lambda _: None, tasks)).faults == []
    assert (await books.checked(lambda _: ["no"], tasks)).faults == ["the check says: no"]

    def assertive(_: object) -> None:
        raise AssertionError("7 rows")

    def broken(_: object) -> None:
        raise KeyError("rows")

    assert (await books.checked(assertive, tasks)).faults == ["the check says: 7 rows"]
    assert (await books.checked(broken, tasks)).faults == ["the check failed: KeyError: 'rows'"]
