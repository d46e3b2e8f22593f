"""A program that is not ours and listens on a port."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tenure.cli.local.ports import LOOPBACK


@contextmanager
def listening(port: int) -> Iterator[None]:
    """Somebody accepts connections on this loopback port, and says nothing."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen()
        yield
