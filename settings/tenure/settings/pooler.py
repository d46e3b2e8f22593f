"""Whether a connection pooler stands between a client and PostgreSQL, and of which kind.

Nothing in the protocol says so. But a pooler answers the start of a session itself, and gives a
process number of its own there, while a query tells the number of the process that runs it. And two
sessions that are served by one process at the same time can only be behind a pooler that hands out
server connections by the transaction.
"""

from typing import Any, Final, Protocol

from tenure.contract.errors import TenureError

_ATTEMPTS: Final = 5
_WHO: Final = "select pg_backend_pid()"


class Session(Protocol):
    """A session of the database driver."""

    def get_server_pid(self) -> int:
        """The process number that the start of the session told."""

    async def fetchval(self, query: str) -> Any:
        """The first value of the first row."""


class PoolerNotDeclared(TenureError):
    """A pooler in transaction mode, and a process that was not told so."""

    code = "pooler_not_declared"

    def __init__(self) -> None:
        super().__init__(
            "The database is reached through a connection pooler in transaction mode, and"
            " TENURE_POOLED is not set.",
            next_step="Set TENURE_POOLED=true, or connect directly.",
        )


async def is_pooled(session: Session) -> bool:
    """Whether a pooler, of whatever kind, stands before the server."""
    return bool(session.get_server_pid() != await session.fetchval(_WHO))


async def share_a_server(one: Session, other: Session) -> bool:
    """Whether both sessions were seen to be served by one process: then the pooler hands out server
    connections by the transaction. A pooler in use may hide that; it is tried a few times."""
    for _ in range(_ATTEMPTS):
        if await one.fetchval(_WHO) == await other.fetchval(_WHO):
            return True
    return False
