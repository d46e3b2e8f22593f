"""``tenure doctor`` before real servers, as the processes would use them."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
import pytest

from tenure.cli.exits import Exit
from tenure.cli.local import processes
from tenure.contract.topology import dead_letter_queue, events_exchange
from tenure.coordinator.store.inspection import needed
from tests.support.broker_users import broker_user
from tests.support.coordinator import TOKENS, fleet
from tests.support.downstream import downstream
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.pgbouncer import Pooler
from tests.support.services import BrokerServer
from tests.support.sessions import session

pytestmark = pytest.mark.direct("it judges the way to the server itself")


class Doctor:
    """The command, with nothing of Tenure's in the environment but what is given."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if "TENURE" not in name}
        self._environment = kept | settings

    async def run(self, *words: str, **settings: str) -> tuple[int, str]:
        """Exit code and output."""
        return await processes.run(
            [sys.executable, "-m", "tenure.cli", *words],
            environment=self._environment | settings,
            directory=self._folder,
        )

    async def findings(
        self, process: str, *, downstream: str = "", guard_schema: str = "public", **settings: str
    ) -> Mapping[str, Any]:
        """The report by check; checks that the exit code says the same."""
        more = ["--downstream", downstream, "--guard-schema", guard_schema] if downstream else []
        code, output = await self.run("doctor", process, "-o", "json", *more, **settings)
        found = {one["check"]: one for one in json.loads(output)}
        bad = any(one["verdict"] == "fail" for one in found.values())
        assert code == (Exit.SETUP if bad else Exit.DONE), output
        return found


@pytest.fixture
def doctor(database: FreshDatabase, broker: BrokerSpace, tmp_path: Path) -> Doctor:
    return Doctor(
        tmp_path,
        TENURE_DATABASE_URL=database.coordinator_url,
        TENURE_BROKER_URL=broker.url,
        TENURE_NAME_PREFIX=broker.name_prefix,
        TENURE_TOKENS=json.dumps(TOKENS),
    )


def verdicts(found: Mapping[str, Any]) -> dict[str, str]:
    return {check: one["verdict"] for check, one in found.items()}


async def test_servers_as_they_should_be_are_ok(
    doctor: Doctor, database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker):
        found = await doctor.findings("coordinator")
        assert verdicts(found) == {
            "settings": "ok",
            "database": "ok",
            "migrations": "ok",
            "rights": "ok",
            "limits": "ok",
            "pooler": "ok",
            "connections": "ok",
            "clock": "ok",
            "left undone": "ok",
            "broker": "ok",
            "broker rights": "ok",
            "topology": "ok",
            "tokens": "warn",  # the tests' own are short
        }
        relay = await doctor.findings("relay", TENURE_DATABASE_URL=database.relay_url)
        assert set(verdicts(relay).values()) == {"ok"}
        code, table = await doctor.run("doctor", "coordinator")
        assert code == 0
        assert "To do: Make longer ones" in table


async def test_an_executor_sees_coordinator_token_and_broker(
    doctor: Doctor, database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker) as api:
        url, tokens = api.coordinator.url, {one["name"]: str(one["token"]) for one in TOKENS}
        found = await doctor.findings("executor", TENURE_URL=url, TENURE_TOKEN=tokens["fleet"])
        assert verdicts(found) == {
            "settings": "ok",
            "coordinator": "ok",
            "executor token": "ok",
            "broker": "ok",
            "disk": found["disk"]["verdict"],
        }
        assert "of tenant 'default'" in found["executor token"]["says"]
        # What is in order is asked for so that no log tells of a refusal.
        assert "forbidden_role" not in (await api.operator.get("/metrics")).text
        for token, says in (
            (tokens["shop"], "its role is application and not executor"),
            ("x" * 20, "not known"),
        ):
            found = await doctor.findings("executor", TENURE_URL=url, TENURE_TOKEN=token)
            assert found["executor token"]["verdict"] == "fail"
            assert says in found["executor token"]["says"]
    found = await doctor.findings("executor", TENURE_URL=url, TENURE_TOKEN=tokens["fleet"])
    assert "no answer" in found["coordinator"]["says"]


async def test_tasks_that_no_node_could_run_are_said_with_what_helps(
    doctor: Doctor, database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker) as api:
        await api.register()
        await api.register("node-1", types=("another",))  # in place of the first start
        await api.submit()
        found = await doctor.findings("coordinator")
        assert found["waiting tasks"]["verdict"] == "warn"
        assert "no node runs what they need: 1 of type sha256" in found["waiting tasks"]["says"]
        assert "tenure executor MODULE:NAME" in found["waiting tasks"]["next_step"]
        assert "left undone" not in found
        await api.register("node-2")
        assert "waiting tasks" not in await doctor.findings("coordinator")


async def test_servers_that_are_away_are_said_each_with_its_code(doctor: Doctor) -> None:
    found = await doctor.findings(
        "coordinator",
        TENURE_DATABASE_URL="postgresql://u:geheim@127.0.0.1:1/d",
        TENURE_BROKER_URL="amqp://u:geheim@127.0.0.1:1/v",
    )
    assert found["database"]["says"].startswith("unavailable:")
    assert found["broker"]["says"].startswith("broker_unreachable:")
    assert "geheim" not in json.dumps(found)


