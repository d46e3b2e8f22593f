"""How far the demo is: a bar on a terminal, plain lines elsewhere. All on standard error."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_SECONDS = 5.0


class Shown(Protocol):
    """``total`` things, counted as they come."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def count(self, what: str, done: int) -> None:
        """``done`` of all are ``what`` (submitted, delivered)."""


def show_progress(total: int) -> Shown:
    """A bar or lines, as standard error is a terminal or not."""
    return _Bars(total) if sys.stderr.isatty() else _Lines(total)


class _Bars:
    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._total = total
        self._bars: dict[str, TaskID] = {}
        self._progress: Progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def count(self, what: str, done: int) -> None:
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=self._total)
        self._progress.update(self._bars[what], completed=done)


class _Lines:
    def __init__(self, total: int) -> None:
        self._total = total
        self._said_at: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def count(self, what: str, done: int) -> None:
        now = time.monotonic()
        if done < self._total and now - self._said_at.get(what, 0.0) < LINE_SECONDS:
            return
        self._said_at[what] = now
        print(f"{what} {done} of {self._total}", file=sys.stderr, flush=True)
