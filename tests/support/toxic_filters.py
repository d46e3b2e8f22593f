"""Filters for the toxic proxy that know AMQP 0-9-1 or HTTP; for PostgreSQL: postgres_filters."""

from collections.abc import Callable
from typing import Final

from tenure.cli.chaos.toxic import CutNow, Filter

_METHOD_FRAME: Final = 1
_BASIC_ACK: Final = (60, 80)
_HEAD_BYTES: Final = 7


class WithoutConfirms:
    """Withholds every basic.ack of the broker; all other frames pass, heartbeats too."""

    def __init__(self, withhold: Callable[[], bool] = lambda: True) -> None:
        self._withhold = withhold
        self._buffer = bytearray()
        self.withheld = 0

    def to_server(self, data: bytes) -> bytes:
        return data

    def to_client(self, data: bytes) -> bytes:
        self._buffer += data
        passed = bytearray()
        while len(self._buffer) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self._buffer[3:7]) + 1
            if len(self._buffer) < end:
                break
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            method = (int.from_bytes(frame[7:9]), int.from_bytes(frame[9:11]))
            if frame[0] == _METHOD_FRAME and method == _BASIC_ACK and self._withhold():
                self.withheld += 1
            else:
                passed += frame
        return bytes(passed)


class LostAnswers:
    """``lose`` answers of an HTTP server never reach the client: its connection is reset instead.
    ``lost`` has the first line of each, so that a test knows what was decided behind it."""

    def __init__(self) -> None:
        self.lose = 0
        self.lost: list[str] = []

    def __call__(self) -> Filter:
        """As a proxy's ``make_filter``: all its connections share the count."""
        return self

    def to_server(self, data: bytes) -> bytes:
        return data

    def to_client(self, data: bytes) -> bytes:
        if not self.lose:
            return data
        self.lose -= 1
        self.lost.append(data.partition(b"\r\n")[0].decode())
        raise CutNow
