"""What an event means to a consumer that knows how far it has come (EVENT-03)."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.executor.core.streams import (
    Position,
    Step,
    Told,
    Why,
    authority_is_behind,
    judge,
    settle_account,
)

pytestmark = pytest.mark.requirement("EVENT-03")

P = Position


@pytest.mark.parametrize(
    ("known", "event", "whole", "step", "why"),
    [
        (None, P(1, 1), True, Step.HANDLE, Why.NEXT),
        (None, P(1, 3), True, Step.ASK, Why.BEGUN),
        (None, P(1, 3), False, Step.HANDLE, Why.NEXT),
        (P(1, 2), P(1, 3), True, Step.HANDLE, Why.NEXT),
        (P(1, 2), P(1, 4), True, Step.ASK, Why.GAP),
        (P(1, 2), P(1, 4), False, Step.HANDLE, Why.NEXT),
        (P(1, 2), P(1, 2), True, Step.ASK, Why.BEHIND),
        (P(1, 4), P(1, 2), False, Step.HANDLE, Why.LATE),
        (P(1, 4), P(2, 5), True, Step.ASK, Why.NEWER_EPOCH),
        (P(1, 4), P(2, 3), False, Step.ASK, Why.NEWER_EPOCH),
        (P(2, 4), P(1, 5), True, Step.ASK, Why.OLDER_EPOCH),
        (P(2, 4), P(1, 9), False, Step.ASK, Why.OLDER_EPOCH),
    ],
)
def test_holes_and_other_epochs_are_asked_about(
    known: Position | None, event: Position, whole: bool, step: Step, why: Why
) -> None:
    judgement = judge(known, event, seen=False, whole=whole)
    assert (judgement.step, judgement.why) == (step, why)
    assert judge(known, event, seen=True, whole=whole).step is Step.SKIP


def test_the_authority_is_behind_what_it_does_not_know_of_its_own_epoch() -> None:
    assert authority_is_behind(P(1, 4), epoch=1, last_sequence=3)
    assert authority_is_behind(P(2, 1), epoch=1, last_sequence=3)
    assert not authority_is_behind(P(1, 4), epoch=1, last_sequence=4)
    assert not authority_is_behind(P(1, 4), epoch=2, last_sequence=3)


def test_an_account_names_what_was_missed_and_what_never_happened() -> None:
    history = [Told("a", P(1, 1)), Told("b", P(1, 2)), Told("c", P(3, 3)), Told("d", P(3, 4))]
    mine = {"a": P(1, 1), "x": P(1, 3), "w": P(1, 2)}
    account = settle_account(mine, history, wanted={"a", "b", "c"}, begins_at=1)
    assert account.missed == ("b", "c")
    assert account.discarded == ("w", "x")
    # What lies before the part that was read is not judged.
    assert settle_account(mine, history[2:], wanted={"c"}, begins_at=3).discarded == ("x",)


class Authority:
    """A stream that is written under epochs; a restore cuts it and continues under a new one."""

    def __init__(self) -> None:
        self.history: list[Told] = []
        self.ever: list[Told] = []
        self.epoch = 1

    def append(self) -> Told:
        told = Told(f"e{len(self.ever)}", P(self.epoch, len(self.history) + 1))
        self.history.append(told)
        self.ever.append(told)
        return told

    def restore(self, kept: int) -> None:
        del self.history[kept:]
        self.epoch += 1


class Consumer:
    """Handles a whole stream as the judgements say, and remembers in memory."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.handled: list[Told] = []
        self.known: Position | None = None
        self.discarded: set[str] = set()

    def receive(self, told: Told) -> None:
        seen = told.event_id in {one.event_id for one in self.handled} | self.discarded
        judgement = judge(self.known, told.position, seen=seen, whole=True)
        if judgement.step is Step.ASK:
            self.ask(told)
        elif judgement.step is Step.HANDLE:
            self.handle(told)

    def ask(self, told: Told) -> None:
        history = self.authority.history
        mine = {one.event_id: one.position for one in self.handled}
        account = settle_account(
            mine, history, wanted={one.event_id for one in history}, begins_at=1
        )
        self.discarded = self.discarded | set(account.discarded)
        self.handled = [one for one in self.handled if one.event_id not in account.discarded]
        if account.discarded:
            self.known = max((one.position for one in self.handled), default=None)
        by_id = {one.event_id: one for one in history}
        if told.event_id not in by_id:
            self.discarded = self.discarded | {told.event_id}
        for event_id in account.missed:
            self.handle(by_id[event_id])

    def handle(self, told: Told) -> None:
        self.handled.append(told)
        self.known = max(self.known or told.position, told.position)


STEPS = st.lists(
    st.one_of(
        st.just("append"),
        st.tuples(st.just("restore"), st.integers(0, 6)),
        st.tuples(st.just("deliver"), st.integers(0, 30)),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_is_lost_doubled_or_late_the_authoritys_history_is_handled_once_in_order(
    steps: Iterable[str | tuple[str, int]],
) -> None:
    authority = Authority()
    consumer = Consumer(authority)
    for step in steps:
        match step:
            case "append":
                authority.append()
            case ("restore", int(kept)):
                authority.restore(min(kept, len(authority.history)))
            case ("deliver", int(number)) if authority.ever:
                told = authority.ever[number % len(authority.ever)]
                # Once recovered: before, nothing is decided about what it does not know.
                consumer.receive(told)
    # A last event, and its message: everything before it was found missing.
    authority.restore(len(authority.history))
    consumer.receive(authority.append())
    assert [one.event_id for one in consumer.handled] == [one.event_id for one in authority.history]
