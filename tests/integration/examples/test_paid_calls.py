"""The example ``paid_calls`` with everything behind it, and what it costs under faults."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from paid_calls import ask
from paid_calls.executor import app
from paid_calls.provider import Books, provider
from tenure.cli.local.ports import LOOPBACK, reserve_port
from tenure.executor import StaleToken
from tenure.executor.guards.http import HttpGuard
from tenure.executor.guards.http_store import SqliteRequests
from tenure.executor.guards.http_wire import fencing_headers
from tests.support.armed import died
from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.examples import EXAMPLES, executor_process, quarantine
from tests.support.executors import attempts, executing, registered, result, settings_of
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.leases import attempt
from tests.support.repository import REPOSITORY
from tests.support.serving import serving
from tests.support.waiting import eventually

STRUCK = "tests.support.struck_paid_calls:app"
pytestmark = pytest.mark.timeout(300)  # several programs are started, one after the other


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Any]:
    """The provider as an application."""
    with (
        closing(Books(tmp_path / "books.db")) as books,
        closing(SqliteRequests(tmp_path / "requests.db")) as requests,
    ):
        yield provider(books, requests)


@asynccontextmanager
async def provider_process(
    module: str, port: int, folder: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The provider as a process of its own, once it answers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, str(port), str(folder),
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
    )  # fmt: skip
    try:

        async def answers() -> bool:
            assert process.returncode is None
            try:
                await bill(port)
            except httpx2.TransportError:
                return False
            return True

        await eventually(answers)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def bill(port: int) -> Any:
    async with httpx2.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=60) as client:
        return (await client.get("/bill")).raise_for_status().json()


def point_at(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What executors of the example have to be told."""
    monkeypatch.setenv("PAID_CALLS_URL", url)
    monkeypatch.setenv("PAID_CALLS_RECORD", str(folder / "payments.db"))


async def test_texts_are_translated_and_the_bill_is_paid(
    api: Fleet,
    broker: BrokerSpace,
    service: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TENURE_URL", api.coordinator.url)
    monkeypatch.setenv("TENURE_TOKEN", str(TOKENS[0]["token"]))
    async with serving(service) as url:
        point_at(url, tmp_path, monkeypatch)
        async with executing(app, settings_of(api, broker, tmp_path)):
            await registered(api, "node-1")
            await asyncio.to_thread(ask.main, ["Hello", "again"])
    said = [line for line in capsys.readouterr().out.splitlines() if "cents" in line]
    assert said == [
        "Hello -> Uryyb, 3 cents",
        "again -> ntnva, 3 cents",
        "2 calls, 6 cents owed",
        "paid 6 cents, receipt 1",
        "0 cents owed",
    ]


@pytest.mark.requirement("LEASE-10")
@pytest.mark.parametrize(
    ("kind", "input", "charged"),
    [("translate", {"text": "Hello"}, "calls"), ("pay-bill", {"cents": 3}, "payments")],
)
async def test_what_a_provider_charged_before_it_died_is_charged_once(
    api: Fleet,
    broker: BrokerSpace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    input: Any,
    charged: str,
) -> None:
    """Nobody was answered, and the call is repeated when it is back."""
    reservation = reserve_port()
    port, folder = reservation.port, tmp_path / "provider"
    point_at(f"http://{LOOPBACK}:{port}", tmp_path, monkeypatch)
    try:
        async with (
            provider_process("tests.support.struck_provider", port, folder) as dying,
            executing(app, settings_of(api, broker, tmp_path)),
        ):
            await registered(api, "node-1")
            task_id = await api.submit(type=kind, input=input)
            await died(dying)
            async with provider_process("paid_calls.provider", port, folder):
                ended = await result(api, task_id)
                found = await bill(port)
    finally:
        reservation.release()
    assert ended["state"] == "delivered", ended
    assert found[charged] == 1


@pytest.mark.requirement("LEASE-10")
async def test_a_call_whose_answer_died_with_the_executor_is_charged_once(
    api: Fleet,
    broker: BrokerSpace,
    service: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(service) as url, httpx2.AsyncClient(base_url=url, timeout=60) as client:
        point_at(url, tmp_path, monkeypatch)
        async with executor_process(STRUCK, api, broker, tmp_path, "victim") as victim:
            task_id = await api.submit(type="translate", input={"text": "Hello"})
            await died(victim)
            await quarantine(api, "victim")
        async with executing(app, settings_of(api, broker, tmp_path, node="heir")):
            ended = await result(api, task_id)
        found = (await client.get("/bill")).json()
    assert ended["output"] == {"text": "Uryyb", "cents": 3}
    assert len(await attempts(api, task_id)) == 2
    assert found["calls"] == 1


@pytest.mark.requirement("LEASE-10")
async def test_a_call_under_a_stale_token_costs_nothing(service: Any) -> None:
    zombie = attempt()
    successor = attempt(zombie.task_id, generation=2)
    async with serving(service) as url, httpx2.AsyncClient(base_url=url, timeout=60) as client:
        guard = HttpGuard(client)
        await guard.raise_fence(zombie)
        await guard.raise_fence(successor)
        with pytest.raises(StaleToken):
            await guard.post(zombie, "/translations", operation="translation", json={"text": "a"})
        answer = await client.post(
            "/translations", json={"text": "a"}, headers=fencing_headers(zombie, key="k")
        )
        found = (await client.get("/bill")).json()
    assert (answer.status_code, answer.json()["code"]) == (412, "stale_token")
    assert found["calls"] == 0
