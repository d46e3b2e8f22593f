"""What ``docs/guards.md`` shows of SQL does what it says."""

import re

import asyncpg
import pytest

from tests.support.downstream import downstream
from tests.support.isolation import FreshDatabase
from tests.support.repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "guards.md").read_text(encoding="utf-8")

IN_THE_WAY = """
create function own.tenure_require(text, text) returns void language sql as 'select'
"""
"""Of a writer's own, in a schema that it may look in first."""


@pytest.mark.requirement("LEASE-10")
async def test_the_recipe_in_plain_sql_writes_once_and_refuses_an_older_token(
    empty_database: FreshDatabase,
) -> None:
    recipe, scoped, asking = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    older = recipe.replace("4294967297", "4294967296").replace("'payment'", "'another'")
    expired = recipe.replace("now() + interval '30 s", "now() - interval '30 s")
    async with downstream(empty_database.admin_url) as receiver:
        await receiver.owner.execute(
            "create table payments (order_id text, cents bigint, fencing_token bigint);"
            f"grant insert on payments to {receiver.role}"
        )
        writer = await asyncpg.connect(receiver.writer_url)
        try:
            await writer.execute(recipe)
            for refused, sqlstate in ((older, "TN001"), (expired, "TN002")):
                with pytest.raises(asyncpg.PostgresError) as caught:
                    await writer.execute(refused)
                assert caught.value.sqlstate == sqlstate
                await writer.execute("rollback")
            await writer.execute(scoped)
            outside = scoped.replace("'orders/17'", "'orders/18'").replace("'payment of", "'not")
            wider = scoped.replace("{order}", "*").replace("'payment of", "'wider")
            for refused in (outside, wider):
                with pytest.raises(asyncpg.PostgresError) as caught:
                    await writer.execute(refused)
                assert caught.value.sqlstate == "TN003"
                await writer.execute("rollback")
            await receiver.owner.execute(asking)
            unguarded = "insert into payments values ('17', 1250, 1)"
            await receiver.owner.execute(f"create schema own authorization {receiver.role}")
            await writer.execute(IN_THE_WAY)
            own = scoped.replace("payment of order 17", "once more")
            another = own.replace("values ('17'", "values ('18'")
            shadowed = f"begin; set local search_path = own, public; {unguarded}"
            for refused in (unguarded, another, shadowed):
                with pytest.raises(asyncpg.PostgresError) as caught:
                    await writer.execute(refused)
                assert caught.value.sqlstate == "TN003"
                await writer.execute("rollback")
            await writer.execute(own)
            settled = "select tenure_settle($1, $2, 'payment', 4294967297)"
            task, attempt = re.findall(r"'([0-9a-f-]{36})'", recipe)
            assert await writer.fetchval(settled, task, attempt)
        finally:
            await writer.close()
        assert await receiver.owner.fetchval("select count(*) from payments") == 3
