"""What ``docs/enqueue.md`` shows does what it says."""

import re
import textwrap
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from tenure.client import TaskType
from tenure.client.intake import CODES
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tests.support.enqueueing import application
from tests.support.isolation import FreshDatabase
from tests.support.repository import REPOSITORY
from tests.support.sessions import session

PAGE = (REPOSITORY / "docs" / "enqueue.md").read_text(encoding="utf-8")


class InvoiceIn(BaseModel):
    order_id: int


Invoice = TaskType("invoice", input=InvoiceIn, output=InvoiceIn)


def block(language: str) -> str:
    """The one block of this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
async def connection(emptied_database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    async with application(emptied_database) as login, session(login.url) as connection:
        await connection.execute(
            f"create table {login.role}.orders (id integer primary key, customer text);"
            f"set search_path = {login.role}"
        )
        yield connection


async def rows(database: FreshDatabase) -> list[asyncpg.Record]:
    async with session(database.owner_url) as owner:
        return await owner.fetch("select type, input, idempotency_key, task_id from tenure.intake")


async def test_the_sql_and_the_python_ask_for_the_same_task(
    connection: asyncpg.Connection, emptied_database: FreshDatabase
) -> None:
    await connection.execute(block("sql"))
    (row,) = await rows(emptied_database)
    assert (row["type"], row["idempotency_key"]) == ("invoice", "invoice for order 17")
    await connection.execute("delete from orders")
    names: dict[str, Any] = {"connection": connection, "Invoice": Invoice, "InvoiceIn": InvoiceIn}
    program = f"async def example():\n{textwrap.indent(block('python'), '    ')}    return task_id"
    exec(compile(program, "docs/enqueue.md", "exec"), names)
    assert await names["example"]() == str(row["task_id"])
    assert len(await rows(emptied_database)) == 1
    assert await connection.fetchval("select count(*) from orders") == 1


async def test_every_parameter_and_its_default_are_on_the_page(
    emptied_database: FreshDatabase,
) -> None:
    async with session(emptied_database.owner_url) as owner:
        arguments: str = await owner.fetchval(
            "select pg_get_function_arguments('tenure.enqueue'::regproc)"
        )
    for argument in arguments.replace("timestamp with time zone", "timestamptz").split(", "):
        declared = argument.partition(" DEFAULT")[0]
        assert f"`{declared}`" in PAGE


async def test_every_code_and_limit_is_on_the_page(emptied_database: FreshDatabase) -> None:
    listed = dict(re.findall(r"\| `(TN\d+)` \| `(\w+)` \|", PAGE))
    assert listed == {state: code for state, code in CODES.items() if state.startswith("TN")}
    async with session(emptied_database.owner_url) as owner:
        source: str = await owner.fetchval("select prosrc from pg_proc where proname = 'enqueue'")
    assert set(re.findall(r"TN\d+", source)) == set(listed)
    assert f":= {DEFAULT_PAYLOAD_LIMIT_BYTES};" in source
    assert f"{DEFAULT_PAYLOAD_LIMIT_BYTES // 1024} KiB" in PAGE
