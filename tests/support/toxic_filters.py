"""Filters for the toxic proxy that know AMQP 0-9-1 or PostgreSQL's protocol."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from tests.support.toxic import CutNow

_METHOD_FRAME: Final = 1
_BASIC_ACK: Final = (60, 80)
_HEAD_BYTES: Final = 7
_COMMIT: Final = b"tenure.commit_batch("


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


class When(Enum):
    """What happens to the next commit."""

    CUT_BEFORE = auto()  # the server never gets it
    CUT_AFTER = auto()  # it is done, and its answer never arrives
    WITHHOLD_SYNC = auto()  # Bind and Execute arrive, the end of the transaction does not


class Plan:
    """Shared by the connections of one proxy: the next commit is struck, once."""

    def __init__(self) -> None:
        self.next: When | None = None
        self.struck = 0

    def take(self) -> When | None:
        """What is to happen to the commit that has just arrived."""
        when, self.next = self.next, None
        self.struck += when is not None
        return when


class Commits:
    """Follows one connection of the coordinator's and strikes at calls of ``commit_batch``.

    The URL must say ``sslmode=disable``: the first message then names the user.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._from_client = bytearray()
        self._from_server = bytearray()
        self._started = False
        self._names: set[bytes] = set()
        self._withholding = False
        self._cut_at_ready = False

    def to_server(self, data: bytes) -> bytes:
        self._from_client += data
        passed = bytearray()
        while (message := self._next_of_client()) is not None:
            kind = message[:1]
            if kind == b"P":
                name, _, query = message[5:].partition(b"\0")
                if _COMMIT in query:
                    self._names.add(name)
            elif kind == b"B" and message[5:].split(b"\0", 2)[1] in self._names:
                match self._plan.take():
                    case When.CUT_BEFORE:
                        raise CutNow
                    case When.CUT_AFTER:
                        self._cut_at_ready = True
                    case When.WITHHOLD_SYNC:
                        self._withholding = True
                    case None:
                        pass
            elif kind == b"S" and self._withholding:
                passed += b"H\0\0\0\4"  # Flush: the server executes and answers, and commits not
                continue
            passed += message
        return bytes(passed)

    def to_client(self, data: bytes) -> bytes:
        if not self._cut_at_ready:
            return data
        self._from_server += data
        while len(self._from_server) >= 5:
            end = 1 + int.from_bytes(self._from_server[1:5])
            if len(self._from_server) < end:
                break
            kind = bytes(self._from_server[:1])
            del self._from_server[:end]
            if kind == b"Z":
                raise CutNow
        return b""

    def _next_of_client(self) -> bytes | None:
        head = 1 if self._started else 0
        if len(self._from_client) < head + 4:
            return None
        end = head + int.from_bytes(self._from_client[head : head + 4])
        if len(self._from_client) < end:
            return None
        message = bytes(self._from_client[:end])
        del self._from_client[:end]
        self._started = True
        return message
