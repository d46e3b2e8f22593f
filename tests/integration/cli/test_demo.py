"""The demo on small folders, as ``make demo`` runs it."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tenure.cli.exits import Exit

pytestmark = pytest.mark.timeout(300)


async def start_demo(folder: Path, temporary: Path, *words: str) -> asyncio.subprocess.Process:
    """The demo over a folder, with its own place for temporary files."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli.demo", "--input", str(folder), *words,
        env=kept | {"TMPDIR": str(temporary)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "input"
    for number in range(40):
        place = folder / f"part {number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"file-{number}.txt").write_bytes(b"line\n" * number)
    with open(os.fsencode(folder) + b"/odd\xff 100%.txt", "wb") as file:
        file.write(b"odd")
    (tmp_path / "temporary").mkdir()
    return folder


@pytest.mark.requirement("LEASE-10")
async def test_the_demo_writes_each_row_once_and_says_so(folder: Path, tmp_path: Path) -> None:
    demo = await start_demo(folder, tmp_path / "temporary")
    out, err = await demo.communicate()
    assert demo.returncode == 0, err.decode()
    report = json.loads(out.splitlines()[-1])
    seconds = report.pop("seconds")
    assert seconds > 0
    assert report == {
        "files": 41,
        "tasks": 41,
        "delivered": 41,
        "missing": 0,
        "wrong": 0,
        "changed": 0,
        "effects_twice": 0,
        "ok": True,
    }
    assert list((tmp_path / "temporary").iterdir()) == []


async def test_an_interrupted_demo_ends_its_stack_and_leaves_nothing(
    folder: Path, tmp_path: Path
) -> None:
    demo = await start_demo(folder, tmp_path / "temporary")
    assert demo.stderr is not None
    while b"starting rabbitmq" not in await demo.stderr.readline():
        pass
    demo.send_signal(signal.SIGINT)
    out, _ = await demo.communicate()
    assert (demo.returncode, out) == (Exit.INTERRUPTED, b"")
    assert list((tmp_path / "temporary").iterdir()) == []
