"""A line to the coordinator that can be cut: what a node's requests go through."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self

from tenure.cli.local.ports import LOOPBACK

_CHUNK: Final = 65_536


class Line:
    """Carries TCP connections to an address. All of it lives in one event loop."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self._withheld: bytes | None = None
        self._all_pass = asyncio.Event()

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """A line that carries."""
        line = cls(host, port)
        line._server = await asyncio.start_server(line._carry, LOOPBACK, 0)
        return line

    @property
    def url(self) -> str:
        """Where it is taken."""
        assert self._server is not None
        return f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    async def cut(self) -> None:
        """End what is carried, and carry nothing more."""
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    async def mend(self) -> None:
        """Carry again."""
        self._is_cut = False

    async def withhold(self, words: bytes) -> None:
        """Let requests whose first line has these words wait until ``pass_all``."""
        self._withheld = words
        self._all_pass.clear()

    async def pass_all(self) -> None:
        """Carry what was withheld, and everything else again."""
        self._withheld = None
        self._all_pass.set()

    async def close(self) -> None:
        """End it."""
        await self.cut()
        await self.pass_all()
        if self._server is not None:
            self._server.close()

    def _carries(self) -> bool:
        return not self._is_cut

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        beyond: asyncio.StreamWriter | None = None
        try:
            if not self._carries():
                return
            answers, beyond = await asyncio.open_connection(*self._target)
            self._writers.add(beyond)
            if not self._carries():
                return
            await asyncio.gather(
                _copy(reader, beyond, self._permit), _copy(answers, writer, _at_once)
            )
        except OSError:
            pass  # either end has gone: the other learns of it below
        finally:
            for each in (writer, beyond):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _permit(self, data: bytes) -> None:
        # A client sends a request in one piece, and nothing behind it before the answer.
        if self._withheld is not None and self._withheld in data.partition(b"\r\n")[0]:
            await self._all_pass.wait()


async def _at_once(data: bytes) -> None:
    """Nothing keeps it."""


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    permit: Callable[[bytes], Awaitable[None]],
) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            await permit(data)
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
