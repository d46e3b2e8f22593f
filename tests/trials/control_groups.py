"""``make trial-cgroups``: control groups of version 2, in a kernel started for it.

Not every machine has them to give away: often its service manager holds the controllers, or mounts
those of version 1. A kernel that is itself a process, user-mode Linux, has its own. It gets this
machine's files, read only, and runs tests/unit/executor/test_kernel_cgroups.py. It passes when the
tests do and none was skipped.
"""

import argparse
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support.repository import REPOSITORY

TESTS: Final = "tests/unit/executor/test_kernel_cgroups.py"
SECONDS: Final = 600
PASSED: Final = "the trial ended with 0"
INIT: Final = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /tmp
cd {repository}
{python} -m pytest -q -rs -p no:cacheprovider {tests}
echo "the trial ended with $?"
echo o > /proc/sysrq-trigger
sleep 60
"""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="make trial-cgroups", description=__doc__)
    parser.add_argument("--kernel", default="linux.uml", help="program of user-mode Linux")
    kernel = shutil.which(parser.parse_args().kernel)
    if kernel is None:
        print("no user-mode Linux here; Debian has it: apt-get install user-mode-linux")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        init = Path(folder, "init")
        init.write_text(INIT.format(repository=REPOSITORY, python=sys.executable, tests=TESTS))
        init.chmod(init.stat().st_mode | stat.S_IXUSR)
        done = subprocess.run(
            [
                kernel, "mem=2G", "quiet", "root=/dev/root", "rootfstype=hostfs", "rootflags=/",
                "ro", f"init={init}", "con=null", "con0=null,fd:1",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )  # fmt: skip
    print(done.stdout)
    if PASSED not in done.stdout or "SKIPPED" in done.stdout:
        print("FAILED: a test failed, was skipped, or the kernel did not run them")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
