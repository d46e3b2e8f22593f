"""What a type checker says of programs that a test writes, all judged in one run of it."""

import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tests.support.repository import REPOSITORY


def errors_of(programs: Sequence[str], folder: Path, *options: str) -> list[list[str]]:
    """The errors of ``mypy --strict`` in each of the programs, which know nothing of each other."""
    # What the checker keeps from another run goes by the name, and says where that run's file was.
    paths = [folder / f"program_{sha256(text.encode()).hexdigest()[:16]}.py" for text in programs]
    for path, text in zip(paths, programs, strict=True):
        path.write_text(text)
    settings = str(REPOSITORY / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", settings, *options, *paths],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    found = [[line for line in lines if f"{path.name}:" in line] for path in paths]
    # It ran to its end, and each error is somebody's.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert sum(map(len, found)) == len(lines), done.stdout
    return found
