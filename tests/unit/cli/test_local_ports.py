"""Ports of private servers: two stacks started at once never choose the same."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.cli.local.errors import LocalPortTakenError
from tenure.cli.local.ports import reserve_exactly, reserve_port
from tests.support.listeners import listening


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A port on which a server that is not ours listens."""
    reservation = reserve_port()
    with listening(reservation.port):
        reservation.release()
        yield reservation.port


def test_a_reserved_port_is_not_chosen_again() -> None:
    first = reserve_port()
    second = reserve_port(first.port)
    try:
        assert second.port != first.port
        with pytest.raises(LocalPortTakenError):
            reserve_exactly(first.port)
    finally:
        first.release()
        second.release()


def test_a_preferred_port_is_taken_when_it_is_free() -> None:
    first = reserve_port()
    first.release()
    second = reserve_port(first.port)
    second.release()
    assert second.port == first.port


def test_a_foreign_server_on_the_preferred_port_is_noticed(foreign_port: int) -> None:
    reservation = reserve_port(foreign_port)
    reservation.release()
    assert reservation.port != foreign_port


def test_a_port_asked_for_by_number_is_refused_when_taken(foreign_port: int) -> None:
    with pytest.raises(LocalPortTakenError) as caught:
        reserve_exactly(foreign_port)
    assert caught.value.code == "local_port_taken"
    assert str(foreign_port) in str(caught.value)


def test_a_killed_holder_gives_its_port_back() -> None:
    program = (
        "from tenure.cli.local.ports import reserve_port\n"
        "held = reserve_port()\nprint(held.port, flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        with pytest.raises(LocalPortTakenError):
            reserve_exactly(port)
        holder.kill()
        holder.wait()
        reserve_exactly(port).release()


def test_no_outgoing_connection_can_be_given_a_servers_port() -> None:
    lowest, highest = map(
        int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
    )
    reservation = reserve_port()
    reservation.release()
    assert not lowest <= reservation.port <= highest
