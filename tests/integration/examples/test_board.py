"""The example board with everything behind it: coordinator, relay, broker, consumer and view."""

import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest

from board import prepare
from board.consumer import consumer, forget
from tenure.executor.consumer import EventContext, Source, Stream
from tests.support.consumers import consuming, settings_of, subscribe
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying
from tests.support.sessions import session


@pytest.fixture
async def login(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The board's login, prepared as its README says."""
    name = f"test_board_{secrets.token_hex(6)}"
    await prepare.prepare(database.admin_url, name)
    url = await prepare.prepare(database.admin_url, name)  # may be run again
    monkeypatch.setenv("BOARD_DATABASE_URL", url)
    yield url
    async with session(database.admin_url) as admin:
        await admin.execute(f"drop owned by {name} cascade; drop role {name}")


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with (
        fleet(database, broker) as found,
        relaying(database.relay_url, broker.url, broker.name_prefix),
    ):
        yield found


@pytest.mark.requirement("EVENT-03")
async def test_the_board_shows_what_every_task_is_at(
    api: Fleet, broker: BrokerSpace, login: str
) -> None:
    await subscribe(api, "task", name="board")
    incarnation = await api.register()
    done, cancelled = await api.submit(), await api.submit(not_before="2099-01-01T00:00:00Z")
    await api.operator.post(f"/v1/tasks/{cancelled}/cancel", {})
    async with session(login) as board:

        async def shown() -> bool:
            rows = await board.fetch("select task_id, state from board.tasks")
            return {row["task_id"]: row["state"] for row in rows} == {
                done: "delivered",
                cancelled: "cancelled",
            }

        async with consuming(consumer, settings_of(api, broker)):
            await api.deliver(incarnation, done)
            await until(shown)
        event_id = await board.fetchval(
            "select event_id from board.states where task_id = $1 and state = 'delivered'", done
        )
        await forgotten(board, done, event_id)
        state = await board.fetchval("select state from board.tasks where task_id = $1", done)
        assert state == "open"


async def forgotten(board: asyncpg.Connection, task_id: str, event_id: str) -> None:
    """As after a restore of a state before the delivery."""
    context = EventContext(board, Source.AUTHORITY, late=False, attempt=1, resources=None)
    await forget(Stream("task", task_id), [event_id], context)
