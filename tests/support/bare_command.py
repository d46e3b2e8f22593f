"""The command ``tenure`` as a process that knows of no coordinator."""

import os
import sys

from tenure.cli.local import processes
from tests.support.repository import REPOSITORY


async def bare(*words: str) -> tuple[int, str]:
    """Exit code and output, with nothing of Tenure's in the environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return await processes.run(
        [sys.executable, "-m", "tenure.cli", *words], environment=kept, directory=REPOSITORY
    )
