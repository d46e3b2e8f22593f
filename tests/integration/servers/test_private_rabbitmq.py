"""The private broker: crashes, second starts, neighbours, and what can be wrong."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import psutil
import pytest
from aio_pika.exceptions import AMQPError

from tenure.cli.local import processes
from tenure.cli.local.errors import (
    LocalPortTakenError,
    LocalServerFailedError,
    LocalServerMissingError,
    LocalServerNotRunningError,
    LocalServerRunningError,
    LocalStateInUseError,
)
from tenure.cli.local.ports import LOOPBACK, PortReservation, reserve_port
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tests.support import services
from tests.support.durability import queue_is_on_disk
from tests.support.listeners import listening
from tests.support.orphans import owner


@pytest.fixture
def folder(server_directory: Path) -> Path:
    """A state directory that no other test uses."""
    return server_directory / f"rabbitmq-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
async def broker_to_kill(server_directory: Path) -> AsyncIterator[PrivateRabbitmq]:
    """A running broker of this module's own: a test that stops it starts it again."""
    async with services.local_rabbitmq(server_directory) as server:
        yield server


@asynccontextmanager
async def started(server: PrivateRabbitmq) -> AsyncIterator[PrivateRabbitmq]:
    """The broker, running for the length of the block."""
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def publish(server: PrivateRabbitmq, queue: str) -> None:
    """Declare a durable queue and have the broker confirm one persistent message in it."""
    async with await aio_pika.connect(server.url()) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.declare_queue(queue, durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(
            queue.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT, message_id="1"
        )
        await channel.default_exchange.publish(message, routing_key=queue, timeout=30)
    await queue_is_on_disk(server, queue)


async def received(server: PrivateRabbitmq, queue: str) -> bytes:
    """Take the message that `publish` put in."""
    async with await aio_pika.connect(server.url()) as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue, passive=True)
        async with declared.iterator(timeout=30) as messages:
            async for message in messages:
                await message.ack()
                return message.body
    raise AssertionError("the queue's iterator ended")


async def test_a_killed_broker_has_its_confirmed_messages_after_its_restart(
    broker_to_kill: PrivateRabbitmq,
) -> None:
    url = broker_to_kill.url()
    await publish(broker_to_kill, "kept")
    pid = broker_to_kill.pid
    os.kill(pid, signal.SIGKILL)
    assert await processes.gone([pid], within_seconds=90)
    assert not broker_to_kill.running
    with pytest.raises(LocalServerNotRunningError, match="not running"):
        assert broker_to_kill.pid
    await broker_to_kill.start()
    assert broker_to_kill.url() == url
    assert await received(broker_to_kill, "kept") == b"kept"


async def test_a_wiped_broker_is_empty_and_lets_the_same_user_in(
    broker_to_kill: PrivateRabbitmq,
) -> None:
    url = broker_to_kill.url()
    await publish(broker_to_kill, "lost")
    with pytest.raises(LocalServerRunningError):
        broker_to_kill.wipe()
    broker_to_kill.kill()
    broker_to_kill.wipe()
    await broker_to_kill.start()
    assert broker_to_kill.url() == url
    with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
        await received(broker_to_kill, "lost")


