"""A dead letter is acknowledged when it is recorded, and not before."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aio_pika.abc import AbstractIncomingMessage

from tenure.coordinator.dead_letters import DeadLetterBox, came_back
from tenure.coordinator.errors import Unavailable
from tenure.coordinator.store.dead_letters import CameBack


@dataclass
class Message:
    """What the box uses of a message."""

    body: bytes = b"x"
    headers: dict[str, Any] = field(default_factory=dict)
    message_id: str | None = None
    done: list[str] = field(default_factory=list)
    acked: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False

    async def ack(self) -> None:
        self.done.append("acked")
        self.acked.set()
        if self.lost:
            raise RuntimeError("the channel is closed")


async def test_a_message_goes_when_it_is_recorded_whatever_the_database_does_before() -> None:
    answers: list[bool | Exception] = [Unavailable("away"), False, True]
    message = Message()

    async def record(letters: Sequence[CameBack]) -> bool:
        message.done.append(f"asked about {len(letters)}")
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reasons: list[str] = []
    box = DeadLetterBox(record, on_recorded=reasons.append)
    running = asyncio.create_task(box.run())
    await box.take(cast(AbstractIncomingMessage, message))
    await message.acked.wait()
    assert message.done == ["asked about 1"] * 3 + ["acked"]
    assert reasons == ["unknown"]
    running.cancel()


async def test_a_lost_connection_ends_nothing() -> None:
    async def record(_: Sequence[CameBack]) -> bool:
        return True

    box = DeadLetterBox(record, on_recorded=lambda _: None)
    running = asyncio.create_task(box.run())
    for message in (Message(lost=True), Message()):
        await box.take(cast(AbstractIncomingMessage, message))
        await message.acked.wait()
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-death": None}, {"x-death": []}, {"x-death": ["x"]}, {"x-death": [{"reason": 3}]}],
)
def test_odd_headers_say_nothing(headers: dict[str, Any]) -> None:
    found = came_back(cast(AbstractIncomingMessage, Message(headers=headers)))
    assert (found.queue, found.reason, found.message_id) == ("unknown", "unknown", "")
