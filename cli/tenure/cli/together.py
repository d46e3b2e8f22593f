"""Work side by side whose first error is the one that people see."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run side by side; the first error cancels the others and is raised alone, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        first = errors.exceptions[0]
        raise first from first.__cause__
