"""A consumer of events with everything behind it: coordinator, relay, broker and inbox."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
import httpx2
import pytest
from aio_pika.abc import AbstractChannel

from tenure.contract.events import Event
from tenure.contract.topology import subscription_queue_arguments
from tenure.executor.consumer import EventConsumer, EventContext
from tenure.executor.event_inbox import EventInbox
from tenure.executor.event_inbox_sqlite import SqliteInbox
from tests.support.consumers import READER_TOKEN, consuming, settings_of, subscribe
from tests.support.coordinator import Fleet, fleet, until
from tests.support.executors import status_pages
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.relays import relaying

pytestmark = pytest.mark.requirement("EVENT-03")


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with (
        fleet(database, broker) as found,
        relaying(database.relay_url, broker.url, broker.name_prefix),
    ):
        pushed = await found.operator.post("/v1/profiles", {"task_types": [{"name": "sha256"}]})
        assert pushed.status_code == 200, pushed.text
        yield found


@pytest.fixture
async def channel(broker: BrokerSpace) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(broker.url) as connection:
        yield await connection.channel(on_return_raises=True)


@pytest.fixture
async def owner(database: FreshDatabase) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database.admin_url)
    yield connection
    await connection.close()


class Recorder:
    """A consumer that writes down what it is given, by task."""

    def __init__(self, inbox: EventInbox, **values: Any) -> None:
        self.consumer = EventConsumer("billing", inbox=inbox, **values)
        self.seen: dict[str, list[tuple[int, str]]] = {}
        self.hold: asyncio.Event | None = None
        self.begun = asyncio.Event()

        @self.consumer.on("task")
        async def handle(event: Event, context: EventContext) -> None:
            self.begun.set()
            if self.hold is not None:
                await self.hold.wait()
            self.seen.setdefault(event.entity_id, []).append((event.sequence, event.next_state))

    async def has(self, task_id: str, state: str) -> list[tuple[int, str]]:
        """What was seen of a task, once it includes this state."""

        async def look() -> Any:
            found = self.seen.get(task_id, [])
            return found if state in [seen for _, seen in found] else None

        found: list[tuple[int, str]] = await until(look)
        return found


async def stored(owner: asyncpg.Connection, task_id: str) -> list[tuple[int, str, bytes]]:
    """The events of a task as they are in the log."""
    rows = await owner.fetch(
        "select sequence, next_state, body from tenure.log"
        " where entity_type = 'task' and entity_id = $1 and not copy order by position",
        task_id,
    )
    return [(row["sequence"], row["next_state"], row["body"]) for row in rows]


async def waiting(channel: AbstractChannel, queue: str) -> int:
    """How many messages wait in a queue."""
    declared = await channel.declare_queue(queue, passive=True)
    return declared.declaration_result.message_count or 0


async def test_events_of_tasks_reach_their_handler_in_order(
    api: Fleet, broker: BrokerSpace, channel: AbstractChannel, tmp_path: Path
) -> None:
    queue = await subscribe(api, "task")
    recorder = Recorder(SqliteInbox(tmp_path / "inbox.sqlite3"))
    incarnation = await api.register()
    async with (
        status_pages() as pages,
        consuming(recorder.consumer, settings_of(api, broker, consumer_listen=pages.address)),
    ):
        tasks = [await api.submit() for _ in range(3)]
        for task_id in tasks:
            await api.deliver(incarnation, task_id)
        for task_id in tasks:
            assert await recorder.has(task_id, "delivered") == [(1, "open"), (2, "delivered")]

        async def empty() -> bool:
            return await waiting(channel, queue) == 0

        async def counted() -> bool:
            metrics = (await pages.get("/metrics")).text
            return 'tenure_consumer_events_total{outcome="handled"} 6.0' in metrics

        await until(empty)
        await until(counted)  # once it is committed, which is after the handler
        assert (await pages.get("/readyz")).status_code == 200
    assert [len(seen) for seen in recorder.seen.values()] == [2, 2, 2]


async def test_what_a_wiped_queue_lost_is_read_from_the_coordinator(
    api: Fleet, broker: BrokerSpace, channel: AbstractChannel, tmp_path: Path
) -> None:
    """One stream by the gap before its next event, one by the timer."""
    queue = await subscribe(api, "task")
    recorder = Recorder(SqliteInbox(tmp_path / "inbox.sqlite3"))
    quiet, going_on = await api.submit(), await api.submit()
    async with consuming(recorder.consumer, settings_of(api, broker)):
        await recorder.has(quiet, "open")
        await recorder.has(going_on, "open")
    for task_id in (quiet, going_on):
        held = await api.operator.post(f"/v1/tasks/{task_id}/hold", {"reason": "a test"})
        assert held.status_code == 200, held.text

    async def both_there() -> bool:
        return await waiting(channel, queue) >= 2

    await until(both_there)
    await (await channel.get_queue(queue, ensure=False)).purge()
    await api.operator.post(f"/v1/tasks/{going_on}/cancel", {})
    settings = settings_of(api, broker, consumer_reconcile_seconds=0.1)
    async with consuming(recorder.consumer, settings):
        assert await recorder.has(going_on, "cancelled") == [
            (1, "open"), (2, "held"), (3, "cancelled"),
        ]  # fmt: skip
        assert await recorder.has(quiet, "held") == [(1, "open"), (2, "held")]


async def test_a_stop_finishes_what_was_begun_and_leaves_the_rest(
    api: Fleet, broker: BrokerSpace, channel: AbstractChannel, tmp_path: Path
) -> None:
    queue = await subscribe(api, "task")
    recorder = Recorder(SqliteInbox(tmp_path / "inbox.sqlite3"), prefetch=1)
    recorder.hold = asyncio.Event()
    async with consuming(recorder.consumer, settings_of(api, broker)) as stopping:
        first, second = await api.submit(), await api.submit()
        await recorder.begun.wait()
        stopping.ask()
        await asyncio.sleep(0)
        recorder.hold.set()
    assert len(recorder.seen) == 1
    recorder.hold = None

    async def one_left() -> bool:
        return await waiting(channel, queue) == 1

    await until(one_left)
    async with consuming(recorder.consumer, settings_of(api, broker)):
        for task_id in (first, second):
            assert await recorder.has(task_id, "open") == [(1, "open")]


async def test_a_message_that_is_no_event_goes_to_the_dead_letters(
    api: Fleet, broker: BrokerSpace, channel: AbstractChannel, tmp_path: Path
) -> None:
    queue = await subscribe(api, "task")
    recorder = Recorder(SqliteInbox(tmp_path / "inbox.sqlite3"))
    async with consuming(recorder.consumer, settings_of(api, broker)):
        message = aio_pika.Message(b"no event", delivery_mode=2)
        await channel.default_exchange.publish(message, queue)

        async def recorded() -> Any:
            found = (await api.reader.get("/v1/dead-letters")).json()["dead_letters"]
            return found

        (letter,) = await until(recorded)
        assert (letter["queue"], letter["reason"]) == (queue, "rejected")
        await recorder.has(await api.submit(), "open")


async def test_positions_that_a_consumer_saw_reveal_that_history_was_lost(
    api: Fleet, broker: BrokerSpace, owner: asyncpg.Connection, tmp_path: Path
) -> None:
    """As after a restore of an older copy: nothing is granted until somebody has recovered it."""
    await subscribe(api, "task")
    recorder = Recorder(SqliteInbox(tmp_path / "inbox.sqlite3"))
    task_id = await api.submit()
    await api.operator.post(f"/v1/tasks/{task_id}/hold", {"reason": "a test"})
    async with consuming(recorder.consumer, settings_of(api, broker)):
        await recorder.has(task_id, "held")
    await owner.execute("set session_replication_role = replica")
    await owner.execute("update tenure.tasks set sequence = 1 where task_id = $1", task_id)
    settings = settings_of(api, broker, consumer_evidence_seconds=0.1)
    async with consuming(recorder.consumer, settings):

        async def noticed() -> bool:
            view = (await api.operator.get("/v1/authority")).json()
            return bool(view["state"] == "history_lost")

        await until(noticed)


async def test_a_consumer_waits_for_its_subscription(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    recorder = Recorder(SqliteInbox(tmp_path / "inbox.sqlite3"))
    async with (
        status_pages() as pages,
        consuming(recorder.consumer, settings_of(api, broker, consumer_listen=pages.address)),
    ):

        async def missing() -> bool:
            try:
                ready = await pages.get("/readyz")
            except httpx2.ConnectError:
                return False  # it does not listen yet
            return ready.status_code == 503 and "subscription_missing" in ready.text

        await until(missing)
        await subscribe(api, "task")
        await recorder.has(await api.submit(), "open")


# A process of its own, whose handler is a program

PROGRAM = """
import os, signal
from tenure.contract.events import Event
from tenure.executor.consumer import EventConsumer, EventContext
from tenure.executor.event_inbox_postgres import PostgresInbox

