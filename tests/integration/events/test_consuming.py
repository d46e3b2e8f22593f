"""One event at a time: handled once, in order, under an inbox in SQLite and in PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4, uuid5

import asyncpg
import pytest

from tenure.contract.events import Event
from tenure.executor.consumer import EventConsumer, EventContext, Source
from tenure.executor.consumer_metrics import ConsumerMetrics
from tenure.executor.consuming import Consuming, Outcome
from tenure.executor.errors import AuthorityBehind, Fail, HandlerFailed, InboxUnavailable
from tenure.executor.event_inbox import EventInbox, Stream, stream_of
from tenure.executor.event_inbox_postgres import PostgresInbox
from tenure.executor.event_inbox_sqlite import SqliteInbox
from tenure.executor.http import Coordinator
from tests.support.isolation import FreshDatabase
from tests.support.streams import Authority, a_subscription, an_event

pytestmark = pytest.mark.requirement("EVENT-03")


class Bench:
    """A consumer, what its handler was given, and how the handler behaves."""

    def __init__(self, inbox: EventInbox, *words: str) -> None:
        self.inbox = inbox
        self.stream = uuid4()
        self.authority = Authority()
        self.handled: list[tuple[int, Source, bool]] = []
        self.contexts: list[EventContext] = []
        self.discarded: list[str] = []
        self.failing: dict[int, Exception] = {}
        self.clock = 1_000_000.0
        self.consumer = EventConsumer("billing", inbox=inbox, max_attempts=3)

        @self.consumer.on("task")
        async def handle(event: Event, context: EventContext) -> None:
            self.contexts.append(context)
            await self.write(event, context)
            if event.sequence in self.failing:
                raise self.failing[event.sequence]
            self.handled.append((event.sequence, context.source, context.late))

        @self.consumer.on_discarded
        async def undo(stream: Stream, event_ids: Any, context: EventContext) -> None:
            self.discarded += event_ids

        self.consuming = Consuming(
            self.consumer,
            subscription=a_subscription(*(words or ("task",))),
            coordinator=cast(Coordinator, self.authority),
            metrics=ConsumerMetrics(),
            resources=None,
            now=lambda: self.clock,
        )

    async def write(self, event: Event, context: EventContext) -> None:
        """What the handler does elsewhere."""

    def events(self, number: int) -> list[Event]:
        """The stream's first events; the authority has them."""
        self.authority.events = [an_event(self.stream, n) for n in range(1, number + 1)]
        return list(self.authority.events)

    @property
    def sequences(self) -> list[int]:
        return [sequence for sequence, _, _ in self.handled]

    async def states(self) -> list[tuple[int, str]]:
        """What is kept, by sequence."""
        kept = await self.inbox.kept("billing")
        return sorted((one.position.sequence, one.state.value) for one in kept)


@pytest.fixture(params=["sqlite", "postgres"])
async def inbox(
    request: pytest.FixtureRequest, tmp_path: Path, database: FreshDatabase
) -> AsyncIterator[EventInbox]:
    found: EventInbox
    if request.param == "sqlite":
        found = SqliteInbox(tmp_path / "inbox" / "billing.sqlite3")
    else:
        admin = await asyncpg.connect(database.admin_url)
        await admin.execute("create schema billing")
        await admin.close()
        found = PostgresInbox(database.admin_url, schema="billing")
    await found.open(2)
    yield found
    await found.close()


@pytest.fixture
def bench(inbox: EventInbox) -> Bench:
    return Bench(inbox)


async def test_an_event_is_handled_once_however_often_it_comes(bench: Bench) -> None:
    first, second = bench.events(2)
    outcomes = [await bench.consuming.receive(event) for event in (first, first, second, first)]
    assert outcomes == [Outcome.HANDLED, Outcome.DUPLICATE, Outcome.HANDLED, Outcome.DUPLICATE]
    assert bench.sequences == [1, 2]
    assert bench.authority.asked == []


