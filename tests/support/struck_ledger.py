"""The executor of the example ``ledger``, whose guard is struck once where ``STRUCK_BY`` says.

What a transaction raised is written to ``raised`` in the strike's folder.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ledger import executor as example
from tenure.cli.drills.strikes import Armed, Strike
from tenure.executor import Context
from tenure.executor.guards.sql import SqlGuard
from tests.support.examples import STRIKE

strike = Strike.from_json(os.environ[STRIKE])


class StruckGuard(SqlGuard):
    """Armed."""

    def __init__(self, source: str, *, schema: str) -> None:
        super().__init__(source, schema=schema, faults=Armed(strike))

    @asynccontextmanager
    async def transaction(
        self, context: Context[Any], *, operation: str, key: str = ""
    ) -> AsyncIterator[Any]:
        try:
            async with super().transaction(context, operation=operation, key=key) as effect:
                yield effect
        except Exception as error:
            sqlstate = getattr(error.__cause__, "sqlstate", "")
            (strike.folder / "raised").write_text(f"{type(error).__name__} {sqlstate}")
            raise


vars(example)["SqlGuard"] = StruckGuard
app = example.app
