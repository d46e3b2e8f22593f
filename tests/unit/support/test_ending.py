"""A trial that is told to stop ends what it began, and says by which signal."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tenure.cli.local import processes
from tests.support.repository import REPOSITORY
from tests.support.waiting import eventually
from tests.trials import ending

_TRIAL = """
import asyncio, sys
from tests.trials import ending

async def trial():
    try:
        print("began", flush=True)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("ended", flush=True)

sys.exit(ending.run(trial()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_trial_that_is_told_to_stop_ends_in_its_own_order(number: signal.Signals) -> None:
    """Also where SIGINT was ignored when it started."""
    trial = await asyncio.create_subprocess_exec(
        "sh", "-c", 'trap "" INT; exec "$0" "$@"', sys.executable, "-c", _TRIAL,
        cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert trial.stdout is not None
    assert await trial.stdout.readline() == b"began\n"
    trial.send_signal(number)
    said, _ = await trial.communicate()
    assert (said, trial.returncode) == (b"ended\n", 128 + number)


async def _seven() -> int:
    return 7


def test_a_trial_that_nobody_stops_has_its_own_status() -> None:
    assert ending.run(_seven()) == 7


_OWNER = """
import asyncio, sys
from pathlib import Path
from tests.trials.processes import Program

async def owner():
    program = Program("idle", ("-c", "import time; time.sleep(3600)"), {}, Path(sys.argv[1]))
    keeping = asyncio.create_task(program.keep())
    while program.pid is None:
        await asyncio.sleep(0.01)
    print(program.pid, flush=True)
    await keeping

asyncio.run(owner())
"""


async def test_the_programs_of_a_killed_trial_end_with_it(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OWNER, str(tmp_path / "log"),
        cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert owner.stdout is not None
    pid = int(await owner.stdout.readline())
    assert processes.is_alive(pid)
    owner.kill()
    await owner.wait()
    await eventually(lambda: not processes.is_alive(pid))