async def test_a_gap_is_filled_from_the_authority_before_the_event_behind_it(bench: Bench) -> None:
    events = bench.events(5)
    await bench.consuming.receive(events[0])
    assert await bench.consuming.receive(events[3]) is Outcome.HANDLED
    assert bench.handled == [
        (1, Source.QUEUE, False),
        (2, Source.AUTHORITY, False),
        (3, Source.AUTHORITY, False),
        (4, Source.QUEUE, False),
    ]
    assert bench.authority.asked == [1]
    # What was late on its way is known, and the rest goes on without asking.
    assert await bench.consuming.receive(events[1]) is Outcome.DUPLICATE
    assert await bench.consuming.receive(events[4]) is Outcome.HANDLED
    assert bench.authority.asked == [1]


async def test_a_stream_that_is_met_in_its_middle_is_read_from_its_beginning(bench: Bench) -> None:
    events = bench.events(3)
    await bench.consuming.receive(events[2])
    assert bench.sequences == [1, 2, 3]


@pytest.mark.parametrize("refusal", ["events_removed", "not_found"])
async def test_a_gap_that_nobody_can_fill_is_left_and_counted(bench: Bench, refusal: str) -> None:
    events = bench.events(4)
    await bench.consuming.receive(events[0])
    bench.authority.refusal = refusal
    assert await bench.consuming.receive(events[2]) is Outcome.HANDLED
    assert await bench.consuming.receive(events[3]) is Outcome.HANDLED
    assert bench.sequences == [1, 3, 4]
    assert bench.authority.asked == [1]


async def test_a_part_of_a_stream_has_no_gaps_and_late_events_say_so(inbox: EventInbox) -> None:
    bench = Bench(inbox, "task.held", "task.delivered")
    events = bench.events(6)
    for number in (2, 6, 4):
        assert await bench.consuming.receive(events[number - 1]) is Outcome.HANDLED
    assert bench.handled == [
        (2, Source.QUEUE, False),
        (6, Source.QUEUE, False),
        (4, Source.QUEUE, True),
    ]
    assert bench.authority.asked == []


async def test_the_timer_finds_what_no_message_brought(inbox: EventInbox) -> None:
    bench = Bench(inbox, "task.held")
    events = bench.events(6)
    await bench.consuming.receive(events[1])
    (due,) = await inbox.due("billing", bench.clock + 1, limit=10)
    bench.clock += 1
    await bench.consuming.compare(due)
    assert bench.handled[1:] == [(4, Source.AUTHORITY, False), (6, Source.AUTHORITY, False)]
    assert await inbox.due("billing", bench.clock, limit=10) == []
    # A stream that has ended is looked at no more.
    bench = Bench(inbox)
    events = bench.events(8)
    await bench.consuming.receive(events[7])
    assert bench.sequences == list(range(1, 9))
    assert [one.stream for one in await inbox.due("billing", 2e9, limit=10)] == [due.stream]


async def test_a_failing_event_is_tried_again_then_parked_with_the_rest_of_its_stream(
    bench: Bench,
) -> None:
    events = bench.events(4)
    bench.failing[2] = ValueError("no such customer")
    await bench.consuming.receive(events[0])
    for _ in range(2):
        with pytest.raises(HandlerFailed, match="no such customer"):
            await bench.consuming.receive(events[1])
    assert await bench.consuming.receive(events[1]) is Outcome.PARKED
    assert [context.attempt for context in bench.contexts] == [1, 1, 2, 3]
    assert await bench.consuming.receive(events[2]) is Outcome.BEHIND
    assert await bench.consuming.receive(events[2]) is Outcome.DUPLICATE
    assert await bench.states() == [(2, "parked"), (3, "behind")]
    (parked, _) = await bench.inbox.kept("billing")
    assert parked.reason == "ValueError: no such customer"
    assert await bench.inbox.workable("billing") == []
    assert await bench.inbox.counts("billing") == {"parked": 1, "behind": 1}

    # Another stream goes on.
    other = an_event(uuid4(), 1)
    assert await bench.consuming.receive(other) is Outcome.HANDLED

    del bench.failing[2]
    assert await bench.inbox.release("billing", events[1].event_id)
    assert not await bench.inbox.release("billing", events[2].event_id)
    assert await bench.inbox.workable("billing") == [stream_of(events[1])]
    bench.handled.clear()
    await bench.consuming.work_off(stream_of(events[1]))
    assert bench.handled == [(2, Source.INBOX, False), (3, Source.INBOX, False)]
    assert await bench.consuming.receive(events[3]) is Outcome.HANDLED
    assert await bench.states() == []


