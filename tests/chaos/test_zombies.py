"""A worker's process is stopped in front of its effect; its successor does the work; it wakes.

Its own checks are switched off: the clock of its lease stands still, and it believes that it may
act. For each guard it is the receiver that refuses its effect.
"""

import asyncio
import contextlib
import json
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from tenure.cli.local import processes
from tenure.contract.ids import fencing_token
from tenure.executor.guards.http_receiver import GuardMiddleware, Receive, Scope, Send
from tenure.executor.guards.http_store import SqliteRequests
from tenure.executor.guards.objects import Manifest
from tenure.executor.guards.payment_table import table
from tests.support.downstream import Downstream, downstream, server_says
from tests.support.gateway import gateway
from tests.support.isolation import FreshDatabase
from tests.support.s3 import S3Server
from tests.support.serving import serving
from tests.support.waiting import eventually
from tests.support.zombie import Told, end_of_lease, outcome_of, process_of

pytestmark = [pytest.mark.requirement("LEASE-10"), pytest.mark.requirement("LEASE-09")]


def told(kind: str, where: str, *, lease_seconds: float = 60.0, record: str = "") -> Told:
    """The first attempt of a new task."""
    return Told(
        kind=kind,
        where=where,
        task_id=str(uuid.uuid4()),
        attempt_id=str(uuid.uuid4()),
        token=fencing_token(1, 1),
        lease_seconds=lease_seconds,
        record=record,
    )


def successor_of(zombie: Told) -> Told:
    """The next attempt, which is not stopped."""
    return replace(
        zombie,
        attempt_id=str(uuid.uuid4()),
        token=fencing_token(1, 2),
        stops=False,
        lease_seconds=60.0,
    )


@contextlib.asynccontextmanager
async def standing(
    zombie: Told,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, datetime]]:
    """The process, which stands still in front of its effect, and the end of its lease."""
    async with process_of(zombie) as process:
        expires_at = await end_of_lease(process)

        def stands() -> bool:
            assert process.returncode is None, "it did not get that far"
            return processes.is_stopped(process.pid)

        await eventually(stands)
        yield process, expires_at


