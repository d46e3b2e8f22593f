"""Guards: how a receiver of effects refuses an attempt that may act no longer (LEASE-10).

| Receiver | Sender's half | Receiver's half |
|---|---|---|
| PostgreSQL | ``sql``, ``psycopg``, ``sqlalchemy`` | ``sql_install.sql`` |
| HTTP | ``http`` | ``http_receiver``, over ``http_store`` or ``http_postgres`` |
| object store | ``objects`` | the store's create-only put |
| payment gateway | ``payment``, with ``payment_postgres`` | the gateway's own identifiers |

``sql_async`` and ``sql_sync`` hold the one order of steps of all drivers. ``conformance*`` tries a
receiver out; ``sql_inspection`` and ``sql_prune`` are for operators.
"""

from typing import Any, Protocol

from tenure.executor.context import Context


class Guard(Protocol):
    """A receiver that checks fencing tokens."""

    async def raise_fence(self, context: Context[Any]) -> None:
        """Make the receiver refuse every older token of the task, before the handler has control.

        Called again after an unknown outcome, so it must be repeatable. Raises AuthorityError when
        the receiver refuses, GuardUnavailable when it may be repeated, another GuardError else.
        """
