"""A coordinator killed or stopped around its commits, with another replica beside it."""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tenure.cli.drills.strikes import Act, Strike
from tenure.cli.local.ports import reserve_port
from tenure.contract import topology
from tenure.contract.faultpoints import FaultPoint
from tenure.coordinator.store.verify import verify
from tests.support.armed import armed_process, died, reached, stopped
from tests.support.books import Ledger, faults, read_log
from tests.support.coordinator import TOKENS, Caller, fleet, registration, report_of, until
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.sessions import session
from tests.support.waiting import eventually

POINTS = [FaultPoint.BEFORE_COMMIT, FaultPoint.AFTER_COMMIT]


@asynccontextmanager
async def armed(
    database: FreshDatabase, broker: BrokerSpace, strike: Strike | None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Caller]]:
    """A ready coordinator of its own process, and an application that asks it."""
    reservation = reserve_port()
    address = f"127.0.0.1:{reservation.port}"
    settings = {
        "TENURE_DATABASE_URL": database.coordinator_url,
        "TENURE_BROKER_URL": broker.url,
        "TENURE_NAME_PREFIX": broker.name_prefix,
        "TENURE_LISTEN": address,
        "TENURE_TOKENS": json.dumps(TOKENS),
        # One that is stopped answers after it has gone on, however long that took.
        "TENURE_REQUEST_DEADLINE_SECONDS": "600",
    }
    caller = Caller(f"http://{address}", str(TOKENS[0]["token"]))
    caller.http.timeout = httpx2.Timeout(600)
    try:
        async with armed_process("coordinator", settings, strike) as process:

            async def ready() -> bool:
                try:
                    return (await caller.get("/readyz")).status_code == 200
                except httpx2.TransportError:
                    return False

            await eventually(ready)
            yield process, caller
    finally:
        await caller.http.aclose()
        reservation.release()


async def submit(caller: Caller, key: str) -> str | None:
    """The task that a key was answered with; None: no answer, so nobody knows."""
    try:
        reply = await caller.post(
            "/v1/tasks", {"type": "sha256", "input": key}, headers={"Idempotency-Key": key}
        )
    except httpx2.TransportError:
        return None
    assert reply.status_code in (200, 201), reply.text
    return str(reply.json()["task_id"])


async def check_books(database: FreshDatabase, broker: BrokerSpace, ledger: Ledger) -> None:
    async with session(database.owner_url) as owner:
        log = await read_log(owner, topology.events_exchange(broker.name_prefix))
    assert faults(committed=log, ledger=ledger) == []
    assert (await verify(database.owner_url)).broken == {}


@pytest.mark.requirement("INC-01")
@pytest.mark.requirement("OPS-01")
@pytest.mark.parametrize("point", POINTS)
async def test_of_a_coordinator_killed_around_its_commit_each_submission_is_one_task(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path, point: FaultPoint
) -> None:
    strike = Strike(point, Act.KILL, tmp_path, nth=3, subject="submissions")
    ledger = Ledger()
    keys = [f"key-{number}" for number in range(30)]
    async with fleet(database, broker) as other:
        await other.register()
        async with armed(database, broker, strike) as (process, caller):
            unknown = []
            for key in keys:
                task_id = await submit(caller, key)
                if task_id is None:
                    unknown.append(key)
                else:
                    ledger.answered(key, task_id)
            await died(process)
        assert unknown == keys[2:]
        for key in keys:
            task_id = await submit(other.application, key)
            assert task_id is not None
            ledger.answered(key, task_id)
    assert len(ledger.tasks) == len(set(ledger.tasks.values())) == len(keys)
    await check_books(database, broker, ledger)


@pytest.mark.requirement("INC-01")
@pytest.mark.parametrize("point", POINTS)
async def test_while_a_coordinator_is_stopped_the_others_go_on_and_its_answer_is_theirs(
    database: FreshDatabase,
    broker: BrokerSpace,
    tmp_path: Path,
    point: FaultPoint,
    record_property: Callable[[str, Any], None],
) -> None:
    strike = Strike(point, Act.STOP, tmp_path, subject="submissions")
    ledger = Ledger()
    clock = asyncio.get_running_loop().time
    async with fleet(database, broker, node_silence_seconds=3600) as other:
        incarnation = await other.register(slots=50)
        async with armed(database, broker, strike) as (process, caller):
            asking = asyncio.create_task(submit(caller, "held"))
            pid = await reached(strike)
            await stopped(pid)
            longest = 0.0
            for number in range(20):
                began = clock()
                task_id = await submit(other.application, f"key-{number}")
                longest = max(longest, clock() - began)
                assert task_id is not None
                ledger.answered(f"key-{number}", task_id)
                await other.deliver(incarnation, task_id, {"sha256": "x"})
            record_property("longest_stall_seconds", longest)
            meanwhile = await submit(other.application, "held")
            assert not asking.done()
            process.send_signal(signal.SIGCONT)
            answer = await asking
            assert answer is not None
            assert answer == meanwhile
            ledger.answered("held", answer)
    await check_books(database, broker, ledger)


