"""``tenure executor MODULE:NAME --reload``: a new start whenever a source has changed. For the
people who write handlers, not for production.

The executor is a child. A change drains it: what runs goes on under renewals, up to the drain
limit, and the next start is another incarnation of the node. As long as a file is no Python, the
child that runs stays.
"""

import asyncio
import importlib.util
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from watchfiles import PythonFilter, awatch

from tenure.cli.applications import check_application
from tenure.cli.exits import UsageError
from tenure.cli.local import processes
from tenure.cli.local.interrupts import Interrupts

WATCH_MILLISECONDS: Final = 300
_TOLD: Final = "reload"


def sources(application: str) -> tuple[Path, Path]:
    """The folder in which a change counts, and the file of the module. The folder is the working
    directory where the module is below it, else that of its package or file.

    Raises UsageError when there is no such module. Nothing of it is imported, so that a file that
    cannot be does not matter yet.
    """
    top, *below = application.partition(":")[0].split(".")
    if not below:
        check_application(application)
    found = importlib.util.find_spec(top)
    if found is None:
        raise UsageError(f"there is no module {top!r} in {os.getcwd()} or on Python's path.")
    if found.submodule_search_locations:
        places = [Path(place).resolve() for place in found.submodule_search_locations]
        files = [_source(place.joinpath(*below)) for place in places]
        # The parts of a namespace may be in several places.
        folder, file = next(
            ((place, file) for place, file in zip(places, files, strict=True) if file.exists()),
            (places[0], files[0]),
        )
    else:
        file = Path(found.origin or top).resolve()
        folder = file.parent
    here = Path.cwd()
    return (here if folder.is_relative_to(here) else folder), file


def _source(module: Path) -> Path:
    return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")


class Syntax:
    """Which files are no Python at the moment."""

    def __init__(self) -> None:
        self._faults: dict[Path, str] = {}

    def look_at(self, files: Iterable[Path]) -> None:
        """Files that have changed, or are gone."""
        for file in files:
            self._faults.pop(file, None)
            try:
                compile(file.read_bytes(), file, "exec", dont_inherit=True)
            except OSError:
                continue  # it is gone
            except SyntaxError as error:
                self._faults[file] = f"{file}, line {error.lineno}: {error.msg}"
            except ValueError as error:  # like a byte that no source may hold
                self._faults[file] = f"{file}: {error}"

    @property
    def fault(self) -> str | None:
        """Of the first one; None: all can be read."""
        return next(iter(self._faults.values()), None)


class Reloading:
    """``words``: what follows ``tenure executor`` on the child's command line."""

    def __init__(self, application: str, words: Sequence[str]) -> None:
        self._folder, file = sources(application)
        self._words = (application, *words)
        self._syntax = Syntax()
        self._syntax.look_at([file])
        self._changed = asyncio.Event()
        self._watches = asyncio.Event()
        self._child: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Until SIGTERM or Ctrl-C, which drain the child; a second one hurries it."""
        with Interrupts() as interrupts:
            watching = asyncio.create_task(self._watch())
            beginning = asyncio.create_task(self._watches.wait())
            try:
                # What changes from the first start on is seen.
                await asyncio.wait({watching, beginning}, return_when=asyncio.FIRST_COMPLETED)
                while not interrupts.first.is_set():
                    self._changed.clear()
                    await self._turn(interrupts)
                    await self._something(interrupts, watching)
            finally:
                watching.cancel()
                beginning.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await self._end(interrupts)

    async def _turn(self, interrupts: Interrupts) -> None:
        """The sources are as they are now: run them, or say why not."""
        if self._syntax.fault is not None:
            goes_on = "the executor goes on as it was; " if self._runs else ""
            _say(f"{self._syntax.fault}; {goes_on}waiting for a change")
            return
        if self._runs:
            _say("a source has changed, draining the executor")
        await self._end(interrupts)
        if interrupts.first.is_set() or self._changed.is_set():
            return
        self._child = await asyncio.create_subprocess_exec(
            *processes.ended_with_parent(signal.SIGTERM),
            sys.executable, "-m", "tenure.cli", "executor", *self._words,
            env=_environment(os.environ),
            start_new_session=True,  # a Ctrl-C in the terminal is ours to pass on
        )  # fmt: skip

    async def _something(self, interrupts: Interrupts, watching: "asyncio.Task[None]") -> None:
        """Until a source changes or somebody wants it to end. An executor that has ended by itself
        waits for a change too."""
        child = self._child
        waits = {
            asyncio.create_task(self._changed.wait()),
            asyncio.create_task(interrupts.first.wait()),
        }
        ending = None if child is None else asyncio.create_task(child.wait())
        try:
            await asyncio.wait(
                {*waits, watching, *(() if ending is None else (ending,))},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if ending is not None and ending.done() and not interrupts.first.is_set():
                self._child = None
                if not self._changed.is_set():
                    _say(f"the executor ended with status {ending.result()}; waiting for a change")
                    await asyncio.wait({*waits, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            for task in (*waits, *(() if ending is None else (ending,))):
                task.cancel()

    async def _watch(self) -> None:
        """Every change from the first time on that this yields, also where nothing has changed."""
        async for changes in awatch(
            self._folder,
            watch_filter=PythonFilter(),
            yield_on_timeout=True,
            rust_timeout=WATCH_MILLISECONDS,
        ):
            self._watches.set()
            if changes:
                self._syntax.look_at(Path(path) for _, path in changes)
                self._changed.set()

    @property
    def _runs(self) -> bool:
        return self._child is not None and self._child.returncode is None

    async def _end(self, interrupts: Interrupts) -> None:
        """Drain the child, in its own time; hurry it when somebody asks a second time."""
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            child.terminate()
        ending = asyncio.create_task(child.wait())
        hurrying = asyncio.create_task(interrupts.second.wait())
        await asyncio.wait({ending, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            with suppress(ProcessLookupError):
                child.terminate()
        hurrying.cancel()
        await ending


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """A source that is changed twice within a second, to the same length, must not be taken for
    what was compiled before."""
    return {**environment, "PYTHONDONTWRITEBYTECODE": "1"}


def _say(words: str) -> None:
    print(f"{_TOLD}: {words}", file=sys.stderr, flush=True)
