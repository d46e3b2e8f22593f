"""Publishes to RabbitMQ with many confirms in flight on one channel.

aiormq keeps the connection. Publishing goes below its ``basic_publish``: the frames of a whole
batch are written at once, and this module reads returns and confirms itself, which takes a fraction
of the time of one task for each message. That needs names of aiormq that are not public
(``PRIVATE_NAMES``): the version is pinned, and a test fails when one of them is gone.

One session is one connection with one channel. Whatever ends either of them ends the session;
everything pending is then unknown, and a new session starts with jittered back-off. A publish is
given up at its deadline; when the broker said nothing at all since it was written, the whole
session is given up, so that a frozen broker's socket does not fill up with repetitions. While
nothing is pending the broker is asked whether it is there, since its heartbeats would be missed for
half a minute first. While it blocks publishers (``connection.blocked``) nothing is written and no
deadline runs.
"""

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import aiormq
from aiormq.abc import ChannelFrame, ConfirmationFrameType
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp import commands
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from tenure.contract.errors import TenureError
from tenure.relay.core.outcome import Outcome
from tenure.relay.core.rows import Row
from tenure.relay.errors import BrokerError, BrokerRefused, BrokerUnreachable, BrokerUntrusted
from tenure.relay.frames import content_frames, method_frame
from tenure.relay.notices import Notices
from tenure.settings.addresses import Address, asked
from tenure.settings.tls import tls_fault

_HEADER_READER: Final = "_Channel__get_content_header"
_UNBLOCKED: Final = "_Connection__connection_unblocked"
PRIVATE_NAMES: Final = {
    "channel": ("_on_confirm_frame", "_on_return_frame", "_read_content", _HEADER_READER),
    "connection": (_UNBLOCKED,),
}
_REFUSALS: Final = (
    aiormq.exceptions.ChannelClosed,
    aiormq.exceptions.ConnectionSyntaxError,
    aiormq.exceptions.ConnectionFrameError,
    aiormq.exceptions.ConnectionCommandInvalid,
    aiormq.exceptions.ConnectionUnexpectedFrame,
)
_MISSING_SECONDS: Final = 1.0  # how long the absence of an exchange is believed
_RECONNECT_CAP_SECONDS: Final = 5.0
_ASK_SECONDS: Final = 5.0  # how often an idle session asks whether the broker is there
_CLOSE_SECONDS: Final = 2.0


class HasRow(Protocol):
    """What can be published."""

    @property
    def row(self) -> Row:
        """What to publish."""


PublishT = TypeVar("PublishT", bound=HasRow)


class Settled(NamedTuple, Generic[PublishT]):
    """How a publish ended; ``detail`` says why, where it failed."""

    publish: PublishT
    outcome: Outcome
    detail: str = ""


@dataclass(slots=True)
class _Pending(Generic[PublishT]):
    publish: PublishT
    written: float
    returned: str | None = None