async def wake(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Continue it; what came of its effect."""
    process.send_signal(signal.SIGCONT)
    return await outcome_of(process)


async def work(successor: Told) -> None:
    """The successor's whole work."""
    async with process_of(successor) as process:
        await end_of_lease(process)
        assert await outcome_of(process) == ("done", "")


@pytest.fixture
async def receiver(empty_database: FreshDatabase) -> AsyncIterator[Downstream]:
    async with downstream(empty_database.admin_url) as made:
        yield made


async def test_sql_refuses_a_zombie_that_was_stopped_before_its_transaction(
    receiver: Downstream,
) -> None:
    zombie = told("sql_before", receiver.writer_url)
    successor = successor_of(zombie)
    async with standing(zombie) as (process, _):
        await work(successor)
        assert await wake(process) == ("StaleToken", "TN001")
    assert await receiver.effects(zombie.task_id) == [successor.attempt_id]


async def test_sql_refuses_a_zombie_without_a_successor_once_its_lease_is_over(
    receiver: Downstream,
) -> None:
    zombie = told("sql_before", receiver.writer_url, lease_seconds=4.0)
    async with standing(zombie) as (process, expires_at):
        over = expires_at + timedelta(seconds=0.2)
        await server_says(receiver.owner, "select clock_timestamp() > $1", over)
        assert await wake(process) == ("AuthorityOver", "TN002")
    assert await receiver.effects(zombie.task_id) == []


@pytest.mark.parametrize(
    "kind",
    [
        "sql_within",
        "psycopg_within",
        "async_psycopg_within",
        "sqlalchemy_within",
        "blocking_sqlalchemy_within",
        "plain_sql_within",
    ],
)
async def test_sql_ends_the_transaction_of_a_zombie_that_was_stopped_within_it(
    receiver: Downstream, kind: str
) -> None:
    """Its successor is not kept waiting until it wakes."""
    zombie = told(kind, receiver.writer_url, lease_seconds=4.0)
    successor = successor_of(zombie)
    async with standing(zombie) as (process, _):
        await work(successor)
        # By a clock that stands still the loss came early: what was lost was not the authority.
        raised, _ = await wake(process)
        if kind == "plain_sql_within":
            assert raised != "done"  # what its driver calls a connection that was ended
        else:
            assert raised in ("AuthorityOver", "EffectNotWritten")
    assert await receiver.effects(zombie.task_id) == [successor.attempt_id]


@pytest.mark.parametrize(
    ("kind", "guarded"),
    [("http", True), ("http", False), ("blocking_http", True)],
    ids=["guarded", "unguarded", "in a thread"],
)
async def test_http_refuses_a_zombie(tmp_path: Path, kind: str, guarded: bool) -> None:
    """Unguarded, which is the same application without the middleware, it acts."""
    orders: list[str] = []
    answers: list[int] = []

    async def shop(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/orders":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        orders.append((await receive())["body"].decode())
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with contextlib.closing(SqliteRequests(tmp_path / "requests.db")) as store:
        application = GuardMiddleware(shop, store) if guarded else shop

        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            async def note(message: Any) -> None:
                if message["type"] == "http.response.start" and scope["path"] == "/orders":
                    answers.append(message["status"])
                await send(message)

            await application(scope, receive, note)

        async with serving(watched) as url:
            zombie = told(kind, url)
            successor = successor_of(zombie)
            async with standing(zombie) as (process, _):
                await work(successor)
                assert (await wake(process))[0] == ("StaleToken" if guarded else "done")
    if guarded:
        assert (orders, answers) == ([successor.attempt_id], [201, 412])
    else:
        assert orders == [successor.attempt_id, zombie.attempt_id]


@pytest.fixture(params=["folder", "S3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str]:
    """A store, and how a process of its own is told of it."""
    if request.param == "folder":
        folder = tmp_path / "objects"
        return LocalStore(folder, mkdir=True), json.dumps(str(folder))
    server: S3Server = request.getfixturevalue("object_server")
    return server.store(), json.dumps(asdict(server))


async def test_an_object_store_refuses_a_zombie(objects: tuple[Any, str]) -> None:
    store, where = objects
    zombie = told("objects", where)
    successor = successor_of(zombie)
    async with standing(zombie) as (process, _):
        await work(successor)
        assert (await wake(process))[0] == "StaleToken"
    commits = f"tenure/{zombie.task_id}/commits/outputs"
    found = {
        meta["path"].rpartition("/")[2]: bytes(store.get(meta["path"]).bytes())
        for chunk in store.list(commits)
        for meta in chunk
    }
    assert found[f"{zombie.token:016d}"] == b'{"sealed_by":%d}' % successor.token
    committed = Manifest.model_validate_json(found[f"{successor.token:016d}"])
    assert committed.attempt_id == successor.attempt_id


async def test_a_gateway_refuses_the_payment_of_a_zombie(tmp_path: Path) -> None:
    async with gateway() as bank:
        zombie = told("payment", bank.url, record=str(tmp_path / "payments.db"))
        async with standing(zombie) as (process, _):
            await work(successor_of(zombie))
            assert (await wake(process))[0] == "done", "it learns what was paid"
        ledger = await bank.ledger()
    assert (len(ledger["charges"]), ledger["refused"]) == (1, 1)


@pytest.mark.parametrize("where", ["file", "database"])
async def test_a_record_of_payments_refuses_a_zombie_before_it_sends(
    receiver: Downstream, tmp_path: Path, where: str
) -> None:
    """To a gateway that would charge twice."""
    await receiver.owner.execute(table(roles=[receiver.role]))
    record = str(tmp_path / "payments.db") if where == "file" else receiver.writer_url
    async with gateway(deduplicates=False) as bank:
        zombie = told("payment_before", bank.url, record=record)
        async with standing(zombie) as (process, _):
            await work(successor_of(zombie))
            assert (await wake(process))[0] == "StaleToken"
        ledger = await bank.ledger()
    assert len(ledger["charges"]) == 1
