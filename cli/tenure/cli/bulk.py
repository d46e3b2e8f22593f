"""One word about many tasks: counted first, said at a rate, stopped between two tasks.

What is matched is settled before anything is said: tasks that come later are left alone. Every
word is one ordinary request, small in the coordinator and safe to repeat, so that a run that was
stopped, or lost its coordinator, is simply run again.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from tenure.cli.connection import open_client
from tenure.cli.exits import CommandError, UsageError
from tenure.cli.instants import read_past
from tenure.cli.local.interrupts import Interrupts
from tenure.cli.output import Output, print_json
from tenure.contract.errors import TenureError
from tenure.contract.states import Phase, TaskState
from tenure.contract.tasks import TaskSummary

if TYPE_CHECKING:
    from tenure.client import AsyncClient

MAX_TASKS: Final = 100_000
AT_ONCE: Final = 8
"""Requests under way, so that other callers of the coordinator notice little."""
PAGE: Final = 500


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
class Verb:
    """What is said about each task, and about tasks of which state it makes sense."""

    name: str
    states: frozenset[TaskState]
    say: Callable[["AsyncClient", str], Awaitable[object]]


def refuse_both(task_id: str | None, many: Many) -> None:
    """Raises UsageError unless either one task or a filter is named."""
    if (task_id is None) == (many.filter is None):
        raise UsageError("name one task, or many by --filter.")
    if many.filter is None and (many.yes or many.rate is not None):
        raise UsageError("--yes and --rate belong to --filter.")


def about_many(verb: Verb, many: Many, output: Output) -> None:
    """Count what matches, ask, and say the word about each. Ctrl-C stops between two tasks.

    Raises UsageError, CommandError when the coordinator refused some, KeyboardInterrupt when it was
    stopped; whatever ends it, what was done is printed first.
    """
    if many.rate is not None and not many.rate > 0:
        raise UsageError("--rate is a number above 0.")
    query = read_filter(many.filter or "")
    asyncio.run(_run(verb, query, many, output))


def read_filter(text: str) -> dict[str, Any]:
    """``state=held,older-than=2h`` as arguments of ``AsyncClient.tasks``. Raises UsageError."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        name, value = name.strip(), value.strip()
        match name:
            case "state" if value in {one.value for one in TaskState}:
                read: Any = value
            case "phase" if value in {one.value for one in Phase}:
                read = value
            case "type" if value:
                name, read = "type_name", value
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
    return found


async def _run(verb: Verb, query: dict[str, Any], many: Many, output: Output) -> None:
    async with open_client() as client:
        tasks = await _matching(client, verb, query)
        if tasks and not many.yes:
            _ask(verb, len(tasks))
        told: Counter[str] = Counter()
        with Interrupts() as interrupts:
            failure = await _each(client, verb, tasks, many.rate, told, interrupts.first)
            stopped = interrupts.first.is_set()
    refused = {code: number for code, number in told.items() if code != "done"}
    if output == "json":
        print_json(
            {
                "verb": verb.name,
                "matched": len(tasks),
                "done": told["done"],
                "refused": refused,
                "stopped": stopped,
            }
        )
    else:
        print(f"{verb.name}: {told['done']} of {len(tasks)} tasks" + "".join(
            f", {number} refused: {code}" for code, number in sorted(refused.items())
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


async def _matching(
    client: "AsyncClient", verb: Verb, query: dict[str, Any]
) -> tuple[TaskSummary, ...]:
    """What the filter matches now, oldest first. Raises CommandError when that is too much."""
    found: list[TaskSummary] = []
    after: str | None = None
    while True:
        page = await client.tasks(**query, limit=PAGE, after=after)
        found += (task for task in page.tasks if task.state in verb.states)
        if len(found) > MAX_TASKS:
            raise CommandError(
                f"the filter matches more than {MAX_TASKS:,} tasks.",
                next_step="Add a condition, like older-than.",
                code="too_many_tasks",
            )
        after = page.next
        if after is None:
            return tuple(reversed(found))


def _ask(verb: Verb, number: int) -> None:
    """Raises UsageError where nobody can be asked, CommandError for a no."""
    if not sys.stdin.isatty():
        raise UsageError(
            f"{number} tasks match; nothing was done.", next_step="Add --yes to go on with them."
        )
    print(f"{verb.name} {number} tasks? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done.", code="not_confirmed")


async def _each(
    client: "AsyncClient",
    verb: Verb,
    tasks: tuple[TaskSummary, ...],
    rate: float | None,
    told: Counter[str],
    stop: asyncio.Event,
) -> TenureError | None:
    """Say it about each, in order, until ``stop``; what was begun is waited for.

    Returns what kept it from going on, if anything did: a coordinator that does not answer.
    """
    from tenure.client.errors import ClientError, Refused

    failures: list[TenureError] = []

    free = asyncio.Semaphore(AT_ONCE)
    began = asyncio.get_running_loop().time()

    async def one(task_id: str) -> None:
        try:
            await verb.say(client, task_id)
            told["done"] += 1
        except Refused as refusal:
            told[str(refusal.code)] += 1
        except ClientError as failure:
            failures.append(failure)
            stop.set()
        finally:
            free.release()
            _show_progress(told.total(), len(tasks))

    async with asyncio.TaskGroup() as group:
        for number, task in enumerate(tasks):
            if rate is not None:
                await _until(began + number / rate, stop)
            await free.acquire()
            if stop.is_set():
                free.release()
                break
            group.create_task(one(task.task_id))
    return failures[0] if failures else None


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
