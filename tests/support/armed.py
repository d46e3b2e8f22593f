"""A coordinator or relay as a process of its own, armed with a strike.

This is the only way to arm one: a program of the tests that hands the object in.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from tenure.cli.drills.strikes import Armed, Strike
from tenure.cli.local import processes
from tests.support.repository import REPOSITORY
from tests.support.waiting import eventually


@asynccontextmanager
async def armed_process(
    kind: str, environment: Mapping[str, str], strike: Strike | None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """``kind`` is coordinator or relay. Killed at the end of the block when it still runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.armed", kind, strike.as_json() if strike else "",
        cwd=REPOSITORY,
        env={**kept, "TENURE_LOG_FORMAT": "json", **environment},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def reached(strike: Strike) -> int:
    """Wait until the point was reached; the pid of the process that is there."""
    await eventually(lambda: strike.sign() is not None)
    sign = strike.sign()
    assert sign is not None
    return sign.pid


async def stopped(pid: int) -> None:
    """Wait until the kernel says that the process stands still."""
    await eventually(lambda: processes.is_stopped(pid))


async def died(process: asyncio.subprocess.Process) -> None:
    """Wait for the end that the strike brings."""
    assert await process.wait() == -signal.SIGKILL


def main(kind: str, strike: str) -> None:
    """Run until SIGTERM, armed where a strike was given."""
    faults = (Armed(Strike.from_json(strike)),) if strike else ()
    if kind == "relay":
        from tenure.relay import app as relay
        from tenure.relay.config import load_settings as relay_settings

        asyncio.run(relay.run(relay_settings(), *faults))
    else:
        from tenure.coordinator import app as coordinator
        from tenure.coordinator.config import load_settings as coordinator_settings

        asyncio.run(coordinator.run(coordinator_settings(), *faults))


if __name__ == "__main__":
    main(*sys.argv[1:])