consumer = EventConsumer(
    "billing", inbox=PostgresInbox(os.environ["BILLING_URL"], schema="billing"), max_attempts=2,
    prefetch=10,
)

@consumer.on("task.open")
async def bill(event: Event, context: EventContext) -> None:
    await context.connection.execute(
        "insert into billing.invoices values ($1)", event.entity_id
    )
    if event.entity_id == os.environ.get("POISON"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Program:
    """``tenure consumer run``, begun again whenever it dies, as a supervisor does."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        (folder / "billing.py").write_text(PROGRAM)
        self._folder = folder
        self.environment = environment

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tenure.cli", "consumer", *words,
            cwd=self._folder,
            env={"PATH": os.environ["PATH"], **self.environment},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def command(self, *words: str) -> str:
        process = await self.start(*words)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()


@pytest.mark.timeout(300)  # several programs are started, one after the other
async def test_a_message_that_kills_its_consumer_is_parked_and_its_neighbours_are_not(
    api: Fleet,
    broker: BrokerSpace,
    database: FreshDatabase,
    owner: asyncpg.Connection,
    channel: AbstractChannel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T18, T21: by the inbox's own count, before the broker's limit, which is three here. A handler
    that died wrote nothing."""
    monkeypatch.setattr("tenure.contract.topology.DELIVERY_LIMIT", 3)
    queue = await subscribe(api, "task")
    await owner.execute("create schema billing; create table billing.invoices (task_id text)")
    # Declared as the coordinator should have: with another limit the broker would refuse.
    await channel.declare_queue(
        queue, durable=True, arguments=subscription_queue_arguments(broker.name_prefix)
    )
    poison = await api.submit()
    neighbours = [await api.submit() for _ in range(9)]

    async def there() -> bool:
        return await waiting(channel, queue) >= 10

    await until(there)
    program = Program(
        tmp_path,
        {
            "TENURE_URL": api.coordinator.url,
            "TENURE_TOKEN": READER_TOKEN,
            "TENURE_BROKER_URL": broker.url,
            "BILLING_URL": database.admin_url,
            "POISON": poison,
        },
    )
    deaths = 0
    process = await program.start("run", "billing:consumer")

    async def invoices() -> list[str]:
        return [row["task_id"] for row in await owner.fetch("select task_id from billing.invoices")]

    async def decided() -> bool:
        nonlocal deaths, process
        if process.returncode is not None:
            assert process.returncode == -signal.SIGKILL
            deaths += 1
            process = await program.start("run", "billing:consumer")
        parked = "select count(*) from billing.tenure_events where state = 'parked'"
        return sorted(await invoices()) == sorted(neighbours) and await owner.fetchval(parked) == 1

    await until(decided)
    (kept,) = json.loads(await program.command("kept", "billing:consumer", "-o", "json"))
    assert (kept["entity_id"], kept["state"]) == (poison, "parked")
    assert 1 <= deaths <= 3
    event_id = kept["event_id"]
    process.terminate()
    assert await process.wait() == 0

    # Mended: it is tried again by the consumer that runs.
    del program.environment["POISON"]
    assert await program.command("retry", "billing:consumer") == f"{event_id}: handled again\n"
    process = await program.start("run", "billing:consumer")

    async def all_billed() -> bool:
        return sorted(await invoices()) == sorted([*neighbours, poison])

    await until(all_billed)
    process.terminate()
    assert await process.wait() == 0
    letters = (await api.reader.get("/v1/dead-letters")).json()["dead_letters"]
    assert letters == []