async def test_an_event_that_fails_again_after_a_person_has_looked_is_parked_again(
    bench: Bench,
) -> None:
    events = bench.events(3)
    bench.failing[1] = Fail("unknown_customer", "for good")
    assert await bench.consuming.receive(events[0]) is Outcome.PARKED
    assert await bench.consuming.receive(events[1]) is Outcome.BEHIND
    await bench.inbox.release("billing", events[0].event_id)
    await bench.consuming.work_off(stream_of(events[0]))
    assert await bench.states() == [(1, "parked"), (2, "behind")]
    assert bench.handled == []


async def test_a_skipped_event_lets_the_rest_of_its_stream_go_on(bench: Bench) -> None:
    events = bench.events(3)
    bench.failing[2] = Fail("unknown_customer")
    await bench.consuming.receive(events[0])
    await bench.consuming.receive(events[1])
    await bench.consuming.receive(events[2])
    assert await bench.inbox.skip("billing", events[1].event_id, "a test", bench.clock)
    await bench.consuming.work_off(stream_of(events[0]))
    assert bench.sequences == [1, 3]
    assert await bench.states() == []
    assert await bench.consuming.receive(events[1]) is Outcome.DUPLICATE


async def test_a_missed_event_that_fails_parks_itself_and_not_the_one_that_revealed_it(
    bench: Bench,
) -> None:
    events = bench.events(3)
    bench.failing[2] = ValueError("x")
    await bench.consuming.receive(events[0])
    for _ in range(2):
        with pytest.raises(HandlerFailed):
            await bench.consuming.receive(events[2])
    assert await bench.consuming.receive(events[2]) is Outcome.BEHIND
    assert await bench.states() == [(2, "parked"), (3, "behind")]


async def test_a_message_that_killed_its_process_is_counted_before_it_is_begun(
    bench: Bench,
) -> None:
    """Only by our own count, whatever the broker says of deliveries (T18); and only what was begun
    is counted, not what waited beside it (T21)."""
    poison, _ = bench.events(2)
    innocent = an_event(uuid4(), 1)

    class Killed(BaseException):
        """The process is gone: nothing after it happens."""

    async def die(event: Event, context: EventContext) -> None:
        if event.event_id == poison.event_id:
            raise Killed

    bench.write = die  # type: ignore[method-assign]
    begun = 0
    for redelivered in (False, True, True, True):
        with pytest.raises(Killed):
            await bench.consuming.receive(poison, redelivered=redelivered)
        begun += 1
    assert await bench.consuming.receive(poison, redelivered=True) is Outcome.PARKED
    assert begun == 1 + bench.consumer.max_attempts
    (parked,) = await bench.inbox.kept("billing")
    assert parked.reason == "it was begun and not finished: the process ended in its middle"
    assert await bench.consuming.receive(innocent, redelivered=True) is Outcome.HANDLED
    assert bench.contexts[-1].attempt == 1


async def test_a_new_epoch_is_compared_first_and_what_never_happened_is_undone(
    bench: Bench,
) -> None:
    """After a restore: the authority has forgotten the third event and goes on otherwise."""
    events = bench.events(3)
    for event in events:
        await bench.consuming.receive(event)
    bench.authority.epoch = 7
    instead = an_event(bench.stream, 3, epoch=7, state="held")
    last = an_event(bench.stream, 4, epoch=7)
    bench.authority.events = [*events[:2], instead, last]
    bench.handled.clear()
    assert await bench.consuming.receive(last) is Outcome.HANDLED
    assert bench.discarded == [events[2].event_id]
    assert bench.handled == [(3, Source.AUTHORITY, False), (4, Source.QUEUE, False)]
    assert await bench.consuming.receive(events[2]) is Outcome.DISCARDED
    assert await bench.consuming.receive(instead) is Outcome.DUPLICATE


