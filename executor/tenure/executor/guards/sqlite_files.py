"""Files in which guards keep something, for the commands of their owner: requests of an HTTP
receiver, payments, or both."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tenure.executor.errors import GuardNotInstalled, GuardUnavailable
from tenure.executor.guards.http_store import SqliteRequests, StoreUnavailable, Unsettled
from tenure.executor.guards.payment_sqlite import SqlitePayments


async def prune(file: Path, older_than_seconds: float) -> dict[str, int]:
    """Forget what was last touched so long ago; how many rows of each.

    Raises GuardNotInstalled for a file without anything of a guard's, GuardUnavailable.
    """
    removed = {}
    try:
        for kind in _kept_in(file):
            if kind == "requests":
                with closing(SqliteRequests(file)) as requests:
                    removed["requests and fences"] = await requests.prune(older_than_seconds)
            else:
                with closing(SqlitePayments(file)) as payments:
                    removed["payments and fences"] = await payments.prune(older_than_seconds)
    except StoreUnavailable as error:
        raise _unavailable(file, error) from error
    return removed


async def unsettled(file: Path) -> list[Unsettled]:
    """What somebody has to look at, the oldest first. Raises as ``prune``."""
    found: list[Unsettled] = []
    try:
        for kind in _kept_in(file):
            if kind == "requests":
                with closing(SqliteRequests(file)) as requests:
                    found += await requests.interrupted()
            else:
                with closing(SqlitePayments(file)) as payments:
                    found += await payments.unsettled()
    except StoreUnavailable as error:
        raise _unavailable(file, error) from error
    return sorted(found, key=lambda each: each.since)


async def forget(file: Path, scope: str, key: str) -> int:
    """Forget what has that key, since somebody has seen that it did nothing; how many there were.
    Raises as ``prune``."""
    gone = 0
    try:
        for kind in _kept_in(file):
            if kind == "requests":
                with closing(SqliteRequests(file)) as requests:
                    gone += await requests.forget(scope, key)
            elif not scope:
                with closing(SqlitePayments(file)) as payments:
                    gone += await payments.forget(key)
    except StoreUnavailable as error:
        raise _unavailable(file, error) from error
    return gone


def _kept_in(file: Path) -> list[str]:
    """``requests``, ``payments``; the file is not changed."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            tables = {row[0] for row in opened.execute("select name from sqlite_master")}
    except sqlite3.Error as error:
        raise _unavailable(file, error) from error
    kinds = {"requests": "tenure_http_request", "payments": "tenure_payment"}
    found = [kind for kind, table in kinds.items() if table in tables]
    if not found:
        raise GuardNotInstalled(
            f"{file} holds nothing of a guard's.",
            next_step="Name the file that SqliteRequests or SqlitePayments was given.",
        )
    return found


def _unavailable(file: Path, error: Exception) -> GuardUnavailable:
    return GuardUnavailable(f"{file} cannot be used: {error}.")
