"""The demo from start to end: a stack of its own, the tasks, the comparison."""

import hashlib
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tenure.cli.demo import downstream
from tenure.cli.demo.check import Report, compare, compute_directly
from tenure.cli.demo.declarations import FileIn, FileOut, HashFile, encode_path
from tenure.cli.demo.files import FrozenFile
from tenure.cli.demo.hasher import DATABASE_VARIABLE
from tenure.cli.demo.progress import Shown, show_progress
from tenure.cli.local.interrupts import Interrupts
from tenure.cli.local.stack import ExecutorSpec, Stack
from tenure.cli.together import together
from tenure.client import AsyncClient, NotDelivered, ResultTimeout, TaskHandle

APPLICATION: Final = "tenure.cli.demo.hasher:app"
WAITERS: Final = 32
"""Requests that wait for results at once."""


class Demo:
    """One run over a frozen list of files. ``report`` is set when it came to its end."""

    def __init__(
        self,
        files: Sequence[FrozenFile],
        *,
        executors: int,
        slots: int,
        limit_seconds: float,
        began: float,
    ) -> None:
        self.report: Report | None = None
        self._files = files
        self._limit_seconds = limit_seconds
        self._began = began
        self._password = secrets.token_hex(16)
        self.directory = Path(tempfile.mkdtemp(prefix="tenure-demo-"))
        self.stack = Stack(
            self.directory,
            [
                ExecutorSpec(f"hasher-{number}", APPLICATION, slots, self._downstream_url)
                for number in range(1, executors + 1)
            ],
            say=_say,
            prepare=self._prepare,
        )
        self._writer_url = ""

    def _downstream_url(self) -> dict[str, str]:
        return {DATABASE_VARIABLE: self._writer_url}

    async def _prepare(self) -> None:
        self._writer_url = await downstream.prepare(self.stack.postgres, self._password)

    async def run(self) -> None:
        """Start the stack, do the work, compare. The caller stops the stack."""
        _say("demo", f"{len(self._files)} files; the stack starts in {self.directory}")
        await self.stack.start()
        connection = self.stack.connection()
        token = connection.tokens["application"]
        with show_progress(len(self._files)) as progress:
            async with AsyncClient(connection.url, token) as client:
                handles = await self._submit(client, progress)
                outputs = await self._collect(handles, progress)
        _say("demo", "comparing every row with a direct computation")
        direct = await compute_directly(self._files)
        written = await downstream.read(self.stack.postgres)
        self.report = compare(
            self._files,
            direct,
            written,
            outputs,
            tasks=len(handles),
            seconds=time.monotonic() - self._began,
        )

    async def _submit(self, client: AsyncClient, progress: Shown) -> dict[str, TaskHandle[FileOut]]:
        paths = [encode_path(file.path) for file in self._files]
        handles: dict[str, TaskHandle[FileOut]] = {}
        for start in range(0, len(paths), 500):
            chunk = paths[start : start + 500]
            made = await client.submit_many(
                HashFile, [FileIn(path=path) for path in chunk], idempotency_keys=_keys(chunk)
            )
            handles.update(zip(chunk, made, strict=True))
            progress.count("submitted", len(handles))
        return handles

    async def _collect(
        self, handles: dict[str, TaskHandle[FileOut]], progress: Shown
    ) -> dict[str, FileOut]:
        """The outputs of the tasks that were delivered, by path."""
        outputs: dict[str, FileOut] = {}
        failures: list[str] = []
        left = iter(handles.items())
        deadline = self._began + self._limit_seconds

        async def wait() -> None:
            for path, handle in left:
                try:
                    seconds = max(0.0, deadline - time.monotonic())
                    outputs[path] = await handle.result(timeout=seconds)
                except (NotDelivered, ResultTimeout) as error:
                    failures.append(f"{path}: {error}")
                progress.count("delivered", len(outputs))

        await together(*(wait() for _ in range(WAITERS)))
        for failure in failures[:5]:
            _say("demo", failure)
        if len(failures) > 5:
            _say("demo", f"and {len(failures) - 5} more that were not delivered")
        return outputs


async def run_demo(demo: Demo, *, keep: bool) -> Report | None:
    """Run it and end its stack, whatever happens. None when a signal came first.

    The stack's folder is removed, unless ``keep`` asks for it or something was not as it should.
    """
    finished = False
    with Interrupts() as interrupts:
        try:
            finished = await interrupts.unless_first(demo.run())
        finally:
            await demo.stack.stop(interrupts.second)
            interrupted = interrupts.first.is_set() and not finished
            good = demo.report is not None and demo.report.ok
            if keep or not (good or interrupted):
                _say("demo", f"data and logs are kept in {demo.directory}")
                if keep:
                    _say("demo", f"look around: tenure up --state-dir {demo.directory}")
            else:
                shutil.rmtree(demo.directory, ignore_errors=True)
    return demo.report if finished else None


def _keys(paths: Sequence[str]) -> list[str]:
    """An idempotency key for each path: whoever submits the same file again gets the same task."""
    return [f"demo/{hashlib.sha256(path.encode()).hexdigest()}" for path in paths]


def _say(name: str, words: str) -> None:
    for line in words.splitlines():
        print(f"{name}: {line}", file=sys.stderr, flush=True)