async def test_the_broker_and_its_helpers_listen_on_loopback_only(
    broker_to_kill: PrivateRabbitmq,
) -> None:
    home = str(broker_to_kill.directory / "home")
    addresses = {
        connection.laddr.ip
        for pid in processes.with_environment("HOME", home)
        for connection in psutil.Process(pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert LOOPBACK in addresses
    assert addresses <= {LOOPBACK, "::1"}


async def test_only_the_fresh_password_opens_the_broker(broker_to_kill: PrivateRabbitmq) -> None:
    for login in ("guest:guest", "tenure:guess"):
        with pytest.raises(AMQPError):
            await aio_pika.connect(f"amqp://{login}@{LOOPBACK}:{broker_to_kill.port}/tenure")


async def test_a_broker_is_out_of_reach_of_a_terminals_interrupt(
    broker_to_kill: PrivateRabbitmq,
) -> None:
    assert os.getsid(broker_to_kill.pid) != os.getsid(0)
    assert os.getpgid(broker_to_kill.pid) != os.getpgrp()


async def test_one_folder_has_one_owner(broker_to_kill: PrivateRabbitmq) -> None:
    with pytest.raises(LocalStateInUseError, match=str(os.getpid())):
        await PrivateRabbitmq(broker_to_kill.directory).start()
    assert broker_to_kill.running


async def test_a_port_asked_for_by_number_is_refused_when_taken(
    broker_to_kill: PrivateRabbitmq, folder: Path
) -> None:
    with pytest.raises(LocalPortTakenError):
        await PrivateRabbitmq(folder, port=broker_to_kill.port).start()


async def test_a_second_start_finds_messages_and_notices_a_foreign_server_on_its_port(
    folder: Path,
) -> None:
    async with started(PrivateRabbitmq(folder)) as server:
        await publish(server, "kept")
        url, port, pid = server.url(), server.port, server.pid
    assert not processes.is_alive(pid)
    assert processes.with_environment("HOME", str(folder / "home")) == []
    with listening(port):
        async with started(PrivateRabbitmq(folder)) as again:
            assert again.port != port
            assert again.url() == url.replace(str(port), str(again.port))
            assert await received(again, "kept") == b"kept"


async def test_two_brokers_started_at_once_do_not_collide(server_directory: Path) -> None:
    servers = [
        PrivateRabbitmq(server_directory / f"rabbitmq-{secrets.token_hex(4)}") for _ in range(2)
    ]
    await asyncio.gather(*(server.start() for server in servers))
    try:
        await publish(servers[0], "first")
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await received(servers[1], "first")
        assert await received(servers[0], "first") == b"first"
    finally:
        await asyncio.gather(*(server.stop() for server in servers))


async def test_a_port_lost_to_another_broker_while_starting_is_replaced(
    folder: Path, broker_to_kill: PrivateRabbitmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []

    def lose_the_first(preferred: int | None) -> PortReservation:
        # As if the other broker had bound it between our look and our broker's bind.
        one = reserve_port(preferred)
        if not chosen:
            one.port = broker_to_kill.port
        chosen.append(one.port)
        return one

    monkeypatch.setattr("tenure.cli.local.rabbitmq.reserve_port", lose_the_first)
    async with started(PrivateRabbitmq(folder)) as server:
        assert chosen[0] == broker_to_kill.port
        assert server.port == chosen[-1] != broker_to_kill.port
        await publish(server, "ours")
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await received(broker_to_kill, "ours")


async def test_a_broker_ends_when_its_owner_is_killed(folder: Path) -> None:
    with owner(PrivateRabbitmq, folder, servers_end_with_it=True) as (process, pid):
        everything = processes.with_environment("HOME", str(folder / "home"))
        assert pid in everything
        process.kill()
        assert await processes.gone(everything, within_seconds=90)


async def test_a_broker_left_behind_can_be_ended_without_a_start(folder: Path) -> None:
    with owner(PrivateRabbitmq, folder, servers_end_with_it=False) as (process, pid):
        process.kill()
        process.wait()
    # The name server and the machine with its helpers.
    left_behind = processes.with_environment("HOME", str(folder / "home"))
    assert pid in left_behind
    await PrivateRabbitmq(folder).end_abandoned()
    assert [one for one in left_behind if processes.is_alive(one)] == []


async def test_a_missing_server_is_named_with_the_command_that_installs_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_RABBITMQ_SERVER", str(tmp_path / "nothing"))
    with pytest.raises(LocalServerMissingError, match="TENURE_RABBITMQ_SERVER") as caught:
        await PrivateRabbitmq(folder).start()
    assert caught.value.code == "local_server_missing"
    monkeypatch.delenv("TENURE_RABBITMQ_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tenure.cli.local.binaries._SYSTEM_RABBITMQ", tmp_path / "nothing")
    with pytest.raises(LocalServerMissingError, match=r"apt-get install .* rabbitmq-server"):
        await PrivateRabbitmq(folder).start()


async def test_a_broker_that_cannot_start_says_why(folder: Path) -> None:
    server = PrivateRabbitmq(folder, settings={"no.such.setting": "1"})
    with pytest.raises(LocalServerFailedError, match=r"no\.such\.setting"):
        await server.start()
    assert processes.with_environment("HOME", str(folder / "home")) == []
