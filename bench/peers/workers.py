"""What the peers have in common: a worker process, and senders that block."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.records import FILE_VARIABLE
from tenure.cli.local import processes

URL_VARIABLE: Final = "BENCH_URL"
THREADS: Final = 8
STOP_SECONDS: Final = 20.0


@asynccontextmanager
async def worker(
    arguments: Sequence[str], *, url: str, records: Path, log: Path
) -> AsyncIterator[int]:
    """The pid of a running ``python -m ...``; it gets SIGTERM at the end. ``url``: its server's."""
    process = processes.spawn(
        [sys.executable, "-m", *arguments],
        log=log,
        environment=dict(os.environ) | {URL_VARIABLE: url, FILE_VARIABLE: str(records)},
        directory=Path.cwd(),
    )
    try:
        yield process.pid
    finally:
        process.terminate()
        if not await processes.ended(process, within_seconds=STOP_SECONDS):
            process.kill()
            process.wait()


class BlockingSender:
    """Calls a function that sends one task and blocks until the broker has it, in ``THREADS``
    threads: such clients keep a connection for each."""

    def __init__(self, send: Callable[[], object]) -> None:
        self._send = send
        self._threads = ThreadPoolExecutor(THREADS)

    async def send(self) -> None:
        """One task; returns once the broker has it."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._send)

    async def send_many(self, count: int) -> None:
        """All threads at once."""
        loop = asyncio.get_running_loop()
        shares = [(count + number) // THREADS for number in range(THREADS)]
        await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._several, share) for share in shares)
        )

    def _several(self, count: int) -> None:
        for _ in range(count):
            self._send()

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()
