"""A C client that does nothing but publish: librabbitmq, through the program of ``confirmed.c``."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tenure.cli.local import processes

SOURCE: Final = Path(__file__).with_name("confirmed.c")
WINDOW: Final = 2000


class CannotBeBuilt(Exception):
    """There is no C compiler, or no librabbitmq; says which."""


@dataclass(frozen=True)
class Published:
    """From the first publish to the last confirm."""

    seconds: float
    cpu_seconds: float


async def build(directory: Path) -> Path:
    """Compile the program into a folder. Raises CannotBeBuilt."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise CannotBeBuilt("there is no C compiler (cc)")
    program = directory / "confirmed"
    status, output = await processes.run(
        [compiler, "-O2", "-o", program, SOURCE, "-lrabbitmq"],
        environment=os.environ,
        directory=directory,
    )
    if status != 0:
        raise CannotBeBuilt(f"it does not compile against librabbitmq: {output.strip()[:300]}")
    return program


async def publish(program: Path, url: str, queue: str, count: int, body_bytes: int) -> Published:
    """Publish that many messages and wait for every confirm. Raises RuntimeError when it fails."""
    parts = urlsplit(url)
    words = [str(parts.hostname), str(parts.port), unquote(parts.username or "")]
    words += [unquote(parts.path[1:]), queue, str(count), str(body_bytes), str(WINDOW)]
    status, output = await processes.run(
        [program, *words],
        environment={"BENCH_PASSWORD": unquote(parts.password or "")},
        directory=program.parent,
    )
    if status != 0:
        raise RuntimeError(f"the C client failed: {output.strip()}")
    seconds, cpu_seconds = output.split()
    return Published(float(seconds), float(cpu_seconds))
