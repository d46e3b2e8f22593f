"""Named queries, conditions, and what a broken broker is called."""

import asyncio
import socket

import pytest
import structlog
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    ProbableAuthenticationError,
)

from tenure.contract.errors import TenureError
from tenure.coordinator.broker_refusals import refusal
from tenure.coordinator.errors import BrokerRefused, BrokerUnreachable
from tenure.coordinator.health import Condition, Health
from tenure.coordinator.http_server import listen
from tenure.coordinator.store.named_queries import parse


def test_named_queries_are_found_by_name() -> None:
    found = parse("-- about all\n\n-- name: one\nselect 1\n\n-- name: two\n-- why\nselect 2\n")
    assert found == {
        "one": "-- name: one\nselect 1",
        "two": "-- name: two\n-- why\nselect 2",
    }


@pytest.mark.parametrize(
    "text", ["select 1", "-- name: a\nselect 1\n-- name: a\nselect 2", "x\n-- name: a\nselect 1"]
)
def test_a_query_without_a_name_of_its_own_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="name"):
        parse(text)


def test_a_condition_says_so_when_it_changes_and_not_each_time() -> None:
    with structlog.testing.capture_logs() as logs:
        condition = Condition("broker", BrokerUnreachable("no answer yet."))
        condition.not_usable(BrokerUnreachable("no route."))
        condition.not_usable(BrokerUnreachable("no route."))
        condition.not_usable(BrokerRefused("wrong password."))
        condition.usable()
        condition.usable()
        condition.not_usable(BrokerRefused("wrong password."))
    assert [entry.get("code", entry["event"]) for entry in logs] == [
        "broker_unreachable",
        "broker_refused",
        "broker is usable",
        "broker_refused",
    ]


def test_ready_needs_every_condition_and_no_stop() -> None:
    first = Condition("database", TenureError("away.", code="unavailable"))
    second = Condition("broker", BrokerRefused("wrong password.", next_step="Check it."))
    health = Health((first, second))
    seen = [health.ready]
    first.usable()
    seen.append(health.ready)
    assert health.lines() == (
        "process: ok\ndatabase: ok\nbroker: broker_refused wrong password. Check it.\n"
    )
    second.usable()
    seen.append(health.ready)
    health.stopping = True
    seen.append(health.ready)
    assert health.lines().startswith("process: stopping\n")
    assert seen == [False, False, True, False]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProbableAuthenticationError("ACCESS_REFUSED"), "broker_refused"),
        (ConnectionNotAllowed("vhost not found"), "broker_refused"),
        (ChannelAccessRefused("no configure permission"), "broker_refused"),
        (ChannelPreconditionFailed("inequivalent arg"), "broker_refused"),
        (ConnectionRefusedError("no"), "broker_unreachable"),
        (TimeoutError(), "broker_unreachable"),
    ],
)
def test_a_refusal_of_the_broker_is_told_from_its_absence(error: Exception, code: str) -> None:
    found = refusal(error)
    assert found.code == code
    assert found.next_step


async def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen("127.0.0.1", 0)
    async with await asyncio.start_server(serve, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await accepted == 1
        writer.close()
        await writer.wait_closed()


def test_a_taken_address_is_refused_by_its_name() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(TenureError, match=f"127.0.0.1:{port}") as caught:
            listen("127.0.0.1", port)
    assert caught.value.code == "listen_refused"
    with pytest.raises(TenureError):
        listen("no-such-host.invalid", 1)
