"""Loopback ports for private servers, chosen so that two stacks started at once do not collide.

Three dangers, three answers:

* Two of our own processes choose the same port. A reservation is an abstract UNIX socket named
  after the port: it belongs to the network namespace (as ports do), one process can hold it, and
  the kernel drops it when that process ends, however it ends. Where there are no such sockets
  (macOS) a locked file does the same.
* A foreign program takes the port between the choice and the server's bind. Nothing can prevent
  that; the servers' managers notice the failed bind and choose again.
* While a server is down its clients keep connecting to its port. Were that port in the range the
  kernel gives to outgoing connections, it could be handed to one of these clients, who would then
  be connected to itself and keep the server out. So ports are taken from outside that range.
"""

from __future__ import annotations

import fcntl
import random
import socket
import sys
import tempfile
from pathlib import Path
from typing import Protocol

from tenure.cli.local.errors import LocalPortTakenError

LOOPBACK = "127.0.0.1"
_LOWEST = 20_000
_HIGHEST = 65_535
_ATTEMPTS = 500
_OUTGOING_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Claim(Protocol):
    """What one process can hold, and the kernel drops when that process ends."""

    def close(self) -> None:
        """Drop it."""


class PortReservation:
    """One port that no other process using this module will choose until ``release``."""

    def __init__(self, port: int, claim: Claim) -> None:
        self.port = port
        self._claim = claim

    def release(self) -> None:
        """Give the port back. Releasing twice is harmless."""
        self._claim.close()


def port_is_free(port: int) -> bool:
    """True when a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier server that linger in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _claim(port: int) -> PortReservation | None:
    claim = _abstract_socket(port) if sys.platform == "linux" else _locked_file(port)
    if claim is None:
        return None
    if not port_is_free(port):
        claim.close()
        return None
    return PortReservation(port, claim)


def _abstract_socket(port: int) -> Claim | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0tenure/port/{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _locked_file(port: int) -> Claim | None:
    """The file stays, empty: removing it would let two processes lock two files of one name."""
    path = Path(tempfile.gettempdir(), f"tenure-port-{port}.lock")
    try:
        claim = path.open("ab")
    except OSError:
        return None  # another account's
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        claim.close()
        return None
    return claim


def _candidates() -> range:
    try:
        lowest, highest = (int(word) for word in _OUTGOING_RANGE.read_text().split())
    except (OSError, ValueError):
        lowest, highest = 32_768, 60_999
    below, above = range(_LOWEST, lowest), range(max(highest + 1, _LOWEST), _HIGHEST + 1)
    widest = max(below, above, key=len)
    # A machine may give almost everything to outgoing connections: then there is no outside.
    return widest if len(widest) >= _ATTEMPTS else range(_LOWEST, _HIGHEST + 1)


def reserve_port(preferred: int | None = None) -> PortReservation:
    """Reserve the preferred port when it is free, otherwise any free one.

    Raises LocalPortTakenError when no free port was found.
    """
    if preferred is not None and (reservation := _claim(preferred)) is not None:
        return reservation
    candidates = _candidates()
    for port in random.sample(candidates, k=min(_ATTEMPTS, len(candidates))):
        if (reservation := _claim(port)) is not None:
            return reservation
    raise LocalPortTakenError(
        f"None of {_ATTEMPTS} loopback ports between {candidates.start} and "
        f"{candidates.stop - 1} is free.",
        advice="End programs that listen on many ports, or name a free port.",
    )


def reserve_exactly(port: int) -> PortReservation:
    """Reserve this very port. Raises LocalPortTakenError when somebody else has it."""
    if (reservation := _claim(port)) is not None:
        return reservation
    raise LocalPortTakenError(
        f"Port {port} on {LOOPBACK} belongs to another server.",
        advice=f"End the program that listens there (`ss -ltnp sport = :{port}` names it), "
        "or ask for another port.",
    )
