"""The checks that anybody can run pass for what is shipped, and notice what is missing."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from obstore.store import LocalStore

from tenure.cli.exits import Exit
from tenure.cli.main import run
from tenure.executor.errors import GuardUnavailable
from tenure.executor.guards.conformance import Outcome
from tenure.executor.guards.conformance_http import Endpoint, check_http
from tenure.executor.guards.conformance_objects import check_objects
from tenure.executor.guards.conformance_sql import check_sql
from tenure.executor.guards.http_receiver import GuardMiddleware, Receive, Scope, Send
from tenure.executor.guards.http_store import SqliteRequests
from tenure.executor.guards.sql_install import install_statements
from tests.support.bare_command import bare
from tests.support.downstream import Downstream, downstream
from tests.support.isolation import FreshDatabase
from tests.support.s3 import S3Server
from tests.support.serving import serving


def failed(outcomes: Sequence[Outcome]) -> list[str]:
    return [outcome.check for outcome in outcomes if not outcome.passed]


async def command(*words: str) -> tuple[int, Any]:
    """Exit code and report of ``tenure guard …``."""
    code, output = await bare("guard", *words, "-o", "json")
    return code, json.loads(output)


@pytest.fixture
async def receiver(empty_database: FreshDatabase) -> AsyncIterator[Downstream]:
    async with downstream(empty_database.admin_url) as made:
        yield made


@pytest.mark.requirement("LEASE-10")
async def test_a_guarded_database_conforms(receiver: Downstream) -> None:
    code, report = await command("check", "sql", receiver.writer_url)
    assert [one["says"] for one in report if not one["passed"]] == []
    assert (code, len(report)) == (0, 7)


@pytest.mark.parametrize(
    ("rule", "without", "noticed"),
    [
        ("if p_fencing_token < v_stored then", "if false then", ["an older token is refused"]),
        (
            "if clock_timestamp() >= p_expires_at + p_tolerance then",
            "if false then",
            ["an equal token is refused after the end of its lease"],
        ),
        (
            "already_done := not found;",
            "already_done := false;",
            ["an effect is written once, by whichever attempt"],
        ),
        (
            "return v_permits;",
            "return true;",
            ["what the scope of the lease does not permit is refused"],
        ),
    ],
)
async def test_a_rule_that_a_database_lacks_is_noticed(
    empty_database: FreshDatabase, rule: str, without: str, noticed: list[str]
) -> None:
    install = install_statements().replace(rule, without)
    async with downstream(empty_database.admin_url, install=install) as weak:
        assert set(noticed) <= set(failed(await check_sql(weak.writer_url)))


async def test_the_owners_login_and_a_database_without_a_guard_are_no_executors(
    receiver: Downstream, empty_database: FreshDatabase
) -> None:
    (installed, *_) = await check_sql(empty_database.admin_url)
    assert not installed.passed
    assert "may write to tenure_fence" in installed.says
    outcomes = await check_sql(receiver.writer_url, schema="elsewhere")
    assert len(failed(outcomes)) == len(outcomes)
    with pytest.raises(GuardUnavailable):
        await check_sql("postgresql://nobody@127.0.0.1:1/nowhere")


class Shop:
    """Counts what it did."""

    acted = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        self.acted += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % self.acted})


@pytest.mark.requirement("LEASE-10")
async def test_a_receiver_behind_the_middleware_conforms(tmp_path: Path) -> None:
    shop = Shop()
    with contextlib.closing(SqliteRequests(tmp_path / "requests.db")) as store:
        async with serving(GuardMiddleware(shop, store)) as url:
            code, report = await command(
                "check", "http", f"{url}/orders", "--header", "Authorization: Bearer x"
            )
    assert [one["says"] for one in report if not one["passed"]] == []
    assert (code, len(report)) == (0, 7)
    assert shop.acted == 4, "once for each task whose request was let through"


async def test_a_receiver_without_a_guard_fails_every_check() -> None:
    async with (
        serving(Shop()) as url,
        httpx2.AsyncClient(base_url=url) as client,
    ):
        outcomes = await check_http(Endpoint(client, "/orders"))
        assert len(failed(outcomes)) == len(outcomes) == 7
        code, report = await command("check", "http", f"{url}/orders")
    assert (code, len(report)) == (1, 7)
    with pytest.raises(GuardUnavailable):
        async with httpx2.AsyncClient(base_url=url) as gone:
            await check_http(Endpoint(gone, "/orders"))


@pytest.mark.requirement("LEASE-10")
async def test_a_folder_and_an_s3_server_conform_and_nothing_is_left_behind(
    tmp_path: Path, object_server: S3Server
) -> None:
    folder = tmp_path / "objects"
    code, report = await command("check", "objects", f"file://{folder}")
    assert [one["says"] for one in report if not one["passed"]] == []
    assert (code, len(report)) == (0, 4)
    assert LocalStore(folder).list().collect() == []
    store = object_server.store()
    assert failed(await check_objects(store)) == []
    assert store.list("tenure-conformance").collect() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "objects", "ftp://x"), "ftp://x"),
        (("check", "http", "shop"), "no http:// or https:// address"),
        (("check", "http", "http://shop/", "--header", "x"), "NAME: VALUE"),
        (("prune", "--older-than", "1h", "x"), "at least a day"),
        (("prune", "--older-than", "2d"), "name a database"),
        (("prune", "--older-than", "2d", "--sqlite", "nowhere.db"), "is no file"),
    ],
)
def test_what_cannot_be_checked_is_said(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["guard", *words]) == Exit.USAGE
    assert said in capsys.readouterr().err
