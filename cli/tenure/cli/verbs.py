"""``tenure task cancel``, ``hold``, ``release`` and ``retry``: a word about one task or many."""

import asyncio
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tenure.cli.bulk import Many, Verb, about_many, refuse_both
from tenure.cli.connection import open_client
from tenure.cli.output import Output, print_json
from tenure.cli.why import TaskIdWord
from tenure.contract.states import TaskState

ONE: Final = Many()
_OPEN: Final = frozenset({TaskState.OPEN})
_HELD: Final = frozenset({TaskState.HELD})
_ENDED: Final = frozenset(TaskState) - _OPEN - _HELD
_DONE_AGAIN: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, TaskState.EXPIRED})


def cancel(
    task_id: TaskIdWord | None = None, /, *, many: Many = ONE, output: Output = "table"
) -> None:
    """Ask for cancellation. What runs must confirm it first, or lose its lease."""
    refuse_both(task_id, many)
    if task_id is None:
        about_many(
            Verb("cancel", _OPEN | _HELD, lambda client, one: client.task(one).cancel()),
            many,
            output,
        )
        return

    async def ask() -> Any:
        async with open_client() as client:
            return await client.task(task_id).cancel()

    reply = asyncio.run(ask())
    if output == "json":
        print_json(reply)
        return
    words = {
        "cancelled": "cancelled",
        "requested": "cancellation requested: its node has to confirm",
        "already_ended": f"had ended already: {reply.state.value}",
    }
    print(f"task {reply.task_id}: {words[reply.outcome]}")


def hold(
    task_id: TaskIdWord | None = None,
    /,
    *,
    many: Many = ONE,
    reason: Annotated[str, Parameter(help="Why, for those who find it held.")],
    output: Output = "table",
) -> None:
    """Begin nothing of a task until it is released. What runs can only be cancelled."""
    refuse_both(task_id, many)
    if task_id is None:
        about_many(
            Verb("hold", _OPEN, lambda client, one: client.task(one).hold(reason)), many, output
        )
        return

    async def ask() -> Any:
        async with open_client() as client:
            return await client.task(task_id).hold(reason)

    print_word(asyncio.run(ask()), "held", output)


def release(
    task_id: TaskIdWord | None = None, /, *, many: Many = ONE, output: Output = "table"
) -> None:
    """Let a held task wait for a node again."""
    refuse_both(task_id, many)
    if task_id is None:
        about_many(
            Verb("release", _HELD, lambda client, one: client.task(one).release()), many, output
        )
        return

    async def ask() -> Any:
        async with open_client() as client:
            return await client.task(task_id).release()

    print_word(asyncio.run(ask()), "waits for a node", output)


def retry(
    task_id: TaskIdWord | None = None, /, *, many: Many = ONE, output: Output = "table"
) -> None:
    """Try a task again now: a held or waiting one itself, an ended one as a new task."""
    refuse_both(task_id, many)
    if task_id is None:
        about_many(
            Verb("retry", _HELD | _DONE_AGAIN, lambda client, one: client.task(one).retry()),
            many,
            output,
        )
        return

    async def ask() -> Any:
        async with open_client() as client:
            return await client.task(task_id).retry()

    reply = asyncio.run(ask())
    words = "waits for a node now"
    if reply.new_task_id is not None:
        words = f"stays {reply.state.value}; task {reply.new_task_id} does the same again"
    print_word(reply, words, output)


def erase(
    task_id: TaskIdWord | None = None,
    /,
    *,
    many: Many = ONE,
    reason: Annotated[str, Parameter(help="Why, for those who find it erased.")],
    output: Output = "table",
) -> None:
    """Erase input, outputs and messages of an ended task for good. Its record stays."""
    refuse_both(task_id, many)
    if task_id is None:
        about_many(
            Verb("erase", _ENDED, lambda client, one: client.task(one).erase(reason)), many, output
        )
        return

    async def ask() -> Any:
        async with open_client() as client:
            return await client.task(task_id).erase(reason)

    erasure = asyncio.run(ask())
    if output == "json":
        print_json(erasure)
    else:
        print(f"task {erasure.task_id}: erased by {erasure.erased_by}: {erasure.reason}")


def print_word(reply: Any, words: str, output: Output) -> None:
    """What became of one task."""
    if output == "json":
        print_json(reply)
    else:
        print(f"task {reply.task_id}: {words}")