async def assignment(executor: Caller, node: str, incarnation: str) -> Any:
    """What the node has been given and has not ended; None: nothing."""
    reply = await executor.get(f"/v1/nodes/{node}/assignments", incarnation=incarnation)
    return next(iter(reply.json()["assignments"]), None)


EXECUTOR_TOKEN = str(TOKENS[1]["token"])
STOPS = 8
WHILE_STOPPED = 30
"""Tasks that the others submit and cancel before the stopped one goes on."""


@pytest.mark.requirement("OPS-01")
async def test_replicas_beside_one_that_is_stopped_again_and_again_refuse_nobody(
    database: FreshDatabase,
    broker: BrokerSpace,
    record_property: Callable[[str, object], None],
) -> None:
    """Stopped at random instants under load, with whatever it has open: its locks are released by
    the database's own limits, and the others go on: with submissions and cancellations, and with
    the reports and renewals of executors."""
    chance, loop = random.Random(7), asyncio.get_running_loop()
    over, done, stalls = asyncio.Event(), 0, [0.0]

    async def work(caller: Caller, name: str, *, counts: bool) -> None:
        nonlocal done
        number = 0
        while not over.is_set():
            number += 1
            began = loop.time()
            task_id = await submit(caller, f"{name}-{number}")
            if task_id is not None:
                reply = await caller.post(f"/v1/tasks/{task_id}/cancel", {})
                assert reply.status_code == 200, reply.text
            if counts:
                assert task_id is not None
                stalls.append(loop.time() - began)
                done += 1

    async def carry(caller: Caller, name: str) -> None:
        """An executor that carries one task after another through, under renewals."""
        nonlocal done
        node, executor = f"node-{name}", Caller(str(caller.http.base_url), EXECUTOR_TOKEN)
        body = registration(node, (name,))
        incarnation = body["incarnation"]
        assert (await executor.post("/v1/nodes", body)).status_code == 200
        try:
            while not over.is_set():
                created = await caller.post("/v1/tasks", {"type": name})
                assert created.status_code == 201, created.text
                given = await until(lambda: assignment(executor, node, incarnation))
                lease = {one: given[one] for one in ("task_id", "attempt_id", "fencing_token")}
                for path, content in (
                    ("reports", {"reports": [report_of(given, "take")]}),
                    ("renewals", {"leases": [lease]}),
                    ("reports", {"reports": [report_of(given, "deliver")]}),
                ):
                    began = loop.time()
                    reply = await executor.post(
                        f"/v1/nodes/{node}/{path}", {"incarnation": incarnation, **content}
                    )
                    (answer,) = reply.json()["replies"]
                    assert answer["outcome"] in ("applied", "renewed"), answer
                    stalls.append(loop.time() - began)
                done += 1
        finally:
            await executor.http.aclose()

    async with (
        fleet(database, broker) as api,
        armed(database, broker, None) as (_, second),
        armed(database, broker, None) as (victim, third),
    ):
        await api.register()
        async with asyncio.TaskGroup() as group:
            for caller, name in ((api.application, "first"), (second, "second")):
                for copy in range(2):
                    group.create_task(work(caller, f"{name}-{copy}", counts=True))
                group.create_task(carry(caller, name))
            for copy in range(4):
                group.create_task(work(third, f"third-{copy}", counts=False))
            for _ in range(STOPS):
                before, instant = done, chance.randrange(1, 20)
                await eventually(lambda: done >= before + instant)  # noqa: B023
                victim.send_signal(signal.SIGSTOP)
                await stopped(victim.pid)
                before = done
                await eventually(lambda: done >= before + WHILE_STOPPED)  # noqa: B023
                victim.send_signal(signal.SIGCONT)
            over.set()
        record_property("longest_stall_seconds", round(max(stalls), 3))
    assert (await verify(database.owner_url)).broken == {}
