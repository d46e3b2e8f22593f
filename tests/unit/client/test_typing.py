"""What an application's type checker sees, and what an application has to install."""

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.type_checks import errors_of

PROGRAM = """
from typing import assert_type

import asyncpg
import psycopg
from pydantic import BaseModel
from tenure.client import AsyncClient, AsyncTaskHandle, Client, TaskHandle, TaskType, enqueue

class In(BaseModel):
    path: str

class Out(BaseModel):
    digest: str

T = TaskType("t", input=In, output=Out)

async def use(
    client: AsyncClient,
    waiting: Client,
    pg: asyncpg.Connection,
    psy: psycopg.AsyncConnection[dict[str, int]],
    sync: psycopg.Connection[dict[str, int]],
) -> None:
    handle = await client.submit(T, In(path="a"))
    assert_type(handle, AsyncTaskHandle[Out])
    assert_type(await handle.result(timeout=1), Out)
    assert_type(await client.submit_many(T, [In(path="a")]), list[AsyncTaskHandle[Out]])
    assert_type(client.task("id", T), AsyncTaskHandle[Out])
    assert_type(waiting.submit(T, In(path="a")), TaskHandle[Out])
    assert_type(waiting.submit(T, In(path="a")).result(timeout=1), Out)
    assert_type(waiting.submit_many(T, [In(path="a")]), list[TaskHandle[Out]])
    assert_type(waiting.task("id", T), TaskHandle[Out])
    assert_type(await enqueue(pg, T, In(path="a"), idempotency_key="k", priority=1), str)
    assert_type(await enqueue(psy, T, In(path="a")), str)
    assert_type(enqueue(sync, T, In(path="a")), str)
"""


ADDITIONS = [
    ("", True),
    ("await client.submit(T, Out(digest='a'))", False),
    ("await client.submit(T, {'path': 'a'})", False),
    ("(await handle.result()).path", False),
    ("waiting.submit(T, Out(digest='a'))", False),
    ("waiting.task('id', T).result().path", False),
    ("await waiting.submit(T, In(path='a'))", False),
    ("await client.submit_many(T, [Out(digest='a')])", False),
    ("await enqueue(pg, T, Out(digest='a'))", False),
    ("await enqueue(psy, T, In(path='a'), key='k')", False),
    ("enqueue(sync, T, In(path='a'), priority='high')", False),
    ("await enqueue(sync, T, In(path='a'))", False),
    ("enqueue('postgresql://', T, In(path='a'))", False),
]


def test_mypy_judges_whether_input_and_output_fit_the_task_type(tmp_path: Path) -> None:
    programs = [PROGRAM + textwrap.indent(addition, "    ") + "\n" for addition, _ in ADDITIONS]
    errors = errors_of(programs, tmp_path)
    for (addition, fits), found in zip(ADDITIONS, errors, strict=True):
        assert (found == []) == fits, (addition, found)


def test_an_application_needs_the_client_extra_and_nothing_else() -> None:
    script = (
        "import sys, tenure.client\n"
        "installed = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(installed & {'aio_pika', 'asyncpg', 'cyclopts', 'prometheus_client',"
        " 'pydantic_settings', 'rich', 'starlette', 'structlog', 'uvicorn', 'uuid_utils'}))\n"
        "print(sorted(name for name in sys.modules if name.count('.') == 1"
        " and name.startswith('tenure.')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "['tenure.client', 'tenure.contract']"]
