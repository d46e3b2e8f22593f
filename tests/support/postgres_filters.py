"""A filter for the toxic proxy that knows PostgreSQL's protocol and cuts at an exact message.

A statement of the extended protocol goes as Bind, Execute, Sync; its implicit transaction commits
at the Sync, and only ReadyForQuery says so. The COMMIT of an explicit transaction is one Query:
``COMMIT;``, since ``read committed`` has that word in it too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import urlsplit

from tenure.cli.chaos.toxic import CutNow, Filter, ToxicProxy, toxic

FLUSH: Final = b"H\x00\x00\x00\x04"
EXECUTED: Final = (b"C", b"s")  # CommandComplete, or PortalSuspended where one row was asked for
_HEAD_BYTES: Final = 5


class Messages:
    """Splits one direction of a connection into whole messages: a type of one byte, a length of
    four that counts itself. The client's first one has no type: it is shown as of type ``?``.

    The URL must say ``sslmode=disable``: else requests for encryption come before that one.
    """

    def __init__(self, *, begins_untyped: bool) -> None:
        self._buffer = bytearray(b"?" if begins_untyped else b"")
        self._untyped = begins_untyped

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Type, and the message as it was sent, of each that has become complete."""
        self._buffer += data
        while len(self._buffer) >= _HEAD_BYTES:
            end = 1 + int.from_bytes(self._buffer[1:_HEAD_BYTES])
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[:end])
            del self._buffer[:end]
            kind = message[:1]
            if self._untyped:
                self._untyped = False
                message = message[1:]
            yield kind, message


class Cut(Enum):
    """What happens to the statement's connection."""

    BEFORE_COMMIT = "executed, but what commits it never arrives: rolled back"
    REPLY_LOST = "committed, and nothing of the answer comes back"
    REPLY_TORN = "committed; the rows come back, but not that it was committed"
    SYNC_HELD = "executed; the Sync waits until the server ends the connection"


@dataclass
class Plan:
    """A cut of the next statement with ``text`` in it.

    ``reached`` once it has been executed, where that is not at the cut itself; ``on_cut`` is called
    at the cut; ``sqlstate`` is what the server said when it was the one who ended the connection.
    """

    text: str
    cut: Cut
    on_cut: Callable[[], None] = lambda: None
    cuts: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    sqlstate: str | None = None

    def strike(self, last: bytes) -> CutNow:
        """What a filter raises."""
        self.cuts += 1
        self.on_cut()
        return CutNow(last)


class Cuts:
    """What is planned for the connections of one proxy: as its ``make_filter``.

    ``messages_left``: a cut instead of the message, of either direction and any connection, after
    so many; then ``on_last_message`` is called.
    """

    def __init__(self) -> None:
        self._plans: list[Plan] = []
        self.messages_left: int | None = None
        self.on_last_message: Callable[[], None] = lambda: None

    def __call__(self) -> Filter:
        """The filter of one connection."""
        return _Connection(self)

    def next(self, text: str, cut: Cut, on_cut: Callable[[], None] = lambda: None) -> Plan:
        """Cut the next statement that has ``text`` in it. One plan is for one statement."""
        plan = Plan(text, cut, on_cut)
        self._plans.append(plan)
        return plan

    def claim(self, query: str) -> Plan | None:
        """The plan for this statement, which is used up by that."""
        for plan in self._plans:
            if plan.text in query:
                self._plans.remove(plan)
                return plan
        return None

    def count(self, passed: bytearray) -> None:
        """One more message. Raises CutNow with what has passed before it."""
        if self.messages_left is None:
            return
        self.messages_left -= 1
        if self.messages_left < 0:
            self.messages_left = None
            self.on_last_message()
            raise CutNow(bytes(passed))


class _Connection:
    """Follows one connection."""

    def __init__(self, cuts: Cuts) -> None:
        self._cuts = cuts
        self._client = Messages(begins_untyped=True)
        self._server = Messages(begins_untyped=False)
        self._statements: dict[bytes, str] = {}
        self._plan: Plan | None = None

    def to_server(self, data: bytes) -> bytes:
        passed = bytearray()
        for kind, message in self._client.feed(data):
            self._cuts.count(passed)
            forwarded = message
            match kind:
                case b"P":
                    name, query = message[5:].split(b"\0", 2)[:2]
                    self._statements[name] = query.decode()
                case b"B":
                    name = message[5:].split(b"\0", 2)[1]
                    self._plan = self._cuts.claim(self._statements.get(name, ""))
                case b"Q":
                    self._plan = self._cuts.claim(message[5:-1].decode())
                    if self._plan is not None and self._plan.cut is Cut.BEFORE_COMMIT:
                        raise self._plan.strike(bytes(passed))
                case b"S" if self._plan is not None:
                    if self._plan.cut in (Cut.BEFORE_COMMIT, Cut.SYNC_HELD):
                        forwarded = FLUSH  # the answer comes without the commit
            passed += forwarded
        return bytes(passed)

    def to_client(self, data: bytes) -> bytes:
        passed = bytearray()
        for kind, message in self._server.feed(data):
            self._cuts.count(passed)
            plan = self._plan
            if plan is not None:
                if kind == b"E":
                    fields = message[5:].split(b"\0")
                    plan.sqlstate = next(f[1:].decode() for f in fields if f[:1] == b"C")
                if kind in EXECUTED:
                    plan.reached.set()
                    if plan.cut is Cut.BEFORE_COMMIT:
                        raise plan.strike(bytes(passed))
                if kind == b"Z" and plan.cut in (Cut.REPLY_LOST, Cut.REPLY_TORN):
                    raise plan.strike(bytes(passed))
                if plan.cut is Cut.REPLY_LOST:
                    continue
            passed += message
        return bytes(passed)


@asynccontextmanager
async def readable(url: str, make_filter: Callable[[], Filter]) -> AsyncIterator[ToxicProxy]:
    """A proxy before the PostgreSQL in ``url`` whose filters can read what passes: without TLS."""
    plain = urlsplit(url)._replace(query="sslmode=disable").geturl()
    async with toxic(plain, make_filter) as proxy:
        yield proxy