class _KeptTransport(TransportFactory):
    """Makes the connection's transport as usual, and keeps it so that it can be cut."""

    def __init__(self, inner: TransportFactory) -> None:
        self._inner = inner
        self._writer: asyncio.StreamWriter | None = None

    async def create(
        self, url: Any, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As the inner factory."""
        reader, self._writer = await self._inner.create(url, **kwargs)
        return reader, self._writer

    def cut(self) -> None:
        """Close the socket without asking anybody."""
        if self._writer is not None:
            self._writer.transport.abort()


@dataclass(eq=False)
class _Session(Generic[PublishT]):
    connection: aiormq.Connection
    channel: aiormq.Channel
    transport: _KeptTransport
    name: str
    pending: dict[int, _Pending[PublishT]] = field(default_factory=dict)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    refused: bool = False  # the broker ended it because of something that was published
    last_answer: float = -math.inf
    last_blocked: float = -math.inf
    exchanges: set[str] = field(default_factory=lambda: {""})
    missing: dict[str, float] = field(default_factory=dict)
    probes: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    @property
    def blocked(self) -> bool:
        unblocked: asyncio.Event = getattr(self.connection, _UNBLOCKED)
        return not unblocked.is_set()

    def give_up(self, reason: str) -> None:
        self.reason = reason
        self.given_up.set()
        self.transport.cut()


class Publisher(Generic[PublishT]):
    """One connection to the broker, kept open by ``run``.

    ``wake`` is set whenever something was settled or the connection changed. ``events_exchange`` is
    looked for at connect, since almost every row goes there.
    """

    def __init__(
        self,
        url: Address,
        *,
        wake: asyncio.Event,
        events_exchange: str,
        confirm_timeout_seconds: float = 10.0,
        connect_timeout_seconds: float = 10.0,
        max_body_bytes: int = 8 * 2**20,
        ask_seconds: float = _ASK_SECONDS,
    ) -> None:
        self._url = url
        self._wake = wake
        self._events_exchange = events_exchange
        self._confirm_timeout = confirm_timeout_seconds
        self._connect_timeout = connect_timeout_seconds
        self._max_body_bytes = max_body_bytes
        self._ask_seconds = ask_seconds
        self._session: _Session[PublishT] | None = None
        self._settled: list[Settled[PublishT]] = []
        self._notices = Notices("broker")
        self.late_confirms = 0  # of publishes given up before: each of these arrived twice

    @property
    def connected(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    @property
    def error(self) -> TenureError | None:
        """Why there is no session, as far as is known."""
        return self._notices.error

    @property
    def usable(self) -> bool:
        """Whether something may be published now."""
        return self._session is not None and not self._session.blocked

    @property
    def unconfirmed_seconds(self) -> float:
        """For how long the broker has confirmed nothing although publishes wait for that."""
        session = self._session
        if session is None or not session.pending or session.blocked:
            return 0.0
        oldest = next(iter(session.pending.values())).written
        since = max(oldest, session.last_answer, session.last_blocked)
        return max(0.0, time.monotonic() - since)

    async def run(self) -> None:
        """Keep a session open until cancelled."""
        short_lives = 0
        while True:
            retrying = AsyncRetrying(
                wait=wait_random_exponential(multiplier=0.1, max=_RECONNECT_CAP_SECONDS),
                retry=retry_if_exception_type(BrokerError),
                before_sleep=self._say,
            )
            session: _Session[PublishT] = await retrying(self._open)
            self._notices.well()
            started = time.monotonic()
            self._session = session
            self._wake.set()
            try:
                await self._ended(session)
            finally:
                self._session = None
                await self._close(session)
            self._notices.trouble(BrokerUnreachable(f"The session ended: {session.reason}."))
            # A broker that accepts and then throws us out is not asked in a tight loop.
            short_lives = short_lives + 1 if time.monotonic() - started < 5 else 0
            if short_lives:
                bound = min(_RECONNECT_CAP_SECONDS, 0.1 * 2 ** min(short_lives, 10))
                await asyncio.sleep(random.uniform(0, bound))

    def collect(self) -> list[Settled[PublishT]]:
        """What was settled since the last call."""
        settled, self._settled = self._settled, []
        return settled

    async def publish(self, publishes: Sequence[PublishT]) -> None:
        """Write a batch; each row is settled once, sooner or later, and found by ``collect``."""
        session = self._session
        if session is None:
            self._settle_all(publishes, Outcome.LOST, "no connection")
            return
        now = time.monotonic()
        channel, pending = session.channel, session.pending
        tag = channel.delivery_tag
        buffer: list[bytes] = []
        for publish in publishes:
            row = publish.row
            if len(row.body) > self._max_body_bytes:
                detail = f"the body has {len(row.body)} bytes, more than {self._max_body_bytes}"
                self._settled.append(Settled(publish, Outcome.UNSENDABLE, detail))
                continue
            if row.exchange not in session.exchanges:
                detail = self._missing(session, row.exchange)
                self._settled.append(Settled(publish, Outcome.NOT_SENT, detail))
                continue
            try:
                method = method_frame(channel.number, row.exchange, row.routing_key, row.required)
            except (ValueError, TypeError, UnicodeError) as error:
                detail = f"cannot be encoded: {error}"
                self._settled.append(Settled(publish, Outcome.UNSENDABLE, detail))
                continue
            tag += 1
            buffer.append(method)
            # The message id is fresh for each publish, and tells a return's tag.
            buffer += content_frames(
                channel.number,
                row.event_id,
                f"{session.name}-{tag}",
                row.body,
                channel.max_content_size,
                row.replay_id,
            )
            pending[tag] = _Pending(publish, now)
        channel.delivery_tag = tag
        if self._settled:
            self._wake.set()
        if not buffer:
            return
        frame = ChannelFrame(payload=b"".join(buffer), should_close=False)
        try:
            # Waits only while aiormq's writer does; then something is wrong with the connection.
            async with asyncio.timeout(self._confirm_timeout):
                await session.channel.write_queue.put(frame)
        except TimeoutError:
            session.give_up("it takes no more bytes")

    def expire(self) -> None:
        """Give up what has waited too long for its confirm."""
        session = self._session
        if session is None or not session.pending:
            return
        now = time.monotonic()
        if session.blocked:
            session.last_blocked = now
            return
        given_up = []
        for tag, pending in session.pending.items():
            if max(pending.written, session.last_blocked) + self._confirm_timeout > now:
                break
            given_up.append(tag)
        if not given_up:
            return
        if session.last_answer < session.pending[given_up[0]].written:
            session.give_up(f"no answer for {self._confirm_timeout:g} s")
            return
        for tag in given_up:
            publish = session.pending.pop(tag).publish
            self._settled.append(Settled(publish, Outcome.TIMED_OUT, "no confirm in time"))
        self._wake.set()

    # The session

    async def _open(self) -> _Session[PublishT]:
        url = asked(self._url)
        transport = _KeptTransport(
            TLSTransportFactory() if url.startswith("amqps:") else TCPTransportFactory()
        )
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = aiormq.Connection(url, transport_factory=transport)
                await connection.connect()
                channel = await connection.channel(publisher_confirms=True)
                if not isinstance(channel, aiormq.Channel):
                    raise TypeError(f"a channel of class {type(channel).__name__}")
                session = _Session[PublishT](connection, channel, transport, secrets.token_hex(8))
                self._take_over(session)
                await self._probe(session, self._events_exchange)
                return session
        except asyncio.CancelledError as error:
            transport.cut()
            # aiormq also raises this in a task that nobody cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise BrokerUnreachable("The connection was closed while it was opened.") from error
        except Exception as error:
            transport.cut()
            raise _coded(error) from error

    def _take_over(self, session: _Session[PublishT]) -> None:
        """Read returns and confirms here instead of in aiormq."""
        channel = session.channel

        async def on_return(frame: commands.Basic.Return) -> None:
            header = await getattr(channel, _HEADER_READER)()
            message = await channel._read_content(frame, header)
            prefix, _, tag = (message.header.properties.message_id or "").partition("-")
            pending = session.pending.get(int(tag)) if prefix == session.name else None
            session.last_answer = time.monotonic()
            if pending is not None:
                pending.returned = f"{frame.reply_code} {frame.reply_text}"

        async def on_confirm(frame: ConfirmationFrameType) -> None:
            session.last_answer = time.monotonic()
            acked = isinstance(frame, commands.Basic.Ack)
            last = frame.delivery_tag or 0
            if getattr(frame, "multiple", False):
                tags = []
                for tag in session.pending:  # in the order they were written
                    if tag > last:
                        break
                    tags.append(tag)
            else:
                tags = [last]
            for tag in tags:
                pending = session.pending.pop(tag, None)
                if pending is None:
                    self.late_confirms += 1
                elif not acked:
                    self._settled.append(Settled(pending.publish, Outcome.NACKED, "nacked"))
                elif pending.returned is not None:
                    self._settled.append(
                        Settled(pending.publish, Outcome.RETURNED, pending.returned)
                    )
                else:
                    self._settled.append(Settled(pending.publish, Outcome.ACKED))
            self._wake.set()

        channel._on_return_frame = on_return  # type: ignore[method-assign]  # see the module
        channel._on_confirm_frame = on_confirm  # type: ignore[method-assign]  # see the module

    async def _ended(self, session: _Session[PublishT]) -> None:
        given_up = asyncio.ensure_future(session.given_up.wait())
        asking = asyncio.create_task(self._ask(session))
        closings = {session.connection.closing, session.channel.closing}
        try:
            await asyncio.wait({given_up, *closings}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            given_up.cancel()
            asking.cancel()
        for closing in closings:
            if not session.reason and closing.done() and not closing.cancelled():
                error = closing.exception()
                session.reason = str(error or "closed")
                session.refused = isinstance(error, _REFUSALS)
        session.reason = session.reason or "closed"

    async def _ask(self, session: _Session[PublishT]) -> None:
        """Give the session up when the broker does not answer while nothing is published."""
        while True:
            await asyncio.sleep(self._ask_seconds)
            if session.pending or session.blocked:
                continue  # confirms tell, or it is not there for us anyway
            try:
                # Said once already; the broker only says yes again.
                async with asyncio.timeout(self._confirm_timeout):
                    await session.channel.confirm_delivery()
            except TimeoutError:
                session.give_up(f"no answer for {self._confirm_timeout:g} s")
            except (aiormq.AMQPError, OSError, RuntimeError):
                return  # it is closed, which is told elsewhere

    async def _close(self, session: _Session[PublishT]) -> None:
        for probe in session.probes.values():
            probe.cancel()
        pending = [entry.publish for entry in session.pending.values()]
        session.pending.clear()
        outcome = Outcome.LOST
        if session.refused:
            outcome = Outcome.REFUSED if len(pending) == 1 else Outcome.SUSPECTED
        self._settle_all(pending, outcome, session.reason)
        if not session.given_up.is_set():
            with contextlib.suppress(Exception):  # closing politely is a courtesy
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await session.connection.close()
        session.transport.cut()

    def _settle_all(self, publishes: Sequence[PublishT], outcome: Outcome, detail: str) -> None:
        self._settled += [Settled(publish, outcome, detail) for publish in publishes]
        self._wake.set()

    def _say(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, BrokerError):
            self._notices.trouble(error)

    # Exchanges

    def _missing(self, session: _Session[PublishT], exchange: str) -> str:
        """Look for an exchange, and say that it is missing: a publish to it would close the channel
        and make every other one unknown."""
        absent = session.missing.get(exchange, 0.0)
        if exchange not in session.probes and time.monotonic() - absent > _MISSING_SECONDS:
            probe = asyncio.create_task(self._probe(session, exchange))
            session.probes[exchange] = probe
            probe.add_done_callback(lambda _: session.probes.pop(exchange, None))
        return f"the exchange {exchange!r} does not exist, as far as is known"

    async def _probe(self, session: _Session[PublishT], exchange: str) -> None:
        """Look for an exchange on a channel of its own, which its absence closes."""
        try:
            async with asyncio.timeout(self._confirm_timeout):
                channel = await session.connection.channel(publisher_confirms=False)
                await channel.exchange_declare(exchange, passive=True)
                session.exchanges.add(exchange)
                session.missing.pop(exchange, None)
                await channel.close()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            session.missing[exchange] = time.monotonic()
        except (aiormq.AMQPError, OSError, RuntimeError, TimeoutError):
            session.missing[exchange] = time.monotonic()


def _coded(error: Exception) -> BrokerError:
    detail = str(error) or type(error).__name__
    refusals = (
        aiormq.AuthenticationError,
        aiormq.ProbableAuthenticationError,
        aiormq.ConnectionNotAllowed,
    )
    if isinstance(error, refusals):
        return BrokerRefused(
            f"The broker refuses the connection: {detail}.",
            next_step="Check user, password, virtual host and rights in TENURE_BROKER_URL.",
        )
    if fault := tls_fault(error, "broker"):
        return BrokerUntrusted(fault.message, next_step=fault.next_step)
    return BrokerUnreachable(
        f"No connection to the broker: {detail}.",
        next_step="Check the address in TENURE_BROKER_URL, and that the broker runs.",
    )
