"""The relay while servers are frozen, killed and restarted, and while relays are."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tenure.cli.local.postgres import PrivatePostgres
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.coordinator.store import migrate
from tenure.coordinator.store.roles import Roles
from tenure.relay.core.outcome import Outcome
from tenure.relay.publisher import Publisher
from tests.support import services
from tests.support.isolation import BrokerSpace, FreshDatabase, with_login
from tests.support.log_rows import LogRow, Stream, append, rows_of
from tests.support.outages import EVERY_OUTAGE, Outage
from tests.support.relays import (
    Consumer,
    all_passed,
    broker_channel,
    claim_tokens,
    consume,
    count,
    cursors,
    declare_queue,
    last_positions,
    relay_process,
    relaying,
)
from tests.support.sessions import session, until

pytestmark = pytest.mark.timeout(300)  # servers are started anew, some of them twice


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process and all below it, stopped for the length of a block."""
    parent = psutil.Process(pid)
    processes = [parent, *parent.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


async def record(url: str, rows: list[LogRow]) -> list[int]:
    async with session(url) as owner:
        return await append(owner, rows)


def assert_first_arrivals_in_order(consumer: Consumer, streams: list[Stream], count: int) -> None:
    """No event lost, and none before its predecessor in the stream."""
    assert consumer.first_sequences() == {
        stream.entity_id: list(range(1, count + 1)) for stream in streams
    }


@pytest.mark.requirement("RELAY-03")
async def test_with_the_broker_frozen_each_pending_stream_has_one_publish_in_flight(
    database: FreshDatabase, private_rabbitmq: PrivateRabbitmq
) -> None:
    url = private_rabbitmq.url()
    async with broker_channel(url) as channel:
        await declare_queue(channel, "q")
    streams = [Stream() for _ in range(50)]
    rows = rows_of(streams, 4, routing_key="q", required=True)
    async with relaying(database.relay_url, url, "t", relay_confirm_timeout_seconds=120.0) as parts:

        async def connected() -> bool:
            return not parts.relay.not_ready

        await until(connected)
        window = parts.relay.window
        with frozen(private_rabbitmq.pid):
            await record(database.owner_url, rows)

            async def all_read() -> bool:
                return window.rows == len(rows) and not window.has_ready

            await until(all_read)
            assert window.in_flight == len(streams)

            async def told() -> bool:
                said = "the broker has confirmed nothing for"
                return (
                    said in parts.relay.not_ready and "50 publishes wait" in parts.relay.not_ready
                )

            await until(told)
            page = (await parts.metrics_page()).decode()
            assert "tenure_relay_unconfirmed_seconds 0.0" not in page
            assert all(position == 0 for position in (await cursors(database.relay_url)).values())
        async with broker_channel(url) as channel:
            consumer = await consume(channel, "q")
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert_first_arrivals_in_order(consumer, streams, 4)
    assert len(consumer.messages) == len(rows)


@pytest.mark.requirement("RELAY-01")
async def test_a_broker_that_stays_silent_is_given_up_and_everything_published_again(
    database: FreshDatabase, private_rabbitmq: PrivateRabbitmq
) -> None:
    """The frozen broker still gets what was written before: duplicates, of the same bytes."""
    url = private_rabbitmq.url()
    async with broker_channel(url) as channel:
        await declare_queue(channel, "q")
    streams = [Stream() for _ in range(20)]
    rows = rows_of(streams, 3, routing_key="q", required=True)
    async with relaying(database.relay_url, url, "t", relay_confirm_timeout_seconds=0.5) as parts:

        async def connected() -> bool:
            return not parts.relay.not_ready

        await until(connected)
        with frozen(private_rabbitmq.pid):
            await record(database.owner_url, rows)

            async def given_up() -> bool:
                return count(parts, Outcome.LOST) >= len(streams) and not parts.publisher.connected

            await until(given_up)
            assert parts.relay.window.in_flight == 0
        async with broker_channel(url) as channel:
            consumer = await consume(channel, "q")
            await consumer.has(rows)
            await all_passed(database.relay_url)
        assert (
            parts.metrics.registry.get_sample_value("tenure_relay_duplicates_possible_total") or 0
        ) >= len(streams)
    assert_first_arrivals_in_order(consumer, streams, 3)
    consumer.assert_same_bytes(rows)


async def test_an_idle_relay_notices_a_broker_that_stands_still(
    database: FreshDatabase, private_rabbitmq: PrivateRabbitmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published that could be missed, and no connection is closed; here heartbeats are
    no help either."""
    defaults = Publisher.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "ask_seconds", 0.2)
    url = f"{private_rabbitmq.url()}?heartbeat=600"
    async with relaying(database.relay_url, url, "t", relay_confirm_timeout_seconds=1.0) as parts:

        async def connected() -> bool:
            return not parts.relay.not_ready

        async def noticed() -> bool:
            return "there is no connection to the broker" in parts.relay.not_ready

        await until(connected)
        with frozen(private_rabbitmq.pid):
            await until(noticed)
        await until(connected)


@pytest.mark.requirement("RELAY-01")
async def test_a_broker_killed_under_load_loses_nothing(
    database: FreshDatabase, private_rabbitmq: PrivateRabbitmq
) -> None:
    url = private_rabbitmq.url()
    async with broker_channel(url) as channel:
        await declare_queue(channel, "q")
    # RabbitMQ 3.10 keeps the name of a new quorum queue in memory for minutes. Killed before it is
    # written, the queue comes back without a leader for good; a clean stop writes it.
    await private_rabbitmq.restart()
    streams = [Stream() for _ in range(100)]
    rows = rows_of(streams, 30, routing_key="q", required=True)
    await record(database.owner_url, rows)
    async with relaying(database.relay_url, url, "t", relay_max_in_flight=100) as parts:

        async def some_published() -> bool:
            return count(parts) >= 300

        await until(some_published)
        private_rabbitmq.kill()
        await private_rabbitmq.start()
        async with broker_channel(url) as channel:
            consumer = await consume(channel, "q")
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert_first_arrivals_in_order(consumer, streams, 30)
    consumer.assert_same_bytes(rows)


async def owned_database(server: PrivatePostgres) -> tuple[str, str]:
    """A migrated database on a server of the test's own: the owner's URL and the relay's."""
    async with session(server.url()) as admin:
        await admin.execute("create role own login createrole password 'own'")
        await admin.execute("create database state owner own")
    owner = with_login(server.url("state"), "own", "own")
    roles = Roles(coordinator_password="coordinator", relay_password="relay")
    await migrate.up(owner, roles=roles)
    return owner, with_login(server.url("state"), roles.relay, "relay")


@pytest.mark.requirement("RELAY-01")
@EVERY_OUTAGE
async def test_a_database_that_goes_down_under_load_and_comes_back_is_waited_for(
    private_postgres: PrivatePostgres, broker: BrokerSpace, outage: Outage
) -> None:
    owner_url, relay_url = await owned_database(private_postgres)
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(100)]
        rows = rows_of(streams, 30, routing_key=queue, required=True)
        await record(owner_url, rows)
        async with relaying(relay_url, broker.url, broker.name_prefix) as parts:

            async def some_published() -> bool:
                return count(parts) >= 300

            await until(some_published)
            await outage(private_postgres)

            async def noticed() -> bool:
                return "the database does not answer" in parts.relay.not_ready

            await until(noticed)
            await private_postgres.start()
            await consumer.has(rows)
            await all_passed(relay_url)

            async def ready() -> bool:
                return parts.relay.not_ready == ""

            await until(ready)
    assert_first_arrivals_in_order(consumer, streams, 30)
    consumer.assert_same_bytes(rows)


async def test_started_before_its_servers_a_relay_waits_for_them(
    private_postgres: PrivatePostgres, private_rabbitmq: PrivateRabbitmq
) -> None:
    owner_url, relay_url = await owned_database(private_postgres)
    url = private_rabbitmq.url()
    rows = rows_of([Stream()], 3, routing_key="q", required=True)
    await record(owner_url, rows)
    await private_postgres.stop()
    private_rabbitmq.kill()
    async with relaying(relay_url, url, "t") as parts:

        async def tried() -> bool:
            return parts.relay._database_failures >= 2

        await until(tried)
        assert "the database does not answer" in parts.relay.not_ready
        assert "no connection to the broker" in parts.relay.not_ready
        await private_rabbitmq.start()
        await private_postgres.start()
        async with broker_channel(url) as channel:
            await declare_queue(channel, "q")
            consumer = await consume(channel, "q")
            await consumer.has(rows)


@pytest.mark.requirement("RELAY-05")
async def test_with_the_broker_away_memory_stays_bounded_whatever_the_backlog(
    database: FreshDatabase,
) -> None:
    """Counted, not measured: rows and bytes held, with a backlog many times larger."""
    rows = rows_of([Stream() for _ in range(2000)], 5, routing_key="q", filler="x" * 300)
    await record(database.owner_url, rows)
    largest: dict[str, int] = {"rows": 0, "bytes": 0}
    # The claims are made by a relay that is connected; this one is never, so it is given them.
    async with relaying(
        database.relay_url,
        "amqp://nobody:nothing@127.0.0.1:1/none",
        "t",
        relay_window_rows=640,
        relay_claim_seconds=60.0,
    ) as parts:
        window = parts.relay.window
        for claim in await parts.log.claim(64):
            window.open(claim.shard, claim.claim_token, claim.position)
            parts.relay._claims.trust(claim.shard, float("inf"))

        async def full() -> bool:
            largest["rows"] = max(largest["rows"], window.rows)
            largest["bytes"] = max(largest["bytes"], window.body_bytes)
            return window.rows > 320 and not window.wanted()

        await until(full)
    assert largest["rows"] <= 640
    assert largest["bytes"] <= 640 * max(len(row.body) for row in rows)


@pytest.fixture
async def blocking_rabbitmq(server_directory: Path) -> AsyncIterator[PrivateRabbitmq]:
    """A broker that is out of memory from the start, and so blocks whoever publishes."""
    settings = {"vm_memory_high_watermark.absolute": "1MB"}
    async with services.local_rabbitmq(server_directory, settings=settings) as server:
        yield server


@pytest.mark.requirement("RELAY-05")
async def test_a_blocking_broker_gets_no_more_and_no_deadline_runs(
    database: FreshDatabase, blocking_rabbitmq: PrivateRabbitmq
) -> None:
    url = blocking_rabbitmq.url()
    async with broker_channel(url) as channel:
        await declare_queue(channel, "q")
    await record(database.owner_url, rows_of([Stream()], 1, routing_key="q", required=True))
    async with relaying(
        database.relay_url, url, "t", relay_confirm_timeout_seconds=1.0, relay_drain_seconds=0.1
    ) as parts:

        async def blocked() -> bool:
            return parts.relay.not_ready == "the broker blocks publishers"

        await until(blocked)
        session_before = parts.publisher._session
        assert session_before is not None
        (pending,) = session_before.pending.values()
        pending.written -= 3600  # as if it had waited for an hour
        more = rows_of([Stream() for _ in range(5)], 1, routing_key="q", required=True)
        await record(database.owner_url, more)

        async def read() -> bool:
            return parts.relay.window.rows == 6

        await until(read)
        assert parts.relay.window.in_flight == 1
        assert parts.publisher._session is session_before


@pytest.mark.requirement("RELAY-01")
@pytest.mark.requirement("RELAY-03")
async def test_after_a_relay_is_killed_another_takes_its_shards_and_keeps_the_order(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(100)]
        rows = rows_of(streams, 40, routing_key=queue, required=True)
        arguments = (database.relay_url, broker.url, broker.name_prefix)
        async with relay_process(*arguments) as first:
            await record(database.owner_url, rows[:3000])

            async def some_arrived() -> bool:
                return len(consumer.messages) >= 500

            await until(some_arrived)
            first.send_signal(signal.SIGKILL)
            await first.wait()
        async with relay_process(*arguments):
            await record(database.owner_url, rows[3000:])
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert_first_arrivals_in_order(consumer, streams, 40)
    consumer.assert_same_bytes(rows)


@pytest.mark.requirement("RELAY-03")
async def test_a_relay_that_was_stopped_past_its_claims_moves_no_cursor_when_it_goes_on(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream() for _ in range(100)]
        rows = rows_of(streams, 40, routing_key=queue, required=True)
        arguments = (database.relay_url, broker.url, broker.name_prefix)
        async with relay_process(*arguments) as first, session(database.owner_url) as owner:
            await record(database.owner_url, rows)

            async def some_passed() -> bool:
                return any((await cursors(database.relay_url)).values())

            await until(some_passed)
            with frozen(first.pid):
                tokens = await claim_tokens(owner)
                async with relay_process(*arguments):
                    await consumer.has(rows)
                    await all_passed(database.relay_url)

                    async def taken_over() -> bool:
                        now = await claim_tokens(owner)
                        return all(token > tokens[shard] for shard, token in now.items())

                    await until(taken_over)
                    # From here on the database tells every move of a cursor.
                    await owner.execute(
                        """
                        create table public.moves (shard smallint, before bigint, after bigint);
                        create function public.note() returns trigger language plpgsql as $$
                        begin
                            insert into public.moves values (old.shard, old.position, new.position);
                            return null;
                        end $$;
                        create trigger note after update of position on tenure.relay_shards
                        for each row execute function public.note();
                        """
                    )
                    os.kill(first.pid, signal.SIGCONT)
                    stopping = asyncio.create_task(first.wait())
                    first.send_signal(signal.SIGTERM)  # it drains: settles, and tries to advance
                    assert await stopping == 0
                    assert await owner.fetch("select * from public.moves") == []
                    assert await last_positions(owner) == {
                        shard: position
                        for shard, position in (await cursors(database.relay_url)).items()
                        if position
                    }
    assert_first_arrivals_in_order(consumer, streams, 40)
    consumer.assert_same_bytes(rows)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_relay_asked_to_stop_settles_moves_its_cursors_and_gives_its_claims_back(
    database: FreshDatabase, broker: BrokerSpace, number: signal.Signals
) -> None:
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        rows = rows_of([Stream() for _ in range(200)], 20, routing_key=queue, required=True)
        arguments = (database.relay_url, broker.url, broker.name_prefix)
        async with relay_process(*arguments, claim_seconds=30.0) as relay:
            await record(database.owner_url, rows)

            async def some_arrived() -> bool:
                return len(consumer.messages) >= 200

            await until(some_arrived)
            relay.send_signal(number)
            assert await relay.wait() == 0
        async with session(database.relay_url) as reader:
            held = await reader.fetchval(
                "select count(*) from tenure.relay_shards where relay_id is not null"
            )
            assert held == 0
        async with relay_process(*arguments, claim_seconds=30.0):
            await consumer.has(rows)
            await all_passed(database.relay_url)
    assert len(consumer.messages) == len(rows)  # nothing was in flight, so nothing came twice
