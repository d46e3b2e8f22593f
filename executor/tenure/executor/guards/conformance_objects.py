"""The checks of an object store. Needs the extra ``objects``."""

import asyncio
import uuid

from tenure.contract.ids import TaskId
from tenure.executor.context import Context
from tenure.executor.errors import StaleToken
from tenure.executor.guards.conformance import (
    Check,
    Outcome,
    Unexpected,
    probe,
    refused,
    run,
    successor,
)
from tenure.executor.guards.objects import (
    ObjectGuard,
    Reference,
    Store,
    create,
    listed,
    read,
    resolve,
)


async def check_objects(store: Store, *, prefix: str = "tenure-conformance") -> list[Outcome]:
    """Its outcomes, in order. What it writes is deleted again."""
    guard = ObjectGuard(store, prefix=prefix)
    tasks: list[TaskId] = []

    def fresh() -> Context[None]:
        context = probe()
        tasks.append(context.task_id)
        return context

    async def write(context: Context[None], data: bytes) -> Reference:
        async with guard.outputs(context) as outputs:
            if not outputs.already_done:
                await outputs.put("object", data)
        return outputs.reference

    async def one_wins() -> None:
        folder = f"{prefix}/{fresh().task_id}"
        key = f"{folder}/{uuid.uuid4()}"
        won = await asyncio.gather(
            *(asyncio.to_thread(create, store, key, b"%d" % number) for number in range(16))
        )
        if sum(won) != 1:
            raise Unexpected(f"{sum(won)} of 16 puts of one key succeeded")
        if await asyncio.to_thread(listed, store, folder) != [key]:
            raise Unexpected("a listing does not show what was just written")

    async def once() -> None:
        context = fresh()
        await guard.raise_fence(context)
        reference = await write(context, b"first")
        following = successor(context)
        await guard.raise_fence(following)
        if await write(following, b"again") != reference:
            raise Unexpected("a second attempt committed too")
        (entry,) = (await resolve(store, reference)).entries
        if await read(store, entry) != b"first":
            raise Unexpected("another content was read")

    async def sealed() -> None:
        context = fresh()
        following = successor(context)
        await guard.raise_fence(context)

        async def old_holder() -> None:
            async with guard.outputs(context) as outputs:
                await outputs.put("object", b"old")
                await guard.raise_fence(following)

        await refused(old_holder(), StaleToken)
        await write(following, b"new")

    async def late() -> None:
        context = fresh()
        await guard.raise_fence(successor(context))
        await refused(guard.raise_fence(context), StaleToken)
        await refused(write(context, b"old"), StaleToken)

    checks: dict[str, Check] = {
        "of sixteen puts of one key one succeeds, and is listed": one_wins,
        "outputs are committed once, by whichever attempt": once,
        "an old holder is refused by the store before its successor has written": sealed,
        "an attempt that comes after its successor is refused": late,
    }
    outcomes = await run(checks)
    for task_id in tasks:
        await guard.prune(task_id)
    return outcomes
