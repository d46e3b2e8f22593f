"""The end of a process that ran handlers, whatever these have left running."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import threading, time
from tenure.cli import process_exit
from tenure.cli.processes import work_of_others
from tenure.executor.logs import configure_logs

configure_logs("json", "INFO")
process_exit.LEAVING_SECONDS = 0.1

async def process() -> None:
    threading.Thread(target=time.sleep, args=(300,)).start()
    print("the last word")
    {end}

work_of_others(process())
"""


@pytest.mark.requirement("OPS-03")
@pytest.mark.parametrize(("end", "code"), [("pass", 0), ("raise ValueError", 70)])
@pytest.mark.parametrize("read", [True, False], ids=["read", "by nobody"])
def test_a_thread_that_never_returns_does_not_keep_the_process(
    end: str, code: int, read: bool
) -> None:
    """Nor does a pipe that nobody reads any more."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    ) as process:
        assert process.stdout is not None
        if read:
            assert process.stdout.read() == b"the last word\n"
        process.stdout.close()
    assert process.returncode == code
