"""A balancer before several coordinators, as networks have them: it loses answers, hands requests
over twice, and may cut nodes off. It counts what it did.

It also keeps the books of reports: the same report, repeated, has to be answered as the first time.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tenure.cli.local.ports import LOOPBACK

ANSWER_SECONDS: Final = 4.0
"""How long a coordinator may take beyond the wait that a request asks for; then the caller is left
without an answer."""
AVOIDED_SECONDS: Final = 1.0
"""How long a coordinator that did not answer is asked last."""
_LIMIT: Final = 2**24
_FINAL: Final = ("outcome", "code", "attempt_state", "receipt_id", "admitted_at", "generation")
"""Fields of a reply that stay as they were said first."""


class NoAnswer(Exception):
    """A coordinator could not be reached, or did not answer: nobody knows what it did."""


@dataclass(frozen=True)
class Request:
    """One request as it came, head and body."""

    method: str
    path: str
    query: str
    raw: bytes
    body: bytes

    @property
    def node(self) -> str | None:
        """The node that it is about, where it is an executor's."""
        words = self.path.split("/")
        return words[3] if self.path.startswith("/v1/nodes/") else None

    @property
    def wait_seconds(self) -> float:
        """How long its answer may be waited for."""
        asked = [one.partition("=") for one in self.query.split("&")]
        return sum(float(value) for name, _, value in asked if name == "wait")

    @property
    def reports(self) -> list[str]:
        """Ids of the reports in it."""
        if self.method != "POST" or not self.path.endswith("/reports"):
            return []
        return [one["report_id"] for one in json.loads(self.body)["reports"]]


@dataclass
class Books:
    """What went through."""

    requests: int = 0
    answers_lost: int = 0
    handed_over_twice: int = 0
    without_answer: int = 0
    repeated_reports: int = 0
    longest_answer_seconds: float = 0.0
    longest_beside_a_suspended_one_seconds: float = 0.0
    disagreements: list[str] = field(default_factory=list)
    _asked: Counter[str] = field(default_factory=Counter)
    _answers: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def asked(self, request: Request) -> set[str]:
        """Reports go to a coordinator; those that went to one before."""
        reports = request.reports
        before = {report_id for report_id in reports if self._asked[report_id]}
        self._asked.update(reports)
        return before

    def answered(self, repeated: set[str], request: Request, status: int, body: bytes) -> None:
        """A coordinator answered, whoever may learn of it."""
        if status != 200 or not request.reports:
            return
        self.repeated_reports += len(repeated)
        for reply in json.loads(body)["replies"]:
            report_id = reply["report_id"]
            if reply["outcome"] not in ("applied", "recorded"):
                continue
            told = tuple(reply.get(name) for name in _FINAL)
            first = self._answers.setdefault(report_id, told)
            if first != told:
                self.disagreements.append(f"report {report_id}: first {first}, then {told}")


