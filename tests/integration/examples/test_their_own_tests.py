"""The tests that examples bring along, run as their readers run them."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.examples import EXAMPLES
from tests.support.isolation import FreshDatabase

SERVERS = ("memory", "local") if os.environ.get("TENURE_TEST_KIT") == "all" else ("memory",)
"""On real servers they take minutes: `make test-kit` does."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("example", ["ledger", "paid_calls", "thumbnails"])
async def test_the_tests_of_an_example_pass(
    example: str, servers: str, empty_database: FreshDatabase, tmp_path: Path
) -> None:
    ours = ("TENURE_", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        f"--tenure-servers={servers}", example,
        cwd=EXAMPLES,
        env={
            **kept,
            "LEDGER_TEST_DATABASE_URL": empty_database.admin_url,
            "THUMBNAILS_STORE": f"file://{tmp_path / 'store'}",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    assert " passed" in said, said
    assert "skipped" not in said, said
