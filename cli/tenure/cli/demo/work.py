"""The work itself: a task for each file, and what came of it."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from tenure.cli.demo.declarations import (
    FILE_CHANGED,
    FILE_VANISHED,
    FileIn,
    FileOut,
    HashFile,
    encode_path,
)
from tenure.cli.demo.files import FrozenFile
from tenure.cli.demo.progress import Shown, show_progress
from tenure.cli.together import together
from tenure.client import AsyncClient, AsyncTaskHandle, NotDelivered, ResultTimeout

WAITERS: Final = 32
"""Requests that wait for results at once."""


class Work:
    """The tasks of one frozen list of files.

    After ``run``: ``tasks`` were made, ``outputs`` are those of the delivered ones by path, and
    ``found_changed`` the paths whose tasks failed because the file had changed. ``deadline`` is a
    time of ``time.monotonic``.
    """

    def __init__(
        self, files: Sequence[FrozenFile], *, deadline: float, say: Callable[[str, str], None]
    ) -> None:
        self.tasks = 0
        self.outputs: dict[str, FileOut] = {}
        self.found_changed: set[str] = set()
        self._files = files
        self._deadline = deadline
        self._say = say

    async def run(self, url: str, token: str) -> None:
        """Submit every file and wait for every result, or until the deadline."""
        with show_progress(len(self._files)) as progress:
            async with AsyncClient(url, token) as client:
                handles = await self._submit(client, progress)
                await self._collect(handles, progress)
        self.tasks = len(handles)

    async def _submit(
        self, client: AsyncClient, progress: Shown
    ) -> dict[str, AsyncTaskHandle[FileOut]]:
        inputs = {
            encode_path(file.path): FileIn(
                path=encode_path(file.path),
                size_bytes=file.size_bytes,
                modified_nanoseconds=file.modified_nanoseconds,
            )
            for file in self._files
        }
        paths = list(inputs)
        handles: dict[str, AsyncTaskHandle[FileOut]] = {}
        for start in range(0, len(paths), 500):
            chunk = paths[start : start + 500]
            made = await client.submit_many(
                HashFile, [inputs[path] for path in chunk], idempotency_keys=_keys(chunk)
            )
            handles.update(zip(chunk, made, strict=True))
            progress.count("submitted", len(handles))
        return handles

    async def _collect(self, handles: dict[str, AsyncTaskHandle[FileOut]], progress: Shown) -> None:
        failures: list[str] = []
        left = iter(handles.items())

        async def wait() -> None:
            for path, handle in left:
                try:
                    seconds = max(0.0, self._deadline - time.monotonic())
                    self.outputs[path] = await handle.result(timeout=seconds)
                except (NotDelivered, ResultTimeout) as error:
                    if getattr(error, "reason", None) in (FILE_CHANGED, FILE_VANISHED):
                        self.found_changed.add(path)
                    failures.append(f"{path}: {error}")
                progress.count("delivered", len(self.outputs))

        await together(*(wait() for _ in range(WAITERS)))
        for failure in failures[:5]:
            self._say("demo", failure)
        if len(failures) > 5:
            self._say("demo", f"and {len(failures) - 5} more that were not delivered")


def _keys(paths: Sequence[str]) -> list[str]:
    """An idempotency key for each path: whoever submits the same file again gets the same task."""
    return [f"demo/{hashlib.sha256(path.encode()).hexdigest()}" for path in paths]
