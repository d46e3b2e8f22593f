"""The example ``ledger`` with everything behind it, and what becomes of its books under faults."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from ledger import order, prepare
from tenure.cli.drills.strikes import Act, Strike
from tenure.cli.local import processes
from tenure.contract.faultpoints import FaultPoint
from tenure.contract.ids import DEFAULT_TENANT
from tenure.coordinator.store import applications
from tests.support.armed import died, reached, stopped
from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.examples import EXAMPLES, STRIKE, executor_process, quarantine
from tests.support.executors import attempts, result
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.sessions import session
from tests.support.waiting import eventually

EXAMPLE = "ledger.executor:app"
STRUCK = "tests.support.struck_ledger:app"
pytestmark = pytest.mark.timeout(300)  # several programs are started, one after the other


@dataclass(frozen=True)
class Logins:
    """The two sides, prepared as the README says."""

    clerk: str
    keeper: dict[str, str]


@pytest.fixture
async def logins(database: FreshDatabase) -> AsyncIterator[Logins]:
    names = {side: f"test_{side}_{secrets.token_hex(6)}" for side in prepare.RIGHTS}
    urls = {
        side: await prepare.prepare(database.admin_url, side, name) for side, name in names.items()
    }
    # May be run again.
    urls["clerk"] = await prepare.prepare(database.admin_url, "clerk", names["clerk"])
    await applications.allow(database.owner_url, names["clerk"], DEFAULT_TENANT)
    yield Logins(urls["clerk"], {"LEDGER_DATABASE_URL": urls["keeper"]})
    async with session(database.admin_url) as admin:
        await admin.execute("drop schema ledger cascade")
        for name in names.values():
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where usename = $1", name
            )
            await admin.execute(f"drop owned by {name}; drop role {name}")


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


async def ordered(clerk: str, cents: list[int]) -> list[str]:
    """One transfer out of the capital for each; the tasks' ids."""
    async with session(clerk) as connection:
        return [await order.order(connection, "capital", "cash", each) for each in cents]


async def assert_booked_once(database: FreshDatabase, transfers: int) -> None:
    """Two entries of each transfer that add up to nothing, by one attempt, as the accounts say."""
    async with session(database.admin_url) as admin:
        books = await admin.fetch(
            "select count(*) as entries, sum(cents) as sum, count(distinct fencing_token) as tokens"
            " from ledger.entries group by transfer_id"
        )
        assert [tuple(row) for row in books] == [(2, 0, 1)] * transfers
        accounts = await admin.fetch(
            "select balance_cents, coalesce(sum(e.cents), 0) as entries from ledger.accounts a"
            " left join ledger.entries e on e.account = a.name group by a.name, balance_cents"
        )
        assert all(row["balance_cents"] == row["entries"] for row in accounts)
        assert sum(row["balance_cents"] for row in accounts) == 0


