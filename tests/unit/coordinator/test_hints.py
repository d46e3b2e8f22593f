"""Hints cover every commit, however many come while one is under way."""

import asyncio
from contextlib import suppress

import asyncpg

from tenure.coordinator.hints import Hints
from tests.support.waiting import eventually


async def test_commits_during_a_hint_are_covered_by_one_more() -> None:
    committed = 0
    covered: list[int] = []
    sending = asyncio.Semaphore(0)

    async def send() -> None:
        covered.append(committed)
        await sending.acquire()

    hints = Hints(send)
    running = asyncio.create_task(hints.run())
    try:
        for _ in range(5):
            committed += 1
            hints.on_commit([])

        async def sent(number: int) -> bool:
            return len(covered) == number

        await eventually(lambda: sent(1))
        for _ in range(5):
            committed += 1
            hints.on_commit([])
        sending.release()
        await eventually(lambda: sent(2))
        assert covered == [5, 10]
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_hint_that_fails_ends_nothing() -> None:
    sent = 0

    async def send() -> None:
        nonlocal sent
        sent += 1
        raise asyncpg.InterfaceError("the connection is closed")

    hints = Hints(send, failure_pause_seconds=0.0)
    running = asyncio.create_task(hints.run())
    try:

        async def again() -> bool:
            hints.on_commit([])
            return sent > 1

        await eventually(again)
        assert not running.done()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