async def test_a_login_that_may_too_much_or_too_little_is_said(
    doctor: Doctor, database: FreshDatabase
) -> None:
    found = await doctor.findings("coordinator", TENURE_DATABASE_URL=database.admin_url)
    assert "superuser" in found["rights"]["says"]
    assert found["limits"]["verdict"] == "fail"
    found = await doctor.findings("coordinator", TENURE_DATABASE_URL=database.owner_url)
    assert "owns the schema" in found["rights"]["says"]
    found = await doctor.findings("coordinator", TENURE_DATABASE_URL=database.relay_url)
    assert "commit_batch" in found["rights"]["says"]
    assert "tenure_coordinator" in found["rights"]["next_step"]
    async with session(database.owner_url) as owner:
        await owner.execute("grant insert on tenure.log to tenure_coordinator")
    found = await doctor.findings("coordinator")
    assert "may change tables by itself: log" in found["rights"]["says"]


async def test_a_database_that_is_not_migrated_is_said(
    doctor: Doctor, empty_database: FreshDatabase
) -> None:
    found = await doctor.findings("coordinator", TENURE_DATABASE_URL=empty_database.owner_url)
    assert found["migrations"]["says"].startswith("not_migrated:")
    assert "tenure migrate up" in found["migrations"]["next_step"]


async def test_a_pooler_that_was_not_declared_is_said(
    doctor: Doctor, database: FreshDatabase, pooler: Pooler
) -> None:
    through = pooler.through(database.coordinator_url)
    found = await doctor.findings("coordinator", TENURE_DATABASE_URL=through)
    assert (found["pooler"]["verdict"], found["limits"]["verdict"]) == ("fail", "ok")
    found = await doctor.findings("coordinator", TENURE_DATABASE_URL=through, TENURE_POOLED="true")
    assert found["pooler"]["verdict"] == "ok"


async def test_a_broker_user_without_rights_and_a_missing_topology_are_said(
    doctor: Doctor, broker: BrokerSpace, broker_server: BrokerServer
) -> None:
    async with broker_user(broker_server, broker, configure="^$", write="^$", read="^$") as user:
        found = await doctor.findings("coordinator", TENURE_BROKER_URL=user.url)
        assert found["broker rights"]["verdict"] == "fail"
        for words in ("declare a queue", "publish to the default exchange"):
            assert words in found["broker rights"]["says"]
        assert found["topology"]["verdict"] == "warn"
    found = await doctor.findings("coordinator", TENURE_BROKER_URL=f"{broker.url}-absent")
    assert found["broker"]["verdict"] == "fail"


async def test_nothing_is_left_behind_on_the_broker(doctor: Doctor, broker: BrokerSpace) -> None:
    await doctor.findings("coordinator")
    async with await aio_pika.connect(broker.url) as connection:
        for name in (events_exchange(broker.name_prefix), dead_letter_queue(broker.name_prefix)):
            channel = await connection.channel()
            with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
                await channel.declare_exchange(name, passive=True)


async def test_a_wrong_setting_is_the_only_finding(doctor: Doctor) -> None:
    found = await doctor.findings("coordinator", TENURE_LEASE_SECOND="30")
    assert set(found) == {"settings"}
    assert "TENURE_LEASE_SECONDS" in found["settings"]["next_step"]


async def test_where_nothing_runs_it_says_how_to_start_something(doctor: Doctor) -> None:
    code, said = await doctor.run("doctor", TENURE_DATABASE_URL="", TENURE_BROKER_URL="")
    assert code == Exit.SETUP
    assert "no local stack runs in .tenure" in said
    assert "To do: Start a local stack with `tenure up`" in said


@pytest.mark.parametrize("service", ["coordinator", "relay"])
async def test_what_a_service_needs_is_what_migrations_grant(
    database: FreshDatabase, service: Any
) -> None:
    """Read from the grants, so it must name what exists."""
    functions, tables = needed(service)
    assert {"coordinator": "commit_batch", "relay": "relay_advance"}[service] in functions
    connection = await asyncpg.connect(database.owner_url)
    try:
        for kind, name, wanted in (("proc", "proname", functions), ("class", "relname", tables)):
            found = await connection.fetch(
                f"select {name} from pg_{kind} where {name} = any($1)", sorted(wanted)
            )
            assert {row[0] for row in found} == wanted
    finally:
        await connection.close()


async def test_a_downstream_is_judged_by_its_guard_and_by_its_clock(
    doctor: Doctor, empty_database: FreshDatabase
) -> None:
    name = f"downstream {empty_database.name}"
    async with downstream(empty_database.admin_url) as receiver:
        for url, verdict, says in (
            (receiver.writer_url, "ok", "guarded"),
            (empty_database.admin_url, "warn", "may write to tenure_fence, tenure_inbox by itself"),
        ):
            found = await doctor.findings("coordinator", downstream=url)
            assert found[name]["verdict"] == verdict
            assert says in found[name]["says"]
            assert found[f"{name} clock"]["verdict"] == "ok"
            assert "the authority's" in found[f"{name} clock"]["says"]
        found = await doctor.findings(
            "coordinator", downstream=receiver.writer_url, guard_schema="elsewhere"
        )
        assert found[name]["verdict"] == "fail"
        assert "tenure guard sql --print" in found[name]["next_step"]
    away = "postgresql://nobody@127.0.0.1:1/nowhere"
    found = await doctor.findings("coordinator", downstream=away)
    assert "guard_unavailable" in found["downstream nowhere"]["says"]
