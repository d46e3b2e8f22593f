"""What is measured side by side, and how to wait for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.records import Reader

LOOK_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 180.0


@dataclass(frozen=True)
class Side:
    """How to use one of those that are compared.

    ``file`` has the records of its handlers. ``settled`` returns once nothing is left to do.
    ``servers``: processes that others use as well; ``own``: those that work for no other.
    """

    name: str
    file: Path
    send_one: Callable[[], Awaitable[object]]
    send_many: Callable[[int], Awaitable[object]]
    settled: Callable[[], Awaitable[None]]
    servers: Mapping[str, int]
    own: Mapping[str, int]

    @property
    def pids(self) -> dict[str, int]:
        """All processes that work for it."""
        return {**self.servers, **self.own}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until it holds. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110 - other processes make it hold
            await asyncio.sleep(LOOK_SECONDS)


async def all_handled(reader: Reader, tasks: int) -> None:
    """Wait for that many records; other processes write them. Raises TimeoutError."""

    async def there() -> bool:
        return reader.count() >= tasks

    await until(there)


async def nothing_kept() -> None:
    """What is ``settled`` for a peer: it keeps nothing that could still change."""
