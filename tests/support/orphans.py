"""A program that starts a private server and can be killed: what becomes of the server?"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import asyncio, sys
from pathlib import Path
from tenure.cli.local import processes
from tenure.cli.local.{module} import {kind}

if sys.argv[2] == "deaf":
    processes.ended_with_parent = lambda signal: ()
server = {kind}(Path(sys.argv[1]))
asyncio.run(server.start())
print(server.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def owner(
    kind: type, folder: Path, *, servers_end_with_it: bool
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that owns a started server of this kind, and the server's pid."""
    program = _PROGRAM.format(module=kind.__module__.rpartition(".")[2], kind=kind.__name__)
    hearing = "hearing" if servers_end_with_it else "deaf"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder), hearing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()