async def test_a_lower_epoch_is_discarded_unless_the_authority_has_it(bench: Bench) -> None:
    events = bench.events(2)
    after = an_event(bench.stream, 3, epoch=2)
    bench.authority.epoch = 2
    bench.authority.events = [*events, after]
    lost = an_event(bench.stream, 3, epoch=1)
    await bench.consuming.receive(after)
    assert await bench.consuming.receive(lost) is Outcome.DISCARDED
    assert await bench.consuming.receive(lost) is Outcome.DISCARDED
    assert bench.sequences == [1, 2, 3]
    assert bench.discarded == []


async def test_an_authority_that_knows_less_is_told_and_nothing_is_decided(bench: Bench) -> None:
    events = bench.events(3)
    await bench.consuming.receive(events[0])
    bench.authority.events = events[:1]
    with pytest.raises(AuthorityBehind):
        await bench.consuming.receive(events[2])
    assert bench.authority.presented == [("task", str(bench.stream), 1, 3)]
    bench.authority.events = events
    assert await bench.consuming.receive(events[2]) is Outcome.HANDLED
    assert bench.sequences == [1, 2, 3]


async def test_the_timer_tells_an_authority_that_has_lost_what_was_handled(bench: Bench) -> None:
    events = bench.events(3)
    for event in events:
        await bench.consuming.receive(event)
    bench.authority.events = events[:2]
    (due,) = await bench.inbox.due("billing", 2e9, limit=1)
    await bench.consuming.compare(due)
    assert bench.authority.presented == [("task", str(bench.stream), 1, 3)]
    # Recovered under a new epoch: what it does not know never happened.
    bench.authority.epoch = 9
    await bench.consuming.compare(due)
    assert bench.discarded == [events[2].event_id]


async def test_settled_events_and_ended_streams_are_forgotten_in_time(bench: Bench) -> None:
    events = bench.events(8)
    for event in events[:7]:
        await bench.consuming.receive(event)
    bench.clock += 100
    await bench.consuming.receive(events[7])
    assert await bench.inbox.retire("billing", bench.clock - 50) == 7
    assert len(await bench.inbox.newest("billing", limit=10)) == 1
    assert await bench.inbox.retire("billing", bench.clock + 1) == 1
    assert await bench.inbox.newest("billing", limit=10) == []


async def test_two_consumers_remember_apart_in_one_inbox(bench: Bench) -> None:
    (event,) = bench.events(1)
    await bench.consuming.receive(event)
    other = EventConsumer("audit", inbox=bench.inbox)
    seen: list[str] = []

    @other.on("all")
    async def handle(event: Event, context: EventContext) -> None:
        seen.append(event.event_id)

    consuming = Consuming(
        other,
        subscription=a_subscription("all"),
        coordinator=cast(Coordinator, bench.authority),
        metrics=ConsumerMetrics(),
        resources=None,
    )
    assert await consuming.receive(event) is Outcome.HANDLED
    assert seen == [event.event_id]


# What only PostgreSQL gives


@pytest.fixture
async def transactional(database: FreshDatabase) -> AsyncIterator[Bench]:
    admin = await asyncpg.connect(database.admin_url)
    await admin.execute(
        "create schema billing; create table billing.invoices (sequence bigint not null)"
    )
    inbox = PostgresInbox(lambda: database.admin_url, schema="billing")
    await inbox.open(4)
    bench = Bench(inbox)

    async def write(event: Event, context: EventContext) -> None:
        await context.connection.execute("insert into billing.invoices values ($1)", event.sequence)

    async def invoices() -> list[int]:
        rows = await admin.fetch("select sequence from billing.invoices order by sequence")
        return [row["sequence"] for row in rows]

    bench.write = write  # type: ignore[method-assign]
    bench.invoices = invoices  # type: ignore[attr-defined]
    yield bench
    await inbox.close()
    await admin.close()


