"""Encrypted connections, and servers that are not the ones they should be."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aio_pika import Message
from structlog.testing import capture_logs

from tenure.cli.local.ports import LOOPBACK, reserve_port
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.coordinator.store import migrate
from tenure.coordinator.store.errors import DatabaseUntrusted
from tenure.executor.assignments import AssignmentConsumer
from tenure.executor.core.intake import Ack
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition
from tenure.settings.addresses import broker_address
from tests.support import services
from tests.support.certificates import Authority
from tests.support.chain import carry_through
from tests.support.coordinator import Fleet, fleet, running, settings_for
from tests.support.isolation import BrokerSpace, DatabaseServer, FreshDatabase
from tests.support.pgbouncer import Pooler, pgbouncer
from tests.support.relays import broker_channel, relaying
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Encrypted:
    """A pooler and a broker that speak TLS, with certificates for this machine by ``authority``;
    ``stranger`` signed none of them."""

    pooler: Pooler
    broker_url: str
    plain_broker_url: str
    authority: Authority
    stranger: Authority

    def database_url(self, url: str, authority: Authority, host: str = LOOPBACK) -> str:
        """The same login through the pooler, verified by an authority."""
        encrypted = self.pooler.through(url, sslmode="verify-full", sslrootcert=str(authority.file))
        return encrypted.replace(f"@{LOOPBACK}:", f"@{host}:")

    def database(self, database: FreshDatabase) -> FreshDatabase:
        """The database with the services' logins through the pooler, as they should be."""
        return replace(
            database,
            coordinator_url=self.database_url(database.coordinator_url, self.authority),
            relay_url=self.database_url(database.relay_url, self.authority),
            pooled=True,
        )


@pytest.fixture(scope="module")
async def encrypted(
    database_server: DatabaseServer, server_directory: Path
) -> AsyncIterator[Encrypted]:
    authority = Authority(server_directory, "authority")
    stranger = Authority(server_directory, "stranger")
    certificate = authority.certificate(LOOPBACK)
    port = reserve_port()
    settings = {
        "listeners.ssl.1": f"{LOOPBACK}:{port.port}",
        "ssl_options.cacertfile": str(certificate.authority),
        "ssl_options.certfile": str(certificate.chain),
        "ssl_options.keyfile": str(certificate.key),
    }
    async with (
        services.local_rabbitmq(server_directory, settings=settings) as broker,
        pgbouncer(
            server_directory,
            database_server.url,
            database_server.logins(),
            certificate=certificate,
        ) as pooler,
    ):
        yield Encrypted(pooler, tls_url(broker, port.port), broker.url(), authority, stranger)
    port.release()


def tls_url(broker: PrivateRabbitmq, port: int) -> str:
    """The broker's address for TLS."""
    return broker.url().replace("amqp:", "amqps:").replace(f":{broker.port}/", f":{port}/")


@asynccontextmanager
async def consuming(
    url: str, ca_file: Path, queue: str
) -> AsyncIterator[tuple[Condition, list[bytes]]]:
    """An executor's consumer for the length of a block: its view of the broker, and what came."""
    condition, got = Condition("the broker"), list[bytes]()

    async def receive(bodies: Sequence[bytes]) -> list[Ack]:
        got.extend(bodies)
        return [Ack.NOW] * len(bodies)

    consumer = AssignmentConsumer(
        broker_address(url, ca_file=ca_file),
        queue=queue,
        prefetch=10,
        receive=receive,
        queue_missing=lambda: None,
        consuming=lambda: None,
        condition=condition,
        metrics=ExecutorMetrics(),
    )
    running = asyncio.create_task(consumer.run())
    try:
        yield condition, got
    finally:
        consumer.stop()
        await running


async def test_tasks_go_from_submission_to_result_over_encrypted_connections(
    encrypted: Encrypted, database: FreshDatabase
) -> None:
    reached = encrypted.database(database)
    ca_file = encrypted.authority.file
    space = BrokerSpace(encrypted.broker_url, "tls-test")
    address = broker_address(encrypted.broker_url, ca_file=ca_file)
    async with (
        fleet(reached, space, pooled=True, broker_ca_file=ca_file) as api,
        relaying(
            reached.relay_url, space.url, space.name_prefix, pooled=True, broker_ca_file=ca_file
        ),
    ):
        await carry_through(api, address(), tasks=3)


async def test_a_consumer_reads_over_an_encrypted_connection(encrypted: Encrypted) -> None:
    ca_file = encrypted.authority.file
    async with broker_channel(broker_address(encrypted.broker_url, ca_file=ca_file)()) as channel:
        queue = await channel.declare_queue("tls-test.queue", durable=True)
        await channel.default_exchange.publish(Message(b"hello"), queue.name)
        async with consuming(encrypted.broker_url, ca_file, queue.name) as (condition, got):
            await eventually(lambda: got == [b"hello"] and condition.usable)


async def test_a_server_of_another_authority_is_refused_by_everybody(
    encrypted: Encrypted, database: FreshDatabase
) -> None:
    stranger = encrypted.stranger
    reached: dict[str, Any] = {
        "database_url": encrypted.database_url(database.coordinator_url, stranger),
        "broker_ca_file": stranger.file,
        "pooled": True,
    }
    settings = settings_for(broker_url=encrypted.broker_url, **reached)
    async with running(settings) as coordinator:
        api = Fleet(coordinator)

        async def says() -> bool:
            text = (await api.nobody.get("/readyz")).text
            return (
                "database: certificate_untrusted The database's certificate is not accepted" in text
                and "broker: certificate_untrusted The broker's certificate is not accepted" in text
            )

        await eventually(says)
        await api.close()
    reached["database_url"] = encrypted.database_url(database.relay_url, stranger)
    with capture_logs() as said:
        async with relaying(broker_url=encrypted.broker_url, prefix="tls-test", **reached) as relay:
            await eventually(
                lambda: (
                    {"database_unavailable", "broker_unavailable"}
                    <= {
                        line["event"]
                        for line in said
                        if line.get("code") == "certificate_untrusted"
                    }
                )
            )
            assert relay.relay.not_ready.count("certificate_untrusted") == 2
    async with consuming(encrypted.broker_url, stranger.file, "none") as (condition, _):
        await eventually(lambda: code_of(condition) == "certificate_untrusted")


async def test_a_certificate_for_another_host_is_refused(
    encrypted: Encrypted, database: FreshDatabase
) -> None:
    url = encrypted.database_url(database.coordinator_url, encrypted.authority, host="localhost")
    with pytest.raises(DatabaseUntrusted, match="not accepted"):
        await migrate.status(url)
    broker_url = encrypted.broker_url.replace(LOOPBACK, "localhost")
    async with consuming(broker_url, encrypted.authority.file, "none") as (condition, _):
        await eventually(lambda: code_of(condition) == "certificate_untrusted")


async def test_a_server_without_tls_is_told_from_one_that_is_away(
    encrypted: Encrypted, database: FreshDatabase
) -> None:
    plain = f"{database.coordinator_url}?sslmode=verify-full&sslrootcert={encrypted.authority.file}"
    with pytest.raises(DatabaseUntrusted, match="does not speak TLS"):
        await migrate.status(plain)
    url = encrypted.plain_broker_url.replace("amqp:", "amqps:")
    async with consuming(url, encrypted.authority.file, "none") as (condition, _):
        await eventually(lambda: code_of(condition) == "certificate_untrusted")
        assert condition.error is not None
        assert "does not speak TLS" in str(condition.error)


def code_of(condition: Condition) -> str:
    """What the last session failed with."""
    return "" if condition.error is None else condition.error.code
