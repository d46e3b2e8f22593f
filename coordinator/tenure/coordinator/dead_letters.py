"""Takes what came back from the dead-letter queue, records it, and only then lets it go.

While the database is away, or the authority in doubt, nothing is acknowledged: what was delivered
waits here, bounded by the prefetch, and the rest on the broker.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog
from aio_pika.abc import AbstractIncomingMessage
from aiormq.exceptions import AMQPError

from tenure.contract.codec import decode_event
from tenure.contract.errors import UndecodableEvent
from tenure.contract.events import EVENT_ID_HEADER
from tenure.coordinator.errors import Unavailable
from tenure.coordinator.store.dead_letters import CameBack

log = structlog.get_logger()

PREFETCH: Final = 50
MAX_BODY_BYTES: Final = 1024 * 1024
"""What is larger is no event of ours: of it only the size is kept."""
_DEATHS: Final = frozenset({"rejected", "expired", "maxlen", "delivery_limit"})
"""Reasons that a broker gives; anybody may write others into a message."""
_MAX_WORD: Final = 255
_REPEAT_CAP_SECONDS: Final = 5.0


class DeadLetterBox:
    """``take`` is given to the broker as the consumer of the dead-letter queue; ``run`` records."""

    def __init__(
        self,
        record: Callable[[Sequence[CameBack]], Awaitable[bool]],
        *,
        on_recorded: Callable[[str], None],
    ) -> None:
        """``on_recorded`` is told the reason of each message that came back."""
        self._record = record
        self._on_recorded = on_recorded
        self._waiting: list[AbstractIncomingMessage] = []
        self._due = asyncio.Event()

    async def take(self, message: AbstractIncomingMessage) -> None:
        """A message that a queue gave up."""
        self._waiting.append(message)
        self._due.set()

    async def run(self) -> None:
        """Record what comes, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            messages, self._waiting = self._waiting, []
            if messages:
                await self._keep(messages)

    async def _keep(self, messages: Sequence[AbstractIncomingMessage]) -> None:
        letters = [came_back(message) for message in messages]
        await self._recorded(letters)
        for message, letter in zip(messages, letters, strict=True):
            self._on_recorded(letter.reason)
            log.warning(
                "message came back undelivered",
                event_id=letter.event_id,
                task_id=letter.task_id,
                queue=letter.queue,
                reason=letter.reason,
            )
            # Of a connection that was lost meanwhile: it comes again, and is known.
            try:
                await message.ack()
            except (AMQPError, OSError, RuntimeError, TimeoutError):
                pass
            except Exception as error:
                # aiormq ends what waits for a written frame with an Exception of no class.
                if type(error) is not Exception:
                    raise

    async def _recorded(self, letters: Sequence[CameBack]) -> None:
        pause = 0.2
        while True:
            with suppress(Unavailable):
                if await self._record(letters):
                    return
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_REPEAT_CAP_SECONDS, 2 * pause)


def came_back(message: AbstractIncomingMessage) -> CameBack:
    """What is to be kept of a message. Nothing in it is trusted."""
    deaths = message.headers.get("x-death")
    death = deaths[0] if isinstance(deaths, list) and deaths else None
    said = death if isinstance(death, dict) else {}
    reason = str(said.get("reason"))
    tenant = task_id = event_type = None
    event_id = _word(message.headers.get(EVENT_ID_HEADER))
    with suppress(UndecodableEvent):
        event = decode_event(message.body)
        event_id, tenant, task_id = event.event_id, event.tenant, event.task_id
        event_type = event.type
    return CameBack(
        queue=_word(said.get("queue")) or "unknown",
        event_id=event_id or f"sha256:{hashlib.sha256(message.body).hexdigest()}",
        tenant=tenant,
        task_id=task_id,
        event_type=event_type,
        reason=reason if reason in _DEATHS else "unknown",
        message_id=_word(message.message_id),
        body_bytes=len(message.body),
        body=message.body if len(message.body) <= MAX_BODY_BYTES else None,
    )


def _word(value: object) -> str:
    """A header as text that can be stored."""
    return "" if value is None else str(value).replace("\0", "\ufffd")[:_MAX_WORD]
