"""A record of payments in PostgreSQL for handlers in threads, over psycopg and under the SQL guard.

The same table and the same rules as ``payment_postgres``. Needs the extra ``psycopg``.
"""

from typing import Any, Final

from psycopg.rows import tuple_row

from tenure.executor.context import Context
from tenure.executor.core.paying import Known
from tenure.executor.guards.payment_course import Entry
from tenure.executor.guards.payment_table import intent_step, outcome_step
from tenure.executor.guards.psycopg import PsycopgGuard
from tenure.executor.guards.sql_install import quoted
from tenure.executor.side_effects import SideEffect


class PsycopgPayments:
    """Over the SQL guard of the database. ``schema`` is where the table is.

    Name it in ``guards`` of the handler: its fence is the SQL guard's.
    """

    shared: Final = True

    def __init__(self, guard: PsycopgGuard, *, schema: str = "public") -> None:
        self._guard = guard
        self._table = f"{quoted(schema)}.tenure_payment".replace("%", "%%")

    async def raise_fence(self, context: Context[Any]) -> None:
        """As that of the SQL guard."""
        await self._guard.raise_fence(context)

    def intend_now(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """As BlockingPaymentRecord says. Raises what ``PsycopgGuard.transaction`` raises."""
        with (
            self._guard.step(context, intent_step(begun.id, context.attempt_id), begun) as effect,
            effect.connection.cursor(row_factory=tuple_row) as cursor,
        ):
            cursor.execute(
                f"select known, digest, content from {self._table}"
                " where payment_id = %s for update".encode(),
                (begun.id,),
            )
            row = cursor.fetchone()
            if row is not None:
                return Entry(Known(row[0]), row[1], row[2])
            cursor.execute(
                f"insert into {self._table}"
                " (payment_id, task_id, operation, digest, known, content, fencing_token)"
                " values (%s, %s, %s, %s, 'intended', '', %s)".encode(),
                (begun.id, context.task_id, begun.name, digest, context.fencing_token),
            )
        return Entry(Known.NEW, digest)

    def settle_now(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """As BlockingPaymentRecord says. Raises what ``PsycopgGuard.transaction`` raises."""
        with self._guard.step(context, outcome_step(begun.id), begun) as effect:
            if not effect.already_done:
                effect.connection.execute(
                    f"update {self._table}"
                    " set known = %s, content = %s, fencing_token = %s, settled_at = now()"
                    " where payment_id = %s and known = 'intended'".encode(),
                    (entry.known, entry.content, context.fencing_token, begun.id),
                )