class Balancer:
    """``url`` is where callers go; ``ports`` are the coordinators'."""

    def __init__(
        self, ports: Sequence[int], chance: random.Random, *, lost: float, twice: float
    ) -> None:
        self.books = Books()
        self.cut_off: set[str] = set()
        self.ports = list(ports)
        self.suspended: set[int] = set()
        self._suspended_at: dict[int, float] = {}
        self._served_at: dict[str | int, float] = {}
        self._chance = chance
        self._lost, self._twice = lost, twice
        self._avoided: dict[int, float] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        """Its address."""
        assert self._server is not None
        return f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def cut(self, node: str) -> None:
        """Nothing from this node gets through any more, and it is not told."""
        self.cut_off.add(node)

    def mend(self, node: str) -> None:
        """It gets through again; what it had sent meanwhile is lost."""
        self.cut_off.discard(node)
        self._changed.set()
        self._changed = asyncio.Event()

    def suspend(self, port: int) -> None:
        """The coordinator there stands still: how long the others take is measured from now on."""
        self.suspended.add(port)
        self._suspended_at[port] = asyncio.get_running_loop().time()

    def resume(self, port: int) -> None:
        """It goes on."""
        self.suspended.discard(port)

    def serves_since(self, who: str | int, since: float) -> bool:
        """Whether a node, or the coordinator on a port, has had part in an answer since then."""
        return self._served_at.get(who, 0.0) > since

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=_LIMIT)

    async def stop(self) -> None:
        """Close everything."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, NoAnswer, asyncio.CancelledError):
                while await self._serve_one(reader, writer):
                    pass
        except Exception as error:  # noqa: BLE001 - an answer that makes no sense is a finding
            self.books.disagreements.append(f"an answer that cannot be read: {error!r}")
        finally:
            writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read_request(reader)
        self.books.requests += 1
        if request.node in self.cut_off:
            while request.node in self.cut_off:
                await self._changed.wait()
            return False
        answer = await self._answer(request)
        if self._chance.random() < self._lost:
            self.books.answers_lost += 1
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def _answer(self, request: Request) -> bytes:
        """The answer of a coordinator; now and then two get the request, at once or in turn."""
        chance = self._chance.random()
        if request.method == "GET" or chance >= self._twice:
            return await self._ask(request)
        self.books.handed_over_twice += 1
        if chance < self._twice / 2:
            with suppress(NoAnswer):
                await self._ask(request)
            return await self._ask(request)
        answers = await asyncio.gather(
            self._ask(request), self._ask(request), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, bytes):
                return answer
        raise NoAnswer

    async def _ask(self, request: Request) -> bytes:
        """The whole answer of one coordinator. One that cannot be reached has not seen the
        request, so another is asked. Raises NoAnswer."""
        loop = asyncio.get_running_loop()
        for port in self._order(loop.time()):
            try:
                reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=_LIMIT)
            except OSError:
                self._avoided[port] = loop.time()
                continue
            began = loop.time()
            stood_still = port in self.suspended
            repeated = self.books.asked(request)
            try:
                async with asyncio.timeout(ANSWER_SECONDS + request.wait_seconds):
                    writer.write(request.raw)
                    status, raw, body = await _read_response(reader)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self._avoided[port] = loop.time()
                self.books.without_answer += 1
                raise NoAnswer from error
            finally:
                writer.transport.abort()
            if (
                not stood_still
                and not request.wait_seconds
                and self._suspended_at.get(port, 0) < began
            ):
                self._measure(loop.time() - began)
            self._served_at[port] = loop.time()
            if request.node is not None:
                self._served_at[request.node] = began
            self.books.answered(repeated, request, status, body)
            return raw
        await asyncio.sleep(0.1)  # none is there: a caller that comes again at once helps nobody
        raise NoAnswer

    def _order(self, now: float) -> list[int]:
        """Whom to ask, those last that lately did not answer."""
        ports = self._chance.sample(self.ports, len(self.ports))
        return sorted(ports, key=lambda port: now - self._avoided.get(port, 0) < AVOIDED_SECONDS)

    def _measure(self, seconds: float) -> None:
        """How long one that was not suspended itself took."""
        books = self.books
        books.longest_answer_seconds = max(books.longest_answer_seconds, seconds)
        if self.suspended:
            longest = max(books.longest_beside_a_suspended_one_seconds, seconds)
            books.longest_beside_a_suspended_one_seconds = longest


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    method, path, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
    body = await reader.readexactly(_length(head) or 0)
    path, _, query = path.partition("?")
    return Request(method, path, query, head + body, body)


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    length = _length(head)
    assert length is not None or status in (204, 304), head
    body = await reader.readexactly(length or 0)
    return status, head + body, body


def _length(head: bytes) -> int | None:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return None


@asynccontextmanager
async def balancing(
    ports: Sequence[int], chance: random.Random, *, lost: float = 0.04, twice: float = 0.04
) -> AsyncIterator[Balancer]:
    """A balancer for the length of a block."""
    balancer = Balancer(ports, chance, lost=lost, twice=twice)
    await balancer.start()
    try:
        yield balancer
    finally:
        await balancer.stop()
