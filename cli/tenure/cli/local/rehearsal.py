"""What processes of a local stack would end with before they need a server, said before one runs.

Each is tried in a child of its own, with the environment that the stack will give it: an executor's
module is imported and its settings are read, and then the child ends. Addresses of servers that
nobody knows yet are stood in for, by ones that lead nowhere: a module that asks a server while it
is imported fails, which belongs into its lifespan.

    python -m tenure.cli.local.rehearsal services
    python -m tenure.cli.local.rehearsal executor MODULE:NAME SLOTS NODE
"""

import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenure.cli.exits import Exit
from tenure.cli.local import processes
from tenure.cli.local.errors import LocalProcessFailedError, LocalProcessNotReadyError

if TYPE_CHECKING:
    from tenure.cli.local.stack import ExecutorSpec

LONGEST_SECONDS: Final = 60.0
_NOWHERE: Final = "127.0.0.1:9"
_TOKEN: Final = "of-no-coordinator-" + "0" * 32
_STAND_IN: Final = {
    "services": {
        "TENURE_DATABASE_URL": f"postgresql://tenure@{_NOWHERE}/tenure",
        "TENURE_BROKER_URL": f"amqp://{_NOWHERE}/",
        "TENURE_TOKENS": json.dumps(
            [{"name": "operator", "token": _TOKEN, "tenant": "default", "role": "operator"}]
        ),
    },
    "executor": {
        "TENURE_URL": f"http://{_NOWHERE}",
        "TENURE_TOKEN": _TOKEN,
        "TENURE_BROKER_URL": f"amqp://{_NOWHERE}/",
    },
}


class Failed(Exception):
    """A process would end at once: what it said on standard error, and its exit code."""

    def __init__(self, said: str, exit_code: int) -> None:
        super().__init__(said)
        self.said = said
        self.exit_code = exit_code


async def rehearse(executors: "Sequence[ExecutorSpec]", environment: Mapping[str, str]) -> None:
    """Try them all at once. ``environment``: what every process of the stack gets.

    Raises Failed for the first that would end, LocalProcessFailedError for one that was killed
    while it was imported, LocalProcessNotReadyError for one whose import takes too long.
    """
    trying = [
        _try(
            spec.application,
            ("executor", spec.application, str(spec.slots), spec.name),
            {**environment, **spec.environment()},
        )
        for spec in executors
    ]
    if _has_settings(environment):  # without any they start as they always do
        trying.append(_try("the coordinator and the relay", ("services",), environment))
    for outcome in await asyncio.gather(*trying, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _has_settings(environment: Mapping[str, str]) -> bool:
    """Whether somebody has set anything, besides what the stack itself sets for all."""
    return any(
        name.upper().startswith("TENURE_") and (name, value) != ("TENURE_LOG_FORMAT", "console")
        for name, value in environment.items()
    )


async def _try(what: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
    child = await asyncio.create_subprocess_exec(
        *processes.ended_with_parent(signal.SIGKILL),
        sys.executable, "-m", __name__, *words,
        env={**_STAND_IN[words[0]], **environment, "PYTHONUNBUFFERED": "1"},
        cwd=Path.cwd(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            _, said = await child.communicate()
    except TimeoutError as error:
        raise LocalProcessNotReadyError(
            f"{what}: the import has not ended after {LONGEST_SECONDS:g} seconds.",
            advice="Move what takes so long, or waits, into the executor's lifespan.",
        ) from error
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    code = child.returncode or 0
    if code < 0:
        raise LocalProcessFailedError(
            f"{what}: the import was ended by {signal.Signals(-code).name}.\n"
            + said.decode(errors="replace"),
            advice="Import it by itself, with `python -X faulthandler -c 'import …'`.",
        )
    if code:
        raise Failed(said.decode(errors="replace"), code)


def main(words: Sequence[str]) -> Exit:
    """In the child: begin as the process would, and stop where it would need a server."""
    from tenure.cli.exits import report
    from tenure.contract.errors import TenureError

    try:
        if words[0] == "services":
            from tenure.coordinator.config import load_settings as load_coordinator
            from tenure.relay.config import load_settings as load_relay

            load_coordinator()
            load_relay()
        else:
            from tenure.cli.processes import prepared

            _, application, slots, node = words
            prepared(application, {"slots": int(slots), "node": node})
    except TenureError as error:
        return report(error)
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
