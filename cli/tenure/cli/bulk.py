"""One word about many tasks: counted first, said at a rate, stopped between two tasks.

What is matched is settled before anything is said: tasks that come later are left alone. The
coordinator says the word, some tasks a request, and every word is safe to repeat: a run that was
stopped, or lost its coordinator, is simply run again.
"""

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import CommandError, UsageError
from tenure.cli.instants import read_past
from tenure.cli.local.interrupts import Interrupts
from tenure.cli.output import Output, print_json
from tenure.contract.bulk import BulkRequest, BulkVerb, TaskFilter
from tenure.contract.errors import TenureError
from tenure.contract.ids import TASK_TYPE_PATTERN
from tenure.contract.states import Phase, TaskState

if TYPE_CHECKING:
    from tenure.client import AsyncClient

PAGE: Final = 100
"""Tasks of a request, so that other callers of the coordinator notice little."""


@Parameter(name="*")
@dataclass(frozen=True)
class Many:
    """Which tasks, in place of one, and how fast."""

    filter: Annotated[
        str | None,
        Parameter(
            name="--filter", help="All tasks like state=held,type=resize,phase=P,older-than=2h."
        ),
    ] = None
    rate: Annotated[float | None, Parameter(help="With --filter: at most so many a second.")] = None
    yes: Annotated[bool, Parameter(negative="", help="With --filter: do not ask first.")] = False


@dataclass(frozen=True)
class Word:
    """What is said about each task."""

    verb: BulkVerb
    reason: str | None = None
    digest: str | None = None

    def request(self, query: TaskFilter, **more: Any) -> BulkRequest:
        """A request about the tasks of ``query``. Raises UsageError."""
        said = {"reason": self.reason, "digest": self.digest}
        try:
            return BulkRequest(
                verb=self.verb,
                filter=query,
                **{name: value for name, value in said.items() if value is not None},
                **more,
            )
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.") from error


def refuse_both(task_id: str | None, many: Many) -> None:
    """Raises UsageError unless either one task or a filter is named."""
    if (task_id is None) == (many.filter is None):
        raise UsageError("name one task, or many by --filter.")
    if many.filter is None and (many.yes or many.rate is not None):
        raise UsageError("--yes and --rate belong to --filter.")


def about_many(word: Word, many: Many, output: Output) -> None:
    """Count what matches, ask, and say the word about each. Ctrl-C stops between two requests.

    Raises UsageError, CommandError when the coordinator refused some, KeyboardInterrupt when it was
    stopped; whatever ends it, what was done is printed first.
    """
    if many.rate is not None and not many.rate > 0:
        raise UsageError("--rate is a number above 0.")
    query = read_filter(many.filter or "")
    word.request(query)  # whether it makes sense
    asyncio.run(_run(word, query, many, output))


def read_filter(text: str) -> TaskFilter:
    """``state=held,older-than=2h`` as conditions. Raises UsageError."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        name, value = name.strip(), value.strip()
        match name:
            case "state" if value in {one.value for one in TaskState}:
                read: Any = value
            case "phase" if value in {one.value for one in Phase}:
                read = value
            case "type" if TASK_TYPE_PATTERN.fullmatch(value):
                read = value
            case "older-than":
                name, read = "created_before", read_past(value, "--filter older-than")
            case _:
                raise UsageError(
                    f"--filter: {part.strip()!r} is no condition.",
                    next_step="Give some of state=S, phase=P, type=T, older-than=2h, with commas.",
                )
        if name in found:
            raise UsageError(f"--filter: {part.strip()!r} is a second condition of its kind.")
        found[name] = read
    return TaskFilter(**found)


async def _run(word: Word, query: TaskFilter, many: Many, output: Output) -> None:
    name = word.verb.value.replace("_", "-")
    async with open_client() as client:
        matched, settled = await _matching(client, word, query)
        if matched and not many.yes:
            _ask(name, matched)
        told: Counter[str] = Counter()
        with Interrupts() as interrupts:
            failure = None
            if matched:
                of = word, settled, matched
                failure = await _each(client, of, many.rate, told, interrupts.first)
            stopped = interrupts.first.is_set()
    refused = {code: number for code, number in sorted(told.items()) if code != "done"}
    if output == "json":
        print_json(
            {
                "verb": name,
                "matched": matched,
                "done": told["done"],
                "refused": refused,
                "stopped": stopped,
            }
        )
    else:
        print(f"{name}: {told['done']} of {matched} tasks" + "".join(
            f", {number} refused: {code}" for code, number in refused.items()
        ))  # fmt: skip
    if failure is not None:
        raise failure
    if stopped:
        raise KeyboardInterrupt
    if refused:
        raise CommandError(
            f"{sum(refused.values())} tasks were refused.",
            next_step="They may have gone on meanwhile; run it again to see what is left.",
            code="some_refused",
        )


async def _matching(client: "AsyncClient", word: Word, query: TaskFilter) -> tuple[int, TaskFilter]:
    """How many tasks match now, and the filter that leaves later ones alone."""
    page = await client.bulk(word.request(query, dry_run=True))
    before = min(query.created_before or page.clock, page.clock)
    settled = query.model_copy(update={"created_before": before})
    matched = page.matched
    while page.next is not None:
        page = await client.bulk(word.request(settled, dry_run=True, after=page.next))
        matched += page.matched
    return matched, settled


def _ask(name: str, number: int) -> None:
    """Raises UsageError where nobody can be asked, CommandError for a no."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"{number} tasks match; nothing was done.", next_step="Add --yes to go on with them."
        )
    print(f"{name} {number} tasks? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done.", code="not_confirmed")


async def _each(
    client: "AsyncClient",
    of: tuple[Word, TaskFilter, int],
    rate: float | None,
    told: Counter[str],
    stop: asyncio.Event,
) -> TenureError | None:
    """Say it about the tasks, page by page, until ``stop``; a page that was begun is waited for.

    Returns what kept it from going on, if anything did: a coordinator that does not answer.
    """
    from tenure.client.errors import ClientError

    word, query, matched = of
    limit = PAGE if rate is None else max(1, min(PAGE, int(rate)))
    began = asyncio.get_running_loop().time()
    after: str | None = None
    while not stop.is_set():
        try:
            page = await client.bulk(word.request(query, limit=limit, after=after))
        except ClientError as failure:
            return failure
        told.update({"done": page.done} | page.refused)
        _show_progress(told.total(), matched)
        after = page.next
        if after is None:
            break
        if rate is not None:
            await _until(began + told.total() / rate, stop)
    return None


async def _until(instant: float, stop: asyncio.Event) -> None:
    """Wait for an instant of the loop's clock, or for ``stop``."""
    try:
        async with asyncio.timeout_at(instant):
            await stop.wait()
    except TimeoutError:
        pass


def _show_progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)
