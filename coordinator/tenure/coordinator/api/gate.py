"""How many requests may wait in the lanes at once, by number and by bytes.

Without a bound a slow database would turn into memory and into answers that nobody waits for any
more. Executors have a gate of their own, so that submissions cannot keep renewals out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.coordinator.errors import Overloaded


class Gate:
    """Lets requests in while there is room. For one event loop; nobody waits at the gate."""

    def __init__(self, *, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0

    @contextmanager
    def admit(self, size_bytes: int) -> Iterator[None]:
        """Room for one request. Raises Overloaded when there is none.

        A lone request larger than all room is let in, or it could never be served.
        """
        full = self.requests >= self._max_requests
        heavy = self.requests > 0 and self.bytes + size_bytes > self._max_bytes
        if full or heavy:
            raise Overloaded(f"{self.requests} requests wait for the database already.")
        self.requests += 1
        self.bytes += size_bytes
        try:
            yield
        finally:
            self.requests -= 1
            self.bytes -= size_bytes
