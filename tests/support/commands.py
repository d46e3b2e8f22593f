"""The command ``tenure`` in this process, against a coordinator of the tests: as at a prompt,
without starting Python for each word. What it prints is kept apart from what others print."""

import asyncio
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from tenure.cli.exits import Exit
from tenure.cli.main import run
from tests.support.coordinator import Fleet

OPERATOR = "operator-token-0001"
_Said = tuple[io.StringIO, io.StringIO]
_SAID: ContextVar[_Said | None] = ContextVar("what a command prints", default=None)
_ONE_AT_A_TIME = threading.Lock()


async def tenure(api: Fleet, *words: str) -> tuple[int, str, str]:
    """A command by the operator: exit code, output, standard error. ``tenure_process`` for one that
    listens for signals, which no thread can."""
    return await asyncio.to_thread(_run, api.coordinator.url, words)


async def tenure_process(
    api: Fleet, *words: str, folder: Path | None = None
) -> tuple[int, str, str]:
    """The same as a process of its own, in this folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", *words,
        cwd=folder,
        env=kept | {"TENURE_URL": api.coordinator.url, "TENURE_TOKEN": OPERATOR},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def tenure_json(api: Fleet, *words: str) -> Any:
    """What a command that must succeed prints for programs."""
    code, out, err = await tenure(api, *words, "-o", "json")
    assert code == Exit.DONE, err
    return json.loads(out)


def _run(url: str, words: tuple[str, ...]) -> tuple[int, str, str]:
    said = io.StringIO(), io.StringIO()
    _SAID.set(said)  # for this thread and what it starts: a thread has a context of its own
    own = {"TENURE_URL": url, "TENURE_TOKEN": OPERATOR}
    with (
        _ONE_AT_A_TIME,
        mock.patch.dict(os.environ, own),
        _nothing_to_read(),
        redirect_stdout(_Stream("stdout")),
        redirect_stderr(_Stream("stderr")),
    ):
        code = run(words)
    return int(code), said[0].getvalue(), said[1].getvalue()


@contextmanager
def _nothing_to_read() -> Iterator[None]:
    with open(os.devnull, encoding="utf-8") as nothing, mock.patch.object(sys, "stdin", nothing):
        yield


class _Stream(io.TextIOBase):
    """A standard stream while a command runs. Who keeps it for longer writes to whatever is the
    standard stream then."""

    encoding = "utf-8"

    def __init__(self, name: Literal["stdout", "stderr"]) -> None:
        self._name = name
        self._others = getattr(sys, name)

    def write(self, text: str, /) -> int:
        """To the command's, or to the others' where it is not the command that writes."""
        said = _SAID.get()
        if said is not None:
            return said[self._name == "stderr"].write(text)
        now = getattr(sys, self._name)
        written: int = (self._others if now is self else now).write(text)
        return written
