"""Renewals come from a thread of their own, and a refusal ends the authority at once."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import AttemptId, IncarnationId, NodeId
from tenure.contract.reports import LeaseTerms, RenewalReplies, RenewalReply, Renewals
from tenure.contract.states import NodeState
from tenure.executor.clock import system_clock
from tenure.executor.errors import CoordinatorRefused, CoordinatorUnavailable, NodeGone
from tenure.executor.lease import Lease
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition
from tenure.executor.renewals import Heard, Renewer
from tests.support.attempts import EXPIRES, lease, new_id
from tests.support.waiting import eventually

INTERVAL_SECONDS = 0.02


def renewed(renewals: Renewals) -> RenewalReplies:
    return RenewalReplies(
        node_state=NodeState.ACTIVE,
        replies=tuple(
            RenewalReply(
                attempt_id=each.attempt_id,
                outcome="renewed",
                remaining_seconds=120.0,
                expires_at=EXPIRES,
            )
            for each in renewals.leases
        ),
    )


class ScriptedCoordinator:
    """Answers rounds by ``answer``, which tests replace; called in the renewals' thread."""

    def __init__(self) -> None:
        self.answer: Callable[[Renewals], RenewalReplies] = renewed
        self.rounds: list[Renewals] = []
        self.closed = threading.Event()

    def renew(self, node_id: NodeId, renewals: Renewals) -> RenewalReplies:
        self.rounds.append(renewals)
        return self.answer(renewals)

    def close(self) -> None:
        self.closed.set()


class Bench:
    """A renewer over a scripted coordinator, and what the event loop was told."""

    def __init__(self, interval_seconds: float) -> None:
        self.coordinator = ScriptedCoordinator()
        self.refused: list[AttemptId] = []
        self.cancelled: list[AttemptId] = []
        self.unknown, self.gone, self.draining = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.condition = Condition("the coordinator")
        self.renewer = Renewer(
            self.coordinator,
            node_id=NodeId("n"),
            incarnation=IncarnationId(new_id()),
            interval_seconds=interval_seconds,
            clock=system_clock(),
            condition=self.condition,
            metrics=ExecutorMetrics(),
            heard=Heard(
                lease_refused=self.refused.append,
                cancel_requested=self.cancelled.append,
                unknown_node=self.unknown.set,
                node_gone=self.gone.set,
                draining=self.draining.set,
            ),
            loop=asyncio.get_running_loop(),
        )

    async def first_round(self) -> None:
        """Wait for the heartbeat that comes at once."""
        while not self.coordinator.rounds:  # noqa: ASYNC110 - another thread's state
            await asyncio.sleep(0.001)

    async def rounds(self, more: int) -> None:
        """Wait for some more rounds."""
        until = len(self.coordinator.rounds) + more
        while len(self.coordinator.rounds) < until:  # noqa: ASYNC110 - another thread's state
            await asyncio.sleep(0.001)


@asynccontextmanager
async def bench(*held: Lease, interval_seconds: float = INTERVAL_SECONDS) -> AsyncIterator[Bench]:
    made = Bench(interval_seconds)
    for each in held:
        made.renewer.hold(each)
    made.renewer.start()
    try:
        yield made
    finally:
        await made.renewer.stop(10)
        assert made.coordinator.closed.is_set()


def outcome(renewals: Renewals, **fields: object) -> RenewalReplies:
    replies = [
        RenewalReply.model_validate({"attempt_id": each.attempt_id, **fields})
        for each in renewals.leases
    ]
    return RenewalReplies(node_state=NodeState.ACTIVE, replies=tuple(replies))


async def test_held_leases_are_renewed_until_they_are_let_go() -> None:
    held = lease()
    async with bench(held) as b:
        await b.rounds(2)
        assert held.remaining_seconds() > 100
        b.renewer.let_go(held.attempt_id)
        await b.rounds(2)
        assert b.coordinator.rounds[-1].leases == (), "an empty round is the heartbeat"


async def test_a_lease_that_was_given_up_here_is_renewed_no_longer() -> None:
    held = lease()
    async with bench(held) as b:
        await b.rounds(1)
        held.end("given up")
        await b.rounds(2)
        assert b.coordinator.rounds[-1].leases == ()


async def test_a_blocked_event_loop_does_not_stop_renewals() -> None:
    held = lease()
    async with bench(held) as b:
        await b.rounds(1)
        before = len(b.coordinator.rounds)
        deadline = time.monotonic() + 60
        while len(b.coordinator.rounds) < before + 5 and time.monotonic() < deadline:
            time.sleep(0.001)  # noqa: ASYNC251 - the loop is blocked on purpose
        assert len(b.coordinator.rounds) >= before + 5


