"""The provider of the example ``paid_calls``, which dies right after it has charged, once.

``python -m tests.support.struck_provider PORT FOLDER``. What it has charged is committed; nobody
gets an answer. Started again in the same folder it does its work.
"""

import os
import signal
import sys
from pathlib import Path

from paid_calls import provider


class DyingBooks(provider.Books):
    """They take the provider with them."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._sign = file.with_name("died")

    def charge(self, key: str) -> None:
        super().charge(key)
        self._die()

    def pay(self, payment_id: str, cents: int) -> None:
        super().pay(payment_id, cents)
        self._die()

    def _die(self) -> None:
        if not self._sign.exists():
            self._sign.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    vars(provider)["Books"] = DyingBooks
    provider.main(int(sys.argv[1]), Path(sys.argv[2]))
