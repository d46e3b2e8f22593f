"""Everything in one go, and ended in order: ``python -m ledger.run``.

A local stack where none runs in this folder, the ledger and a login for each side, the bookkeeper,
and the clerk, who orders and shows the books.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from ledger import order
from ledger.prepare import prepare

CONNECTION = Path(".tenure/connection.json")
TENURE = (sys.executable, "-m", "tenure.cli")


@asynccontextmanager
async def running(*words: str, says: str, **environment: str) -> AsyncIterator[None]:
    """A command of Tenure that keeps running: from when it says so until the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *TENURE,
        *words,
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    output = process.stdout
    said = []
    while line := (await output.readline()).decode():
        said.append(line)
        if says in line:
            break
    else:
        sys.exit(f"{''.join(said)}tenure {words[0]} has ended.")
    reading = asyncio.create_task(output.read())  # so that it can go on saying things
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.gather(process.wait(), reading)


async def done(*words: str) -> bool:
    """Whether a command of Tenure succeeds."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*TENURE, *words, stdout=quiet, stderr=quiet)
    return await process.wait() == 0


def database_url() -> str:
    """Of the local stack in this folder; empty where none runs."""
    if not CONNECTION.exists():
        return ""
    return str(json.loads(CONNECTION.read_text(encoding="utf-8"))["database_url"])


async def main() -> None:
    """As the README does it by hand."""
    async with AsyncExitStack() as until_the_end:
        if not (database_url() and await done("node", "list")):
            print("starting a local stack")
            await until_the_end.enter_async_context(running("up", says="ready after"))
        keeper = await prepare(database_url(), "keeper", "ledger_keeper")
        clerk = await prepare(database_url(), "clerk", "ledger_clerk")
        if not await done("migrate", "application", "ledger_clerk"):
            sys.exit("the clerk cannot be allowed to enqueue: see `tenure doctor`")
        print("starting the bookkeeper")
        await until_the_end.enter_async_context(
            running(
                "executor", "ledger.executor:app", says="registered", LEDGER_DATABASE_URL=keeper
            )
        )
        os.environ["LEDGER_DATABASE_URL"] = clerk
        await order.main()
        print("ending what was started")


if __name__ == "__main__":
    asyncio.run(main())
