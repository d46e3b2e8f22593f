"""``tenure chaos`` on an executor that is right, and on one that only says that it is."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.exits import Exit
from tests.support.chaos_apps import LEDGER, make_ledger
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.timeout(300)


async def chaos(folder: Path, app: str) -> tuple[int | None, Any, str]:
    """Exit code, report and standard error of a short run."""
    ledger = folder / "ledger"
    make_ledger(str(ledger))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", "chaos",
        "--app", f"tests.support.chaos_apps:{app}",
        "--check", "tests.support.chaos_apps:count",
        # A plan that is mostly kills of executors, and handlers that are in their middle for long.
        "--seed", "15", "--seconds", "10", "--data", '{"cents": 1, "seconds": 2.0}',
        "--strike-every", "1", "--tasks", "20", "--executors", "2",
        "--settle-seconds", "200", "-o", "json",
        cwd=REPOSITORY,
        env=kept | {LEDGER: str(ledger), "TMPDIR": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert out, err.decode()
    return process.returncode, json.loads(out), err.decode()


def kept_in(folder: Path) -> list[str]:
    """Logs of an executor in what runs have left behind."""
    return [path.name for path in folder.glob("tenure-chaos-*/logs/executor-1.log")]


@pytest.mark.requirement("STATE-05")
async def test_an_executor_whose_effects_are_keyed_passes(tmp_path: Path) -> None:
    code, report, err = await chaos(tmp_path, "right")
    assert code == Exit.DONE, err
    assert report["passed"]
    assert report["seed"] == 15
    assert report["tasks"] == {"delivered": 20}
    assert report["interrupted"] > 0
    assert report["attempt_reasons"]["lease_expired"] > 0
    assert report["strikes"]["kill an executor in the middle of its work"] > 0
    assert kept_in(tmp_path) == [], "nothing is left behind"


async def test_an_executor_that_counts_again_with_each_attempt_is_found_and_named(
    tmp_path: Path,
) -> None:
    """Declared idempotent, and it is not."""
    code, report, err = await chaos(tmp_path, "wrong")
    assert code == Exit.REFUSED
    assert "error: chaos_failed:" in err
    assert "--seed 15" in err
    assert report["interrupted"] > 0
    twice = [fault for fault in report["faults"] if "effects instead of one: task " in fault]
    assert twice
    assert "of type 'book' (declared idempotent)" in twice[0]
    assert "expired" in twice[0], "and what became of its attempts"
    assert report["advice"][0].startswith("'book' is declared idempotent: an attempt that is lost")
    assert kept_in(tmp_path) == ["executor-1.log"]
