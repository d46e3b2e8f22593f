"""The wires of a chaos run, in a process of their own, so that whoever pours poison does not slow
them down as well.

The process reads lines of JSON from its standard input: first the wires, by name the servers that
each leads to; then poison, one a line. It answers each line.
"""

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from typing import Any, Final

from tenure.cli.chaos.toxic import Side, ToxicProxy
from tenure.cli.processes import work as run_on_uvloop

SLOW_SECONDS: Final = 0.15
"""What a slow wire adds to each direction."""


class Poison(StrEnum):
    """What may happen to a wire. All but the first end by themselves, after a while."""

    CUT = "cut all connections of a wire"
    SLOW = "slow a wire down"
    FREEZE = "freeze a wire"
    DROP_ANSWERS = "drop the answers of a wire"
    HALF_OPEN = "leave a wire half open"


class Wires:
    """The process, as whoever poisons sees it. ``urls``: where each wire begins, by name."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.urls: dict[str, str] = {}
        self._process = process
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._number = 0

    async def lay(self, servers: Mapping[str, Sequence[str]]) -> None:
        """Before anything else: name and servers of each wire."""
        self._write(dict(servers))
        self.urls = await self._read()

    async def listen(self) -> None:
        """Hear what is over, until the process ends."""
        while True:
            answer = await self._read()
            self._answers.pop(answer["number"]).set_result(None)

    async def poison(self, wire: str, poison: Poison, seconds: float) -> None:
        """Returns when it is over."""
        self._number += 1
        over = self._answers[self._number] = asyncio.get_running_loop().create_future()
        self._write(
            {"number": self._number, "wire": wire, "poison": poison.value, "seconds": seconds}
        )
        await over

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return line


@asynccontextmanager
async def wires(servers: Mapping[str, Sequence[str]]) -> AsyncIterator[Wires]:
    """Wires for the length of a block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli.chaos.wires",
        start_new_session=True,  # a Ctrl-C in the terminal is not for it
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        laid = Wires(process)
        await laid.lay(servers)
        listening = asyncio.create_task(laid.listen())
        try:
            yield laid
        finally:
            listening.cancel()
    finally:
        process.kill()
        await process.wait()


class _Wire(ToxicProxy):
    """Leads each connection to one of several servers, to another where one is not there."""

    def __init__(self, servers: Sequence[str]) -> None:
        super().__init__(servers[0])
        self._servers = list(servers)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for server in random.sample(self._servers, len(self._servers)):
            self.lead_to(server)
            try:
                await super()._forward(reader, writer)
            except ConnectionRefusedError:
                continue
            return


async def _pour(wire: ToxicProxy, poison: Poison, seconds: float) -> None:
    directions = (wire.to_server, wire.to_client)
    match poison:
        case Poison.CUT:
            wire.cut()
        case Poison.HALF_OPEN:
            wire.leave_half_open(Side.SERVER)
        case Poison.FREEZE:
            wire.freeze()
            await asyncio.sleep(seconds)
            wire.thaw()
        case Poison.SLOW:
            for direction in directions:
                direction.latency_seconds = SLOW_SECONDS
            await asyncio.sleep(seconds)
            for direction in directions:
                direction.latency_seconds = 0.0
        case Poison.DROP_ANSWERS:
            wire.to_client.dropping = True
            await asyncio.sleep(seconds)
            wire.cut()  # what follows would be read in the middle of something
            wire.to_client.dropping = False


async def main() -> None:
    """Until the input ends."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with AsyncExitStack() as around:
        laid: dict[str, _Wire] = {}
        for name, servers in json.loads(await lines.readline()).items():
            laid[name] = wire = _Wire(servers)
            await wire.start()
            around.push_async_callback(wire.stop)
        print(json.dumps({name: wire.url for name, wire in laid.items()}), flush=True)

        async def pour(line: dict[str, Any]) -> None:
            await _pour(laid[line["wire"]], Poison(line["poison"]), line["seconds"])
            print(json.dumps({"number": line["number"]}), flush=True)

        async with asyncio.TaskGroup() as group:
            while text := await lines.readline():
                group.create_task(pour(json.loads(text)))


if __name__ == "__main__":
    run_on_uvloop(main())
