"""For services that listen to events: ``EventConsumer`` (EVENT-03).

::

    consumer = EventConsumer("billing", inbox=PostgresInbox("postgresql://…", schema="billing"))

    @consumer.on("task.delivered")
    async def bill(event: Event, context: EventContext) -> None:
        await context.connection.execute("insert into invoices …", event.task_id)

Run by ``tenure consumer run module:consumer``, or by ``await consumer.run()`` in a program of your
own. "billing" is the name of a subscription (``tenure subscription add billing …``).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias

from tenure.contract.events import Event
from tenure.contract.subscriptions import EVERYTHING, SUBSCRIPTION_PATTERN, binding_keys
from tenure.executor.errors import DeclarationError
from tenure.executor.event_inbox import EventInbox, Stream

__all__ = ["EventConsumer", "EventContext", "Source", "Stream"]

DEFAULT_MAX_ATTEMPTS: Final = 5
DEFAULT_PREFETCH: Final = 50


class Source(StrEnum):
    """How an event came here."""

    QUEUE = "queue"
    AUTHORITY = "authority"  # it had been missed, and was read from the coordinator
    INBOX = "inbox"  # it had been kept, because it or one before it could not be handled


@dataclass(frozen=True, slots=True)
class EventContext:
    """What a handler is given beside the event.

    ``connection``: with an inbox in PostgreSQL the asyncpg connection whose transaction also
    records that the event was handled: what is written through it happens exactly once. None with
    an inbox in SQLite. ``late``: an event of the same stream that comes after this one has been
    handled already; it happens only where the subscription leaves out a part of the stream.
    ``attempt``: how often the handler was begun for this event, from 1. ``resources``: what the
    lifespan yields.
    """

    connection: Any
    source: Source
    late: bool
    attempt: int
    resources: Any


EventHandler: TypeAlias = Callable[[Event, EventContext], Awaitable[None]]
DiscardHandler: TypeAlias = Callable[[Stream, Sequence[str], EventContext], Awaitable[None]]
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]


class EventConsumer:
    """A consumer of the events of one subscription."""

    def __init__(
        self,
        subscription: str,
        *,
        inbox: EventInbox,
        tenant: str | None = None,
        all_tenants: bool = False,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        prefetch: int = DEFAULT_PREFETCH,
        concurrency: int = 10,
    ) -> None:
        """``tenant`` and ``all_tenants`` say which subscription of that name is meant where a token
        sees several. ``max_attempts``: failures of a handler until the event is parked, and with it
        the rest of its stream. ``prefetch``: messages that may be here unsettled; ``concurrency``:
        streams whose events are handled at once, each stream in order.

        Raises DeclarationError.
        """
        if not SUBSCRIPTION_PATTERN.fullmatch(subscription):
            raise DeclarationError(f"{subscription!r} is no name of a subscription.")
        if min(max_attempts, prefetch, concurrency) < 1:
            raise DeclarationError("max_attempts, prefetch and concurrency are at least 1.")
        if all_tenants and tenant is not None:
            raise DeclarationError("name one tenant or say all_tenants, not both.")
        self.subscription = subscription
        self.inbox = inbox
        self.tenant = tenant
        self.all_tenants = all_tenants
        self.max_attempts = max_attempts
        self.prefetch = prefetch
        self.concurrency = concurrency
        self._handlers: dict[str, EventHandler] = {}
        self._on_discarded: DiscardHandler | None = None
        self._lifespan: Lifespan | None = None

    @property
    def name(self) -> str:
        """Under which the inbox remembers, so that several consumers may share its tables."""
        return self.subscription

    @property
    def handlers(self) -> Mapping[str, EventHandler]:
        """By the word that they were declared for."""
        return self._handlers

    def refuse_empty(self) -> None:
        """Raises DeclarationError when there is no handler, and so nothing to run."""
        if not self._handlers:
            raise DeclarationError(
                f"consumer {self.name!r} has no handlers.",
                next_step='Declare one with @consumer.on("task").',
            )

    def on(self, *events: str) -> Callable[[EventHandler], EventHandler]:
        """Declare a handler: ``async def handler(event, context)``, for ``all``, an entity type
        (``task``) or ``ENTITY.STATE`` (``task.delivered``). Of several that fit, the closest one is
        called. What has no handler counts as handled.

        A handler that raises is called again, with growing pauses, until ``max_attempts``; one
        that raises ``Fail`` is not. It is then parked with its stream until a person decides.
        """
        try:
            binding_keys(None, events)
        except ValueError as error:
            raise DeclarationError(f"{error}.") from error

        def add(handler: EventHandler) -> EventHandler:
            _check_async(handler)
            for word in events:
                if word in self._handlers:
                    raise DeclarationError(f"{word!r} has two handlers.")
                self._handlers[word] = handler
            return handler

        if not events:
            raise DeclarationError(f"name events, or {EVERYTHING!r}.")
        return add

    def on_discarded(self, handler: DiscardHandler) -> DiscardHandler:
        """Declare what undoes events that never happened: ``async def handler(stream, event_ids,
        context)``. After a restore the authority may not know events that were handled; what it
        knows instead is handed to the other handlers afterwards."""
        _check_async(handler)
        if self._on_discarded is not None:
            raise DeclarationError("a consumer has one handler of discarded events.")
        self._on_discarded = handler
        return handler

    @property
    def discard_handler(self) -> DiscardHandler | None:
        """What was declared with ``on_discarded``."""
        return self._on_discarded

    def lifespan(self, function: Lifespan) -> Lifespan:
        """Declare what opens and closes the resources that handlers share: an
        ``@asynccontextmanager`` that yields any object."""
        if self._lifespan is not None:
            raise DeclarationError("a consumer has one lifespan, this is a second.")
        self._lifespan = function
        return function

    def open_resources(self) -> AbstractAsyncContextManager[Any]:
        """The lifespan, entered by the runtime; yields None where none was declared."""
        return _no_resources() if self._lifespan is None else self._lifespan()

    def handler_of(self, event: Event) -> EventHandler | None:
        """The handler that fits an event most closely."""
        entity = event.entity_type.value
        for word in (f"{entity}.{event.next_state}", entity, EVERYTHING):
            if word in self._handlers:
                return self._handlers[word]
        return None

    async def run(self, **settings: Any) -> None:
        """Consume until SIGTERM or SIGINT, then finish what was begun; a second signal hurries.

        Servers that are away are waited for. ``settings``: in the place of those of the environment
        (docs/settings.md, "Consumer"). Raises DeclarationError for a consumer without handlers,
        SettingsInvalid, ListenRefused and LifespanFailed.
        """
        from tenure.executor.consumer_runner import run
        from tenure.executor.consumer_settings import load_settings

        await run(self, load_settings(**settings))


def _check_async(handler: Callable[..., Any]) -> None:
    if not iscoroutinefunction(handler):
        name = getattr(handler, "__name__", repr(handler))
        raise DeclarationError(f"{name} is not written with `async def`.")


@asynccontextmanager
async def _no_resources() -> AsyncIterator[None]:
    yield None
