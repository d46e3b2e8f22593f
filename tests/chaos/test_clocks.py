"""Clocks that are wrong: the database's is set while work is under way, and coordinators and
executors go by clocks of their own. On real servers, under a shifted clock."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenure.cli.local.ports import LOOPBACK, reserve_port
from tenure.contract.codec import decode_event
from tenure.contract.codes import Code
from tenure.coordinator.core.commands import Take
from tenure.coordinator.core.snapshot import LeasePolicy
from tests.support.authority import Bench, replica
from tests.support.clusters import ShiftedClock, on, started
from tests.support.coordinator import TOKENS, Caller, registration, report_of, until
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase
from tests.support.services import local_postgres


@asynccontextmanager
async def clocked(directory: Path) -> AsyncIterator[tuple[Bench, ShiftedClock]]:
    """A replica over a database whose clock the test sets."""
    clock = ShiftedClock(directory / f"clock-{secrets.token_hex(4)}")
    async with local_postgres(directory) as first:
        server = DatabaseServer(first.url())
        await server.prepare()
        database = await server.create_migrated(f"clocks_{secrets.token_hex(4)}")
        await first.stop()
        async with (
            started(first.directory, environment=clock.environment) as shifted,
            replica(on(shifted, database)) as bench,
        ):
            yield bench, clock


async def recorded(bench: Bench, task_id: Any) -> list[datetime]:
    return [decode_event(event["body"]).recorded_at for event in await bench.events(task_id)]


@pytest.mark.requirement("LEASE-05")
@pytest.mark.requirement("LEASE-08")
async def test_time_never_runs_back_for_a_task_and_the_step_is_counted(
    server_directory: Path,
) -> None:
    async with clocked(server_directory) as (bench, clock):
        await bench.register(slots=9)
        held, other = await bench.running(), await bench.running()
        before = await bench.attempt(held)
        await bench.authority.standing()
        clock.shift("-30m")
        await bench.authority.standing()
        assert bench.authority.clock.backward_steps == 1
        assert bench.authority.clock.last_step_microseconds < -29 * 60 * 1_000_000
        # The clock stands still for what was decided by it, so nothing is renewed for longer than
        # was agreed, nothing that was granted is shortened, and what is recorded stays in order.
        renewed = await bench.renew(held)
        assert renewed.reply is not None
        assert renewed.reply.expires_at is not None
        assert renewed.reply.expires_at - renewed.now <= LeasePolicy().lease_microseconds
        after = await bench.attempt(held)
        assert after["expires_at"] >= before["expires_at"]
        assert after["decided_at"] >= before["decided_at"]
        assert (await bench.deliver(held)).reply is not None
        instants = await recorded(bench, held.task_id)
        assert instants == sorted(instants)
        # What the clock has not reached yet is not over, and the other way round.
        early = await bench.expire(other.task_id)
        assert early.refused is not None
        clock.shift("+2h")
        await bench.authority.standing()
        assert bench.authority.clock.forward_steps == 1
        late = await bench.renew(other)
        assert late.refused is not None
        assert late.refused.code == Code.LEASE_EXPIRED
        assert (await bench.expire(other.task_id)).reply is not None
        await bench.authority.renew([], other.incarnation)
        successor = await bench.assigned(other.task_id)
        assert (await bench.report(Take, successor)).reply is not None
        assert successor.fencing_token > other.fencing_token
        # And back to where it was: the successor's lease does not end before its time.
        clock.shift("+0")
        assert (await bench.deliver(successor)).reply is not None
        instants = await recorded(bench, other.task_id)
        assert instants == sorted(instants)


PROGRAM = (
    "import asyncio; from tenure.coordinator.app import run;"
    " from tenure.coordinator.config import load_settings; asyncio.run(run(load_settings()))"
)
LEASE_SECONDS = 8.0
"""Long enough for a busy machine's renewals, short beside the ninety seconds."""
HELD_FOR_LEASES = 1.5
TASKS = 20