async def test_what_a_handler_writes_and_that_it_was_handled_are_one_transaction(
    transactional: Any,
) -> None:
    events = transactional.events(2)
    transactional.failing[2] = ValueError("after the write")
    await transactional.consuming.receive(events[0])
    with pytest.raises(HandlerFailed):
        await transactional.consuming.receive(events[1])
    assert await transactional.invoices() == [1]
    transactional.failing.clear()
    await transactional.consuming.receive(events[1])
    await transactional.consuming.receive(events[1])
    assert await transactional.invoices() == [1, 2]


async def test_a_lost_connection_is_not_the_handlers_failure(
    transactional: Any, database: FreshDatabase
) -> None:
    (event,) = transactional.events(1)
    write = transactional.write

    async def lose(event: Event, context: EventContext) -> None:
        await write(event, context)
        pid = context.connection.get_server_pid()
        other = await asyncpg.connect(database.admin_url)
        await other.execute("select pg_terminate_backend($1)", pid)
        await other.close()
        await context.connection.execute("select 1")

    transactional.write = lose
    with pytest.raises(InboxUnavailable):
        await transactional.consuming.receive(event)
    transactional.write = write
    assert await transactional.consuming.receive(event) is Outcome.HANDLED
    assert await transactional.invoices() == [1]
    assert transactional.contexts[-1].attempt == 1


async def test_two_processes_share_an_inbox_and_handle_an_event_once(
    transactional: Any, database: FreshDatabase
) -> None:
    events = transactional.events(4)
    other = PostgresInbox(database.admin_url, schema="billing")
    await other.open(4)
    second = Bench(other)
    second.authority.events = events
    second.write = transactional.write  # type: ignore[method-assign]
    both = (transactional.consuming, second.consuming)
    outcomes = await asyncio.gather(
        *(one.receive(event) for event in reversed(events) for one in both)
    )
    await other.close()
    assert await transactional.invoices() == [1, 2, 3, 4]
    assert Outcome.PARKED not in outcomes


async def test_an_event_that_two_processes_get_at_once_has_its_follow_ups_once(
    transactional: Any, database: FreshDatabase
) -> None:
    """T19: one row of the inbox, three follow-ups with stable ids, and the loser ends quietly."""
    admin = await asyncpg.connect(database.admin_url)
    await admin.execute("create table billing.follow_ups (id uuid primary key)")
    (event,) = transactional.events(1)
    both_inside = asyncio.Barrier(2)

    async def follow_up(event: Event, context: EventContext) -> None:
        for number in range(3):
            identity = uuid5(UUID(event.event_id), str(number))
            await context.connection.execute("insert into billing.follow_ups values ($1)", identity)

    other = PostgresInbox(database.admin_url, schema="billing")
    await other.open(4)
    second = Bench(other)
    second.authority.events = transactional.authority.events
    transactional.write = follow_up
    second.write = follow_up  # type: ignore[method-assign]

    async def receive(bench: Bench) -> Outcome:
        await both_inside.wait()
        return await bench.consuming.receive(event)

    outcomes = await asyncio.gather(receive(transactional), receive(second))
    await other.close()
    assert sorted(outcomes) == sorted([Outcome.HANDLED, Outcome.DUPLICATE])
    stable = {uuid5(UUID(event.event_id), str(number)) for number in range(3)}
    rows = await admin.fetch("select id from billing.follow_ups")
    kept = await admin.fetchval("select count(*) from billing.tenure_events")
    await admin.close()
    assert {UUID(str(row["id"])) for row in rows} == stable
    assert len(rows) == 3
    assert kept == 1


async def test_an_inbox_that_may_not_be_made_says_so(database: FreshDatabase) -> None:
    missing = PostgresInbox(database.admin_url, schema="nowhere")
    with pytest.raises(InboxUnavailable, match="nowhere"):
        await missing.open(1)
    await missing.close()
