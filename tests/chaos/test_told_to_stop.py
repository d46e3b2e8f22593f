"""A storm that is told to stop takes everything along that it started."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.repository import REPOSITORY
from tests.trials.chaos_stack import COORDINATORS, EXECUTORS, RELAYS

PROGRAMS = COORDINATORS + RELAYS + EXECUTORS + 1  # the witness
SERVERS = {"postgres", "beam.smp", "epmd"}


def started(folder: Path) -> list[str]:
    """Names of what runs of a storm with this folder for temporary files, but for itself."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            told = " ".join([*words, *process.environ().values()])
            if str(folder) in told and "tests.trials.chaos" not in words:
                found.append(process.name())
        except psutil.Error:
            continue  # it has ended, or is nobody's any more
    return found


def all_run(folder: Path) -> bool:
    names = started(folder)
    programs = [name for name in names if name.startswith("python")]
    return len(programs) >= PROGRAMS and set(names) >= SERVERS


@pytest.mark.timeout(300)
async def test_a_storm_that_is_told_to_stop_leaves_nothing_that_runs(
    server_directory: Path,
) -> None:
    folder = server_directory / "storm"
    folder.mkdir(mode=0o711)
    storm = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.trials.chaos", "--seconds", "600", "--rate", "6",
        cwd=REPOSITORY, env={**os.environ, "TMPDIR": str(folder)},
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not all_run(folder):
            assert storm.returncode is None
            await asyncio.sleep(0.5)  # looking at every process is no light question
        storm.terminate()
        assert await storm.wait() == 128 + signal.SIGTERM
        while started(folder):  # noqa: ASYNC110 - a killed server's workers need a moment
            await asyncio.sleep(0.1)
    finally:
        if storm.returncode is None:
            storm.kill()
            await storm.wait()
