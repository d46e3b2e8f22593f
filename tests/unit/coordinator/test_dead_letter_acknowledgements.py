"""A connection that goes under the acknowledgement of a dead letter."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from tenure.coordinator.dead_letters import DeadLetterBox
from tenure.coordinator.store.dead_letters import CameBack


async def test_a_bare_exception_of_the_library_does_not_end_the_recording() -> None:
    """aiormq ends what waits for a written frame with an Exception of no class of its own."""
    recorded: asyncio.Queue[CameBack] = asyncio.Queue()

    async def record(letters: Sequence[CameBack]) -> bool:
        for letter in letters:
            recorded.put_nowait(letter)
        return True

    async def ack() -> None:
        raise Exception

    box = DeadLetterBox(record, on_recorded=lambda reason: None)
    running = asyncio.create_task(box.run())
    message = cast(Any, SimpleNamespace(headers={}, body=b"x", message_id="m", ack=ack))
    for _ in range(2):
        await box.take(message)
        await recorded.get()
    running.cancel()