async def test_what_is_ordered_is_booked_and_the_books_add_up_to_nothing(
    api: Fleet,
    broker: BrokerSpace,
    database: FreshDatabase,
    logins: Logins,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TENURE_URL", api.coordinator.url)
    monkeypatch.setenv("TENURE_TOKEN", str(TOKENS[0]["token"]))
    monkeypatch.setenv("LEDGER_DATABASE_URL", logins.clerk)
    async with executor_process(EXAMPLE, api, broker, tmp_path, "node", **logins.keeper):
        await order.main()
    said = capsys.readouterr().out
    assert "capital -> cash 1000.00: booked under token" in said
    assert "rent -> cash 600.00: insufficient-funds" in said
    books = dict(line.split() for line in said.splitlines() if len(line.split()) == 2)
    assert {name: books[name] for name in ("capital", "cash", "rent", "paper", "sum")} == {
        "capital": "-1000.00",
        "cash": "537.50",
        "rent": "450.00",
        "paper": "12.50",
        "sum": "0.00",
    }
    await assert_booked_once(database, 3)


async def test_one_command_starts_all_of_it_and_ends_what_it_started(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    code, said = await processes.run(
        [sys.executable, "-m", "ledger.run"],
        environment=kept | {"PYTHONPATH": str(EXAMPLES)},
        directory=tmp_path,
    )
    assert code == 0, said
    assert said.splitlines()[:2] == ["starting a local stack", "starting the bookkeeper"]
    assert "rent -> cash 600.00: insufficient-funds" in said
    assert "sum            0.00" in said
    assert not (tmp_path / ".tenure" / "connection.json").exists()

    def nothing_is_left() -> bool:
        return not any(
            str(tmp_path) in " ".join(processes.command_line(pid)) for pid in processes.all_pids()
        )

    await eventually(nothing_is_left)


@pytest.mark.requirement("LEASE-10")
@pytest.mark.requirement("OPS-01")
async def test_transfers_are_booked_once_though_executors_are_killed_before_and_after_they_write(
    api: Fleet, broker: BrokerSpace, database: FreshDatabase, logins: Logins, tmp_path: Path
) -> None:
    before, after = (
        Strike(point, Act.KILL, tmp_path / point)
        for point in (FaultPoint.BEFORE_EFFECT, FaultPoint.AFTER_EFFECT)
    )
    for strike in (before, after):
        strike.folder.mkdir()
    async with (
        executor_process(
            STRUCK, api, broker, tmp_path, "first", **logins.keeper, **{STRIKE: before.as_json()}
        ) as first,
        executor_process(
            STRUCK, api, broker, tmp_path, "second", **logins.keeper, **{STRIKE: after.as_json()}
        ) as second,
    ):
        tasks = await ordered(logins.clerk, [100 + number for number in range(6)])
        await asyncio.gather(died(first), died(second))
        await quarantine(api, "first", "second")
    async with executor_process(EXAMPLE, api, broker, tmp_path, "heir", **logins.keeper):
        ended = [await result(api, task_id) for task_id in tasks]
    assert [each["state"] for each in ended] == ["delivered"] * 6
    await assert_booked_once(database, 6)
    async with session(database.admin_url) as admin:
        rows = await admin.fetch("select transfer_id, fencing_token from ledger.entries")
    written = {row["transfer_id"]: row["fencing_token"] for row in rows}
    told = {each["output"]["transfer_id"]: each["output"]["fencing_token"] for each in ended}
    assert told == written


@pytest.mark.requirement("LEASE-10")
async def test_a_woken_bookkeeper_s_write_is_refused_by_the_database(
    api: Fleet, broker: BrokerSpace, database: FreshDatabase, logins: Logins, tmp_path: Path
) -> None:
    """Stopped after its last check, in front of its transaction, until another has booked."""
    strike = Strike(FaultPoint.BEFORE_EFFECT, Act.STOP, tmp_path)
    struck = {**logins.keeper, STRIKE: strike.as_json()}
    async with executor_process(STRUCK, api, broker, tmp_path, "zombie", **struck):
        (task_id,) = await ordered(logins.clerk, [100])
        pid = await reached(strike)
        await stopped(pid)
        await quarantine(api, "zombie")
        async with executor_process(EXAMPLE, api, broker, tmp_path, "heir", **logins.keeper):
            assert (await result(api, task_id))["state"] == "delivered"
        os.kill(pid, signal.SIGCONT)
        raised = tmp_path / "raised"
        await eventually(lambda: raised.exists() and raised.read_text() != "")
        assert raised.read_text() == "StaleToken TN001"
    await assert_booked_once(database, 1)
    tokens = sorted(each["fencing_token"] for each in await attempts(api, task_id))
    async with session(database.admin_url) as admin:
        assert await admin.fetchval("select min(fencing_token) from ledger.entries") == tokens[-1]


async def test_entries_that_do_not_balance_are_refused(
    database: FreshDatabase, logins: Logins
) -> None:
    async with session(database.admin_url) as admin:
        await admin.execute(
            "insert into ledger.transfers (source, target, cents) values ('capital', 'cash', 5)"
        )
    async with session(logins.keeper["LEDGER_DATABASE_URL"]) as keeper:
        with pytest.raises(asyncpg.RaiseError, match="do not balance"):
            await keeper.execute("insert into ledger.entries values (1, 'cash', 5, 1)")


async def test_what_a_side_has_to_set_is_read_from_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = tmp_path / "connection.json"
    stack.write_text(json.dumps({"database_url": "postgresql://admin"}))

    async def prepared(url: str, side: str, login: str) -> str:
        return f"{url}/{side}/{login}"

    monkeypatch.setattr(prepare, "prepare", prepared)
    await asyncio.to_thread(prepare.main, "clerk", str(stack))
    assert capsys.readouterr().out == (
        "export LEDGER_DATABASE_URL=postgresql://admin/clerk/ledger_clerk\n"
    )
