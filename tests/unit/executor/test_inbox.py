"""The inbox survives its process, and its loss is survived."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from tenure.contract.ids import IncarnationId, NodeId
from tenure.executor.errors import InboxUnavailable
from tenure.executor.inbox import Inbox, inbox_path
from tests.support.attempts import assignment, new_id

WEEK_SECONDS = 7 * 86_400.0


class Opened:
    """An inbox, and how often it said that its file was lost."""

    def __init__(
        self, path: Path, *, retention_seconds: float = WEEK_SECONDS, keep: bool = True
    ) -> None:
        self.replaced = 0
        self.inbox = Inbox(
            path, retention_seconds=retention_seconds, on_replaced=self._count, keep=keep
        )

    def _count(self) -> None:
        self.replaced += 1


@asynccontextmanager
async def opened(
    path: Path, *, retention_seconds: float = WEEK_SECONDS, keep: bool = True
) -> AsyncIterator[Opened]:
    made = Opened(path, retention_seconds=retention_seconds, keep=keep)
    made.inbox.start()
    try:
        yield made
    finally:
        await made.inbox.stop(10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return inbox_path(tmp_path / "state", NodeId("n"))


def states(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("select attempt_id, state from inbox"))


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.requirement("EVENT-03")
async def test_the_same_event_and_the_same_attempt_are_new_once(path: Path) -> None:
    here = IncarnationId(new_id())
    given, other = assignment(), assignment()
    async with opened(path) as o:
        assert await o.inbox.store([given, other], here) == [True, True]
        assert await o.inbox.store([given], here) == [False]
        again = assignment()
        same_attempt = [
            type(given)(
                event_id=again.event_id,
                task_id=given.task_id,
                attempt_id=given.attempt_id,
                fencing_token=given.fencing_token,
                task_type=given.task_type,
            )
        ]
        assert await o.inbox.store(same_attempt, here) == [False]


async def test_a_second_copy_within_one_batch_is_not_new(path: Path) -> None:
    given = assignment()
    async with opened(path) as o:
        assert await o.inbox.store([given, given], IncarnationId(new_id())) == [True, False]


async def test_what_an_older_incarnation_left_is_abandoned(path: Path) -> None:
    old, new = IncarnationId(new_id()), IncarnationId(new_id())
    left, ended, fresh = assignment(), assignment(), assignment()
    async with opened(path) as o:
        await o.inbox.store([left, ended], old)
        o.inbox.close_attempt(ended.attempt_id)
    async with opened(path) as o:
        o.inbox.begin(new)
        await o.inbox.store([fresh], new)
    assert states(path) == {
        left.attempt_id: "abandoned",
        ended.attempt_id: "ended",
        fresh.attempt_id: "received",
    }


async def test_many_writers_at_once_share_batches_and_get_their_own_answers(path: Path) -> None:
    here = IncarnationId(new_id())
    given = [assignment() for _ in range(300)]
    async with opened(path) as o:
        answers = await asyncio.gather(*(o.inbox.store([each, each], here) for each in given))
    assert answers == [[True, False]] * 300


async def test_ended_rows_go_when_no_message_can_come_back(path: Path) -> None:
    here = IncarnationId(new_id())
    given, open_one = assignment(), assignment()
    async with opened(path) as o:
        await o.inbox.store([given, open_one], here)
        o.inbox.close_attempt(given.attempt_id)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update inbox set ended_at = ended_at - 3600 where ended_at is not null")
        connection.commit()
    async with opened(path, retention_seconds=600) as o:
        o.inbox.begin(here)
        await o.inbox.store([assignment()], here)
    assert given.attempt_id not in states(path)
    assert states(path)[open_one.attempt_id] == "received"


async def test_a_broken_file_is_kept_aside_and_a_new_one_begun(path: Path) -> None:
    put(path, b"this is no database" * 1000)
    async with opened(path) as o:
        assert await o.inbox.store([assignment()], IncarnationId(new_id())) == [True]
        assert o.replaced == 1
    assert len(states(path)) == 1
    kept = list(path.parent.glob("*.broken-*"))
    assert [each.read_bytes()[:7] for each in kept] == [b"this is"]


async def test_a_file_of_another_kind_is_kept_aside(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table inbox (something text)")
    async with opened(path) as o:
        assert await o.inbox.store([assignment()], IncarnationId(new_id())) == [True]
        assert o.replaced == 1


async def test_a_file_that_was_deleted_while_in_use_is_begun_anew(path: Path) -> None:
    here = IncarnationId(new_id())
    given = assignment()
    async with opened(path) as o:
        await o.inbox.store([given], here)
        remove(path)
        assert await o.inbox.store([given], here) == [True]
        assert o.replaced == 1
    assert list(states(path)) == [given.attempt_id]


async def test_nothing_may_be_acknowledged_while_the_file_cannot_be_written(
    tmp_path: Path,
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    path = inbox_path(blocked / "state", NodeId("n"))
    here = IncarnationId(new_id())
    async with opened(path) as o:
        with pytest.raises(InboxUnavailable, match="TENURE_STATE_DIR"):
            await o.inbox.store([assignment()], here)
        blocked.unlink()
        assert await o.inbox.store([assignment()], here) == [True]
        assert o.replaced == 0


async def test_a_made_up_names_file_goes_at_the_end_and_old_leftovers_at_the_start(
    path: Path,
) -> None:
    leftover = inbox_path(path.parent, NodeId("killed"))
    recent = inbox_path(path.parent, NodeId("running"))
    path.parent.mkdir()
    for each in (leftover, recent):
        each.touch()
    os.utime(leftover, (0, 0))
    async with opened(path, keep=False) as o:
        await o.inbox.store([assignment()], IncarnationId(new_id()))
        assert len(list(path.parent.iterdir())) > 1
    assert [each.name for each in path.parent.iterdir()] == [recent.name]


KILLED = """
import asyncio, os, sys
from pathlib import Path
from tenure.contract.ids import *
from tenure.executor.core.intake import Assignment
from tenure.executor.inbox import Inbox

async def main():
    inbox = Inbox(Path(sys.argv[1]), retention_seconds=1e6, on_replaced=lambda: None)
    inbox.start()
    n = 0
    while True:
        ids = [f"{sys.argv[2]}-{n}-{i}" for i in range(10)]
        await inbox.store(
            [Assignment(EventId(i), TaskId(i), AttemptId(i), FencingToken(2**32 + 1), "t")
             for i in ids], IncarnationId("i"))
        print("\\n".join(ids), flush=True)
        n += 1

asyncio.run(main())
"""


@pytest.mark.requirement("OPS-01")
def test_what_was_stored_survives_a_kill_at_any_instant(path: Path) -> None:
    for round_ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(path), str(round_)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = [process.stdout.readline().strip() for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
        process.stdout.close()
        process.wait()
        said = {line for line in [*first, *rest[:-1]] if line}
        assert said <= set(states(path))
