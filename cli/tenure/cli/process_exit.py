"""The end of a process that ran code of others.

What a handler leaves running, a coroutine that goes on after its cancellation or a thread that
never returns, would be waited for by the event loop and by the interpreter, for ever. Everything
that had to be said and stored is done by then: the process ends without it.
"""

import os
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final

import structlog

from tenure.cli.exits import Exit, exit_code_of, report, report_fault
from tenure.contract.errors import TenureError

LEAVING_SECONDS: Final = 2.0
"""How long the event loop and the interpreter may take for an end of their own."""


class Leaving:
    """``process`` is the coroutine to run; ``loop_closed`` is called once the event loop is."""

    def __init__(self) -> None:
        self._closed = False

    async def process(self, process: Coroutine[Any, Any, None]) -> None:
        """Run it; from its end on the process has so long."""
        try:
            await process
        except BaseException as error:
            self._begin(error)
            raise
        self._begin(None)

    def loop_closed(self) -> None:
        """From here on an error is said by whoever ran the process."""
        self._closed = True

    def _begin(self, error: BaseException | None) -> None:
        threading.Thread(target=self._end, args=(error,), name="tenure-end", daemon=True).start()

    def _end(self, error: BaseException | None) -> None:
        time.sleep(LEAVING_SECONDS)  # the interpreter that ends meanwhile ends this too
        code = Exit.DONE if error is None else Exit.FAULT
        try:
            structlog.get_logger("tenure.executor").warning(
                "what handlers left running ends with the process",
                threads=sorted(each.name for each in threading.enumerate() if not each.daemon),
            )
            code = self._code(error)
            sys.stdout.flush()
        finally:  # also where nobody reads what it says any more
            os._exit(code)

    def _code(self, error: BaseException | None) -> Exit:
        if error is None:
            return Exit.DONE
        if isinstance(error, TenureError):
            return exit_code_of(error) if self._closed else report(error)
        if isinstance(error, Exception):
            return Exit.FAULT if self._closed else report_fault(error)
        return Exit.INTERRUPTED
