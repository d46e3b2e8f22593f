"""The executor killed at each of its named points: the task is done, its effect is there once."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from tenure.cli.drills.strikes import Act, Strike
from tenure.contract.faultpoints import FaultPoint
from tenure.coordinator.store.verify import verify
from tests.support.armed import died
from tests.support.armed_app import DOWNSTREAM, STRIKE, executor
from tests.support.coordinator import Fleet, fleet
from tests.support.downstream import Downstream, downstream
from tests.support.executors import (
    EXECUTOR_TOKEN,
    attempts,
    executing,
    registered,
    result,
    settings_of,
)
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.repository import REPOSITORY
from tests.support.sessions import session

POINTS = [
    FaultPoint.AFTER_INBOX,
    FaultPoint.AFTER_ACK,
    FaultPoint.BEFORE_HANDLER,
    FaultPoint.BEFORE_EFFECT,
    FaultPoint.AFTER_EFFECT,
    FaultPoint.BEFORE_REPORT,
]


async def start(
    api: Fleet, broker: BrokerSpace, receiver: Downstream, folder: Path, strike: Strike
) -> asyncio.subprocess.Process:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TENURE_")},
        "TENURE_URL": api.coordinator.url,
        "TENURE_TOKEN": EXECUTOR_TOKEN,
        "TENURE_BROKER_URL": broker.url,
        "TENURE_STATE_DIR": str(folder),
        "TENURE_NODE": "victim",
        "TENURE_SLOTS": "1",
        "TENURE_COMPARISON_SECONDS": "3600",  # by message, so that there is an ack to follow
        STRIKE: strike.as_json(),
        DOWNSTREAM: receiver.writer_url,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.armed_app", env=environment, cwd=REPOSITORY
    )


async def let_time_pass(database: FreshDatabase) -> None:
    """The victim has been silent for long, and its lease is over. A lease so short that a test
    could wait for it would end in the hands of the living as well."""
    async with session(database.owner_url) as owner:
        await owner.execute(
            "update tenure.incarnations set last_seen_at = last_seen_at - interval '1 hour'"
            " where node_id = 'victim'"
        )
        ended = await owner.execute(
            "update tenure.attempts set expires_at = clock_timestamp() - interval '1 ms'"
            " where ended_at is null"
        )
    assert ended == "UPDATE 1"


@pytest.mark.requirement("OPS-01")
@pytest.mark.requirement("INC-02")
@pytest.mark.parametrize("point", POINTS)
async def test_work_of_an_executor_killed_at_any_point_is_done_and_its_effect_is_there_once(
    database: FreshDatabase, broker: BrokerSpace, tmp_path: Path, point: FaultPoint
) -> None:
    """Its inbox is lost with it: neither the broker nor the dead process knows of the task."""
    inbox, signs = tmp_path / "inbox", tmp_path / "signs"
    signs.mkdir()
    strike = Strike(point, Act.KILL, signs)
    async with (
        fleet(database, broker) as api,
        downstream(database.admin_url) as receiver,
        relaying(database.relay_url, broker.url, broker.name_prefix),
    ):
        victim = await start(api, broker, receiver, inbox, strike)
        try:
            await registered(api, "victim")
            task_id = await api.submit(type="write", input={"value": "x"})
            await died(victim)
        finally:
            if victim.returncode is None:
                victim.kill()
            await victim.wait()
        shutil.rmtree(inbox)
        app = executor(receiver.writer_url)
        async with executing(app, settings_of(api, broker, tmp_path, node="heir")):
            await registered(api, "heir")
            await let_time_pass(database)
            assert (await result(api, task_id))["state"] == "delivered"
        assert await receiver.effects(task_id) == ["x"]
        tried = await attempts(api, task_id)
        assert len(tried) == 2
        assert {each["node_id"] for each in tried} == {"victim", "heir"}
        assert (await verify(database.owner_url)).broken == {}
