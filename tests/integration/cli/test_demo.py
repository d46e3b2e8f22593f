"""The demo on small folders, as ``make demo`` runs it."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.exits import Exit

pytestmark = pytest.mark.timeout(900)  # as long as the demo gives itself


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


async def report_of(
    folder: Path, temporary: Path, *words: str
) -> tuple[int | None, dict[str, Any], str]:
    """Exit code, report and standard error of a whole run."""
    demo = await start_demo(folder, temporary, *words)
    out, err = await demo.communicate()
    assert out, err.decode()
    return demo.returncode, json.loads(out.splitlines()[-1]), err.decode()


GOOD = {
    "files": 41,
    "tasks": 41,
    "delivered": 41,
    "missing": 0,
    "wrong": 0,
    "changed": 0,
    "effects_twice": 0,
    "invariants_broken": [],
}


@pytest.mark.requirement("LEASE-02")
@pytest.mark.requirement("LEASE-10")
@pytest.mark.requirement("RELAY-01")
@pytest.mark.requirement("INC-01")
async def test_under_kills_the_demo_writes_each_row_once_and_says_so(
    folder: Path, tmp_path: Path
) -> None:
    code, report, err = await report_of(folder, tmp_path / "temporary")
    assert code == 0, err
    assert report.pop("seconds") > 0
    first, second = report.pop("in_flight_at_kill")
    assert first > 0
    assert second > 0
    assert report.pop("late_receipts") >= 1
    assert report.pop("duplicates_published") >= 0
    assert report.pop("duplicates_ignored") >= 0
    assert report == GOOD | {
        "stale_writes_refused": 1,
        "relay_kills": 2,
        "coordinator_kills": 1,
        "ok": True,
    }
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.requirement("LEASE-10")
async def test_with_the_expiry_check_disabled_the_token_alone_refuses(
    folder: Path, tmp_path: Path
) -> None:
    code, report, err = await report_of(folder, tmp_path / "temporary", "--weaken", "expiry")
    assert (code, report["stale_writes_refused"], report["effects_twice"]) == (0, 1, 0), err
    assert "its write: StaleToken" in err


async def test_the_demo_fails_when_the_fence_check_is_switched_off(
    folder: Path, tmp_path: Path
) -> None:
    code, report, err = await report_of(folder, tmp_path / "temporary", "--weaken", "fence")
    assert (code, report["ok"], report["stale_writes_refused"]) == (1, False, 0), err
    assert {name: report[name] for name in GOOD} == GOOD, err


async def test_a_calm_demo_kills_nothing(folder: Path, tmp_path: Path) -> None:
    code, report, err = await report_of(folder, tmp_path / "temporary", "--calm")
    assert code == 0, err
    assert {name: report[name] for name in GOOD} == GOOD
    assert (report["relay_kills"], report["coordinator_kills"]) == (0, 0)


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
