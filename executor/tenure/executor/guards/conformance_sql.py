"""The checks of a guarded PostgreSQL, as an executor's login. Needs the extra ``sql``."""

from datetime import datetime

import asyncpg

from tenure.contract.scope import Scope
from tenure.executor.context import Context
from tenure.executor.errors import AuthorityOver, GuardUnavailable, OutOfScope, StaleToken
from tenure.executor.guards.conformance import (
    Check,
    Outcome,
    Unexpected,
    probe,
    refused,
    run,
    successor,
)
from tenure.executor.guards.sql import SqlGuard
from tenure.executor.guards.sql_inspection import inspect

_PAUSE_SECONDS = 1.0


async def check_sql(url: str, *, schema: str = "public") -> list[Outcome]:
    """Its outcomes, in order. Raises GuardUnavailable when the database cannot be asked."""
    facts = await inspect(url, schema=schema)
    async with asyncpg.create_pool(url, min_size=0, max_size=4) as pool:
        guard = SqlGuard(pool, schema=schema)

        async def now() -> datetime:
            found: datetime = await pool.fetchval("select clock_timestamp()")
            return found

        async def write(context: Context[None], operation: str = "row") -> bool:
            """Whether it was written, and not done before."""
            async with guard.transaction(context, operation=operation) as effect:
                return not effect.already_done

        async def installed() -> None:
            if facts.lacking:
                raise Unexpected(f"missing, or not for this account: {', '.join(facts.lacking)}")
            if facts.writable:
                raise Unexpected(
                    f"{facts.user_name} may write to {', '.join(facts.writable)} by itself:"
                    " check as the account that executors log in with"
                )

        async def once() -> None:
            context = probe()
            await guard.raise_fence(context)
            if not await write(context):
                raise Unexpected("a new effect was done already")
            if await write(context) or await write(successor(context)):
                raise Unexpected("it was written twice")

        async def older() -> None:
            context = probe()
            if not await write(successor(context)):
                raise Unexpected("a new effect was done already")
            await refused(write(context, "another"), StaleToken)

        async def untouched() -> None:
            context = probe()
            await guard.raise_fence(context)
            await guard.raise_fence(successor(context))
            await refused(write(context), StaleToken)

        async def over() -> None:
            late = probe(now=await now(), lease_seconds=-1.0)
            await refused(guard.raise_fence(late), AuthorityOver)
            await refused(write(late), AuthorityOver)

        async def paused() -> None:
            context = probe(now=await now(), lease_seconds=_PAUSE_SECONDS)

            async def holder() -> None:
                async with guard.transaction(context, operation="row"):
                    # It does nothing; its successor waits until the server has ended it.
                    await guard.raise_fence(successor(context))

            await refused(holder(), AuthorityOver)

        async def outside() -> None:
            context = probe(scope=Scope(operations=("row",), objects=("this",)))

            async def unasked(operation: str, key: str) -> None:
                """Without the sender's own check."""
                begun = context.side_effect(operation, key=key)
                async with guard.step(context, "row", begun):
                    pass

            await refused(unasked("row", "another"), OutOfScope)
            await refused(unasked("another", "this"), OutOfScope)
            await unasked("row", "this")

        checks: dict[str, Check] = {
            "the guard is installed, and this account can only call it": installed,
            "an effect is written once, by whichever attempt": once,
            "an older token is refused": older,
            "an old holder is refused before its successor has written": untouched,
            "an equal token is refused after the end of its lease": over,
            "a transaction paused between check and commit is ended": paused,
            "what the scope of the lease does not permit is refused": outside,
        }
        try:
            return await run(checks)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise GuardUnavailable(f"the downstream database was lost: {error}.") from error
