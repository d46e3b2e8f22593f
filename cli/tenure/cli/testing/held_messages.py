"""Messages held between the broker and those that they are for.

A queue keeps its order, but not what it delivers: a message that a consumer gives back comes again,
after what came later. So a consumer of a higher priority takes what is in a queue first, keeps one
message unsettled, and gives it back when it is late enough. It is the broker's own redelivery: the
bytes, their queue and whom they are for are untouched.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractIncomingMessage,
    AbstractQueue,
)

FIRST: Final[dict[str, Any]] = {"x-priority": 10}
"""Before every consumer that says nothing about it."""


class HeldBack:
    """Takes from ``queues`` until one message is ``wanted``, and keeps that: ``caught``. Use it as
    ``async with``; whatever is held at the end goes where it was going."""

    def __init__(self, url: str, queues: Sequence[str], wanted: Callable[[bytes], bool]) -> None:
        self.caught: bytes | None = None
        self._url = url
        self._names = queues
        self._wanted = wanted
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._queues: list[tuple[AbstractQueue, str]] = []
        self._kept: AbstractIncomingMessage | None = None
        self._others: list[AbstractIncomingMessage] = []
        self._lets_pass = False

    async def __aenter__(self) -> Self:
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel(publisher_confirms=False)
        await self._consume()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._connection is not None
        await self._connection.close()  # what is unsettled is given back

    @property
    def holds_others(self) -> bool:
        """Whether somebody else's messages wait here."""
        return bool(self._others)

    async def let_others_pass(self) -> None:
        """Give back what is not wanted. Once something is caught, nothing is taken any more; before
        that nothing that is wanted may be published meanwhile."""
        self._lets_pass = True
        for queue, tag in self._queues:
            await queue.cancel(tag)
        others, self._others = self._others, []
        for message in others:
            await message.nack(requeue=True)
        if self.caught is None:
            self._lets_pass = False
            await self._consume()

    async def let_go(self) -> None:
        """Give back what was caught."""
        assert self._kept is not None
        await self._kept.nack(requeue=True)

    async def _consume(self) -> None:
        assert self._channel is not None
        self._queues = []
        for name in self._names:
            queue = await self._channel.get_queue(name, ensure=False)
            self._queues.append((queue, await queue.consume(self._take, arguments=FIRST)))

    async def _take(self, message: AbstractIncomingMessage) -> None:
        if self.caught is None and self._wanted(message.body):
            self.caught, self._kept = message.body, message
        elif self._lets_pass:
            await message.nack(requeue=True)
        else:
            self._others.append(message)
