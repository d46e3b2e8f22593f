"""The command ``tenure`` as a process of its own, against a coordinator of the tests."""

import asyncio
import json
import os
import sys
from typing import Any

from tenure.cli.exits import Exit
from tests.support.coordinator import Fleet

OPERATOR = "operator-token-0001"


async def tenure(api: Fleet, *words: str) -> tuple[int | None, str, str]:
    """A command by the operator: exit code, output, standard error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", *words,
        env=kept | {"TENURE_URL": api.coordinator.url, "TENURE_TOKEN": OPERATOR},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def tenure_json(api: Fleet, *words: str) -> Any:
    """What a command that must succeed prints for programs."""
    code, out, err = await tenure(api, *words, "-o", "json")
    assert code == Exit.DONE, err
    return json.loads(out)
