"""A record of payments in PostgreSQL, shared by all executors, under the SQL guard.

``tenure guard payment --print --role ACCOUNT`` prints its table, beside which the SQL guard has to
be installed. A stale attempt is refused when it writes its intention down, before it has sent
anything. Needs the extra ``sql``.
"""

from typing import Any, Final

from tenure.executor.context import Context
from tenure.executor.core.paying import Known
from tenure.executor.guards.payment_course import Entry
from tenure.executor.guards.payment_table import intent_step, outcome_step
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_install import quoted
from tenure.executor.side_effects import SideEffect


class PostgresPayments:
    """Over the SQL guard of the database. ``schema`` is where the table is.

    Name it in ``guards`` of the handler: its fence is the SQL guard's.
    """

    shared: Final = True

    def __init__(self, guard: SqlGuard, *, schema: str = "public") -> None:
        self._guard = guard
        self._table = f"{quoted(schema)}.tenure_payment"

    async def raise_fence(self, context: Context[Any]) -> None:
        """As that of the SQL guard."""
        await self._guard.raise_fence(context)

    async def intend(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """As PaymentRecord says. Raises what ``SqlGuard.transaction`` raises."""
        step = intent_step(begun.id, context.attempt_id)
        async with self._guard.step(context, step, begun) as effect:
            row = await effect.connection.fetchrow(
                f"select known, digest, content from {self._table}"
                " where payment_id = $1 for update",
                begun.id,
            )
            if row is not None:
                return Entry(Known(row["known"]), row["digest"], row["content"])
            await effect.connection.execute(
                f"insert into {self._table}"
                " (payment_id, task_id, operation, digest, known, content, fencing_token)"
                " values ($1, $2, $3, $4, 'intended', '', $5)",
                begun.id,
                context.task_id,
                begun.name,
                digest,
                context.fencing_token,
            )
        return Entry(Known.NEW, digest)

    async def settle(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """As PaymentRecord says. Raises what ``SqlGuard.transaction`` raises."""
        async with self._guard.step(context, outcome_step(begun.id), begun) as effect:
            if not effect.already_done:
                await effect.connection.execute(
                    f"update {self._table}"
                    " set known = $2, content = $3, fencing_token = $4, settled_at = now()"
                    " where payment_id = $1 and known = 'intended'",
                    begun.id,
                    entry.known,
                    entry.content,
                    context.fencing_token,
                )