@asynccontextmanager
async def coordinator_by(
    clock: str, database: FreshDatabase, broker: BrokerSpace, directory: Path
) -> AsyncIterator[str]:
    """A coordinator process by another clock; where it listens."""
    shifted = ShiftedClock(directory / f"clock-{secrets.token_hex(4)}")
    shifted.shift(clock)
    port = reserve_port()
    url = f"http://{LOOPBACK}:{port.port}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("TENURE_")},
            **shifted.environment,
            "TENURE_DATABASE_URL": database.coordinator_url,
            "TENURE_BROKER_URL": broker.url,
            "TENURE_NAME_PREFIX": broker.name_prefix,
            "TENURE_TOKENS": json.dumps(TOKENS),
            "TENURE_LISTEN": f"{LOOPBACK}:{port.port}",
            "TENURE_LEASE_SECONDS": str(LEASE_SECONDS),
            "TENURE_CLOCK_TOLERANCE_SECONDS": "0.5",
        },
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        port.release()


async def ready(callers: list[Caller]) -> bool:
    for caller in callers:
        try:
            if (await caller.get("/readyz")).status_code != 200:
                return False
        except OSError:
            return False
        except Exception as error:
            if "connect" not in type(error).__name__.lower():
                raise
            return False
    return True


@pytest.mark.requirement("LEASE-05")
async def test_coordinators_by_shifted_clocks_take_no_lease_that_is_renewed(
    database: FreshDatabase, broker: BrokerSpace, server_directory: Path
) -> None:
    """T9: 90 seconds ahead and 90 behind, with leases of a few seconds."""
    async with (
        coordinator_by("+90s", database, broker, server_directory) as ahead,
        coordinator_by("-90s", database, broker, server_directory) as behind,
    ):
        by_token = {str(one["name"]): str(one["token"]) for one in TOKENS}
        executors = [Caller(url, by_token["fleet"]) for url in (ahead, behind)]
        application = Caller(ahead, by_token["shop"])
        owner = await asyncpg.connect(database.owner_url)
        try:
            await until(lambda: ready(executors))
            body = registration(slots=TASKS)
            incarnation = body["incarnation"]
            assert (await executors[0].post("/v1/nodes", body)).status_code == 200
            for _ in range(TASKS):
                assert (await application.post("/v1/tasks", {"type": "sha256"})).status_code == 201

            async def assigned() -> Any:
                await executors[1].post("/v1/nodes/node-1/renewals", {"incarnation": incarnation})
                reply = await executors[1].get(
                    "/v1/nodes/node-1/assignments", incarnation=incarnation
                )
                found = reply.json()["assignments"]
                return found if len(found) == TASKS else None

            attempts = await until(assigned)
            taken = await executors[0].post(
                "/v1/nodes/node-1/reports",
                {
                    "incarnation": incarnation,
                    "reports": [report_of(one, "take") for one in attempts],
                },
            )
            assert {reply["outcome"] for reply in taken.json()["replies"]} == {"applied"}
            leases = [
                {name: one[name] for name in ("task_id", "attempt_id", "fencing_token")}
                for one in attempts
            ]
            since = await owner.fetchval("select clock_timestamp()")
            turn = 0
            while (await owner.fetchval("select clock_timestamp()")) < since + timedelta(
                seconds=HELD_FOR_LEASES * LEASE_SECONDS
            ):
                turn += 1
                reply = await executors[turn % 2].post(
                    "/v1/nodes/node-1/renewals", {"incarnation": incarnation, "leases": leases}
                )
                replies = reply.json()["replies"]
                assert {one["outcome"] for one in replies} == {"renewed"}
                assert max(one["remaining_seconds"] for one in replies) <= LEASE_SECONDS
                # By the database's clock only, whoever renewed.
                assert await owner.fetchval(
                    "select bool_and(expires_at between clock_timestamp()"
                    " and clock_timestamp() + $1::float8 * interval '1 second')"
                    " from tenure.attempts",
                    LEASE_SECONDS,
                )
                await asyncio.sleep(0.2)
            delivered = await executors[1].post(
                "/v1/nodes/node-1/reports",
                {
                    "incarnation": incarnation,
                    "reports": [report_of(one, "deliver") for one in attempts],
                },
            )
            assert {reply["outcome"] for reply in delivered.json()["replies"]} == {"applied"}
            assert await owner.fetchval("select max(generation) from tenure.tasks") == 1
        finally:
            await owner.close()
            for caller in (*executors, application):
                await caller.http.aclose()
