"""Words about one task or many: ``tenure task cancel``, ``hold``, ``release``, ``retry`` …"""

import asyncio
from typing import Annotated, Any, Final

from cyclopts import Parameter

from tenure.cli.bulk import Many, Word, about_many, refuse_both
from tenure.cli.connection import open_client
from tenure.cli.output import Output, print_json
from tenure.cli.why import TaskIdWord
from tenure.contract.bulk import BulkVerb

ONE: Final = Many()


def cancel(
    task_id: TaskIdWord | None = None, /, *, many: Many = ONE, output: Output = "table"
) -> None:
    """Ask for cancellation. What runs must confirm it first, or lose its lease."""
    refuse_both(task_id, many)
    if task_id is None:
        about_many(Word(BulkVerb.CANCEL), many, output)
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
        about_many(Word(BulkVerb.HOLD, reason), many, output)
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
        about_many(Word(BulkVerb.RELEASE), many, output)
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
        about_many(Word(BulkVerb.RETRY), many, output)
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
        about_many(Word(BulkVerb.ERASE, reason), many, output)
        return

    async def ask() -> Any:
        async with open_client() as client:
            return await client.task(task_id).erase(reason)

    erasure = asyncio.run(ask())
    if output == "json":
        print_json(erasure)
    else:
        print(f"task {erasure.task_id}: erased by {erasure.erased_by}: {erasure.reason}")


def move_profile(
    task_id: TaskIdWord | None = None,
    /,
    *,
    many: Many = ONE,
    to: Annotated[
        str | None, Parameter(help="Digest of the profile; none: the one that new tasks get.")
    ] = None,
    output: Output = "table",
) -> None:
    """Freeze another profile of its type in a waiting task, so that other builds may take it."""
    refuse_both(task_id, many)
    if task_id is None:
        about_many(Word(BulkVerb.MOVE_PROFILE, digest=to), many, output)
        return

    async def ask() -> Any:
        async with open_client() as client:
            return await client.task(task_id).move_profile(to)

    print_word(asyncio.run(ask()), "moved to another profile", output)


def print_word(reply: Any, words: str, output: Output) -> None:
    """What became of one task."""
    if output == "json":
        print_json(reply)
    else:
        print(f"task {reply.task_id}: {words}")
