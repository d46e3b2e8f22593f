"""What `tenure outbox replay` shows while a replay is under way, and how it ends (REPLAY-01)."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tenure.cli import replay
from tenure.cli.exits import CommandError
from tenure.client import AsyncClient
from tenure.contract.replay import ReplayDetail, ReplayFilter, ReplayView
from tenure.contract.states import ReplayPause, ReplayState

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
RUNNING = ReplayView(
    replay_id="r", queue="ledger", filter=ReplayFilter(), rate=10, forced=False,
    state=ReplayState.RUNNING, pause_code=None, pause_detail=None, from_position=1, to_position=9,
    position=0, replayed=0, held_back=0, expected=9, expected_exactly=True, waits_for_live=False,
    relay=None, reason="why", created_by="ops", created_at=NOW, moved_at=NOW, ended_at=None,
)  # fmt: skip


def seen(**changes: Any) -> ReplayView:
    return RUNNING.model_copy(update=changes)


COMPLETED = seen(state=ReplayState.COMPLETED, position=9, replayed=8, held_back=1)
PAUSED = seen(
    state=ReplayState.PAUSED, pause_code=ReplayPause.QUEUE_MISSING, pause_detail="ledger: none"
)


class Script:
    """A client that tells one state after the other."""

    def __init__(self, *states: ReplayView) -> None:
        self._states: Iterator[ReplayView] = iter(states)

    async def replay_detail(self, replay_id: str) -> ReplayDetail:
        return ReplayDetail(replay=next(self._states), history=())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "LOOK_SECONDS", 0.0)


async def watch(output: Any, *states: ReplayView) -> None:
    await replay._watch(cast(AsyncClient, Script(*states)), RUNNING, output)


@pytest.mark.requirement("REPLAY-01")
async def test_a_terminal_shows_how_many_rows_of_how_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    await watch("table", seen(replayed=4), COMPLETED)
    out, err = capsys.readouterr()
    assert "9/9" in err
    assert out == "r: completed, 8 of 9 rows, 1 left out: their streams are held\n"


async def test_json_has_a_line_for_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    await watch("json", RUNNING, seen(replayed=4), seen(replayed=4), COMPLETED)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["state"], line["replayed"]) for line in lines] == [
        ("running", 0), ("running", 4), ("completed", 8),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (PAUSED, "replay_paused", "queue_missing: ledger: none"),
        (seen(state=ReplayState.CANCELLED), "replay_cancelled", "cancelled"),
    ],
)
async def test_a_replay_that_stands_or_was_cancelled_is_no_success(
    end: ReplayView, code: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandError, match=said) as caught:
        await watch("table", end)
    assert caught.value.code == code
    assert capsys.readouterr().out.startswith("r: ")


async def test_a_replay_that_waits_for_the_live_stream_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    await watch("table", seen(waits_for_live=True), COMPLETED)
    assert capsys.readouterr().err.startswith("r: running, 0 of 9 rows")
    said = replay._state(seen(waits_for_live=True))
    assert said == "running: waits for what is not published so far"