@pytest.mark.requirement("LEASE-06")
async def test_a_refused_renewal_ends_the_authority_before_the_loop_is_told() -> None:
    held = lease()
    async with bench(held) as b:
        b.coordinator.answer = lambda request: outcome(
            request, outcome="refused", code=Code.LEASE_EXPIRED
        )
        deadline = time.monotonic() + 60
        while held.may_act() and time.monotonic() < deadline:
            time.sleep(0.001)  # noqa: ASYNC251 - the loop is blocked on purpose
        assert held.ended == Code.LEASE_EXPIRED
        assert b.refused == [], "the loop has had no chance to hear of it"
        await b.rounds(2)
        await eventually(lambda: b.refused == [held.attempt_id])
        assert b.coordinator.rounds[-1].leases == ()


async def test_an_unanswered_renewal_changes_nothing_and_is_repeated() -> None:
    held = lease(remaining_seconds=50.0)
    answers = [CoordinatorUnavailable("away"), CoordinatorUnavailable("away")]

    def answer(request: Renewals) -> RenewalReplies:
        if answers:
            raise answers.pop()
        return renewed(request)

    async with bench(held) as b:
        b.coordinator.answer = answer
        await b.rounds(4)
        assert held.may_act()
        assert held.remaining_seconds() > 100
        await eventually(lambda: b.condition.usable)


async def test_a_lease_to_be_asked_for_again_is_kept() -> None:
    held = lease()
    async with bench(held) as b:
        b.coordinator.answer = lambda request: outcome(request, outcome="retry")
        await b.rounds(3)
        assert held.may_act()
        assert len(b.coordinator.rounds[-1].leases) == 1


async def test_a_cancellation_comes_with_a_renewal_too() -> None:
    held = lease()
    async with bench(held) as b:
        b.coordinator.answer = lambda request: outcome(
            request,
            outcome="renewed",
            remaining_seconds=120.0,
            expires_at=EXPIRES,
            cancel_requested=True,
        )
        await eventually(lambda: bool(b.cancelled))
        assert b.cancelled[0] == held.attempt_id


async def test_many_leases_go_in_several_requests() -> None:
    async with bench(*(lease() for _ in range(1500))) as b:
        await b.rounds(2)
        sizes = {len(request.leases) for request in b.coordinator.rounds[:2]}
        assert sizes == {1024, 476}


@pytest.mark.parametrize("how", ["refusal", "state"])
async def test_the_end_of_the_incarnation_is_told(how: str) -> None:
    def answer(request: Renewals) -> RenewalReplies:
        if how == "refusal":
            raise NodeGone("gone")
        return RenewalReplies(node_state=NodeState.GONE, replies=())

    async with bench() as b:
        b.coordinator.answer = answer
        await b.gone.wait()


@pytest.mark.requirement("LEASE-09")
@pytest.mark.parametrize("how", ["refusal", "state"])
async def test_nothing_may_act_after_the_end_of_the_incarnation_before_the_loop_is_told(
    how: str,
) -> None:
    def answer(request: Renewals) -> RenewalReplies:
        if how == "refusal":
            raise NodeGone("gone")
        return renewed(request).model_copy(update={"node_state": NodeState.GONE})

    held = lease()
    async with bench(held) as b:
        b.coordinator.answer = answer
        deadline = time.monotonic() + 60
        while held.may_act() and time.monotonic() < deadline:
            time.sleep(0.001)  # noqa: ASYNC251 - the loop is blocked on purpose
        assert held.ended == Code.NODE_GONE
        assert not b.gone.is_set(), "the loop has had no chance to hear of it"


async def test_an_operators_drain_and_an_unknown_node_are_told() -> None:
    async with bench() as b:
        b.coordinator.answer = lambda request: RenewalReplies(
            node_state=NodeState.DRAINING, replies=()
        )
        await b.draining.wait()

        def unknown(request: Renewals) -> RenewalReplies:
            raise CoordinatorRefused("who", status=404, code=Code.UNKNOWN_NODE)

        b.coordinator.answer = unknown
        await b.unknown.wait()
        await eventually(lambda: not b.condition.usable)


@pytest.mark.requirement("LEASE-08")
async def test_a_lease_of_shorter_terms_is_renewed_by_them() -> None:
    """The heartbeat goes by the policy in force; a lease by the one that it was granted under."""
    async with bench(interval_seconds=3600.0) as b:
        await b.first_round()
        short = lease(renewal_interval_seconds=INTERVAL_SECONDS)
        b.renewer.hold(short)
        await b.rounds(3)
        (last,) = b.coordinator.rounds[-1].leases
        assert last.attempt_id == short.attempt_id


@pytest.mark.requirement("LEASE-08")
async def test_heartbeats_keep_to_the_policy_that_the_last_answer_named() -> None:
    terms = LeaseTerms(
        duration_seconds=1.0,
        renewal_interval_seconds=INTERVAL_SECONDS,
        clock_tolerance_seconds=0.0,
        policy_version=2,
    )
    async with bench(interval_seconds=3600.0) as b:
        await b.first_round()
        b.coordinator.answer = lambda request: renewed(request).model_copy(update={"lease": terms})
        short = lease(renewal_interval_seconds=INTERVAL_SECONDS)
        b.renewer.hold(short)
        await b.rounds(1)
        b.renewer.let_go(short.attempt_id)
        await b.rounds(3)
