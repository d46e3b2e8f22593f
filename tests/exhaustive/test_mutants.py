"""Every rule that is taken out of the core is missed by the exploration.

Each mutant is one rule of one function, patched in its source for the time of one test, and has to
break an invariant in the scene that is named. A text that is not found once is an error: a mutant
changes with the rule.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import pytest

from tenure.coordinator.core import (
    attempt,
    decide,
    filters,
    flow,
    guards,
    happenings,
    hold,
    lease,
    limits,
    node,
    outcomes,
    profile_move,
    receipt,
    task,
)
from tests.support.exploration import explore
from tests.support.oracle import Broken
from tests.support.scene_list import SCENES

SCENE = {scene.name: scene for scene in SCENES}


@dataclass(frozen=True)
class Mutant:
    """A rule of ``function`` that is written otherwise."""

    scene: str
    function: Callable[..., Any]
    rule: str
    otherwise: str

    def __str__(self) -> str:
        words = " ".join(self.rule.split())
        return f"{self.function.__module__.rpartition('.')[2]}.{self.function.__name__}: {words}"


KEYS = "a limit for each key"
SLOW, TWO = "a coordinator that is slow", "two decisions in flight"
MUTANTS = (
    Mutant("strangers", guards.find_presented, "task.tenant != command.tenant or ", ""),
    Mutant(
        "strangers",
        guards.find_presented,
        "(attempt.node_id, attempt.incarnation) != (command.node_id, command.incarnation)",
        "attempt.node_id != command.node_id",
    ),
    Mutant(
        "strangers",
        guards.find_presented,
        "attempt.fencing_token != command.fencing_token",
        "False",
    ),
    Mutant("strangers", guards._not_granted_yet, "command.fencing_token >", "0 <="),
    Mutant("cancellations", guards.find_authorized, "attempt.state not in states", "False"),
    Mutant(SLOW, guards.find_authorized, "attempt.expires_at <= now", "False"),
    Mutant(SLOW, guards.find_authorized, "attempt.expires_at <= now", "attempt.expires_at < now"),
    Mutant(SLOW, guards.reads_of, "task_id=task.task_id", "task_id=None"),
    Mutant(SLOW, guards.reads_of, "lease_live=lease_live", "lease_live=False"),
    Mutant("clocks that step back", guards.reads_of, "lease_over=lease_over", "lease_over=False"),
    Mutant("promotions and restores", guards.reads_of, "epoch=snapshot.epoch", "epoch=1"),
    Mutant(SLOW, lease.allocate, " or task.current_attempt_id is not None", ""),
    Mutant(
        "deadlines",
        lease.allocate,
        "task.not_before is not None and task.not_before > now",
        "False",
    ),
    Mutant("deadlines", lease.allocate, "deadline_open=True", "deadline_open=False"),
    Mutant(
        SLOW,
        lease.allocate,
        "replace(unchanged(task), generation=generation",
        "replace(unchanged(task), generation=task.generation",
    ),
    Mutant("nodes", lease.allocate, "node.state is not NodeState.ACTIVE", "False"),
    Mutant(
        "nodes", lease.allocate, "seen_within=policy.node_silence_microseconds", "seen_within=None"
    ),
    Mutant(
        "tenants and policies",
        lease.allocate,
        "None if snapshot.tenant is None else snapshot.tenant.version",
        "None",
    ),
    Mutant(
        "tenants and policies",
        lease.allocate,
        "seen_within=policy.node_silence_microseconds,\n            policy_version=policy.version",
        "seen_within=policy.node_silence_microseconds",
    ),
    Mutant("operators", lease.allocate, "has_rejected(task, node)", "False"),
    Mutant("reviews", lease.allocate, "node.under_review", "False"),
    Mutant("pauses", flow._in_force, "pause.until > now", "False"),
    Mutant("a type that is paused", flow._of_task, "pause.name == task.type", "False"),
    Mutant("a node that is paused", flow._of_node, "pause.name == node.node_id", "False"),
    Mutant(KEYS, lease.allocate, "limits.reached(task, snapshot.tenant, now)", "0"),
    Mutant(KEYS, limits.bucket, "return limit.scope, limit.name, key", "return None"),
    Mutant(KEYS, limits.is_reached, "state.running >= most", "state.running > most"),
    Mutant("starts in a time", limits.is_reached, "state.next_start is not None or", ""),
    Mutant("starts in a time", limits._state, "limit.burst - 1", "limit.burst"),
    Mutant(TWO, lease.renew, "now + attempt.lease", "now + 2 * attempt.lease"),
    Mutant("deadlines", lease.renew, "min(expires_at, task.deadline)", "expires_at"),
    Mutant(SLOW, lease.expire, "attempt.expires_at > now", "False"),
    Mutant(
        SLOW,
        lease.expire,
        "if attempt.state is AttemptState.SUBMITTED",
        "if attempt.state is AttemptState.RUNNING",
    ),
    Mutant(SLOW, lease._end, "End.NOT_TAKEN if", "End.LOST if"),
    Mutant("deadlines", lease._expire_waiting, " or task.deadline > now", ""),
    Mutant("quarantines", lease.revoke, "if not submitted:", "if False:"),
    Mutant("cancellations", attempt.start, "found[0].cancel_requested_at is not None", "False"),
    Mutant("cancellations", attempt.take, "found[0].cancel_requested_at is not None", "False"),
    Mutant("cancellations", attempt.confirm_cancel, "task.cancel_requested_at is None", "False"),
    Mutant("cancellations", attempt.receive_cancel, "task.cancel_requested_at is None", "False"),
    Mutant(SLOW, receipt.deliver, "attempt.state is not AttemptState.RUNNING", "False"),
    Mutant(SLOW, receipt.deliver, "attempt.expires_at <= now", "False"),
    Mutant("deliveries", receipt.deliver, "original is not None", "False"),
    Mutant("three attempts", outcomes.consequence, "failures >= task.max_attempts", "False"),
    Mutant("cancellations", outcomes.consequence, "task.cancel_requested_at is not None", "False"),
    Mutant("deadlines", outcomes.consequence, "if past_deadline", "if False"),
    Mutant(SLOW, outcomes._run_again, "task.losses + weight", "task.losses"),
    Mutant("operators", outcomes.held, "sequence=task.sequence + 1", "sequence=task.sequence"),
    Mutant(SLOW, task.cancel, "task.state in TERMINAL_TASK_STATES", "False"),
    Mutant(
        "submissions",
        task.submit,
        "command.deadline is not None and command.deadline <= now",
        "False",
    ),
    Mutant(
        "effects that nobody can tell",
        hold._task_that_goes_on,
        "task.state in TERMINAL_TASK_STATES",
        "False",
    ),
    Mutant(
        "another profile", profile_move.move_profile, "task.current_attempt_id is not None", "False"
    ),
    Mutant("nodes", node.register, "if previous is not None:", "if False:"),
    Mutant("nodes", node.change_node, "node.state is NodeState.GONE", "False"),
    Mutant("quarantines", node.register, "if snapshot.node_quarantined", "if False"),
    Mutant("reviews", node.close_review, "node.state is NodeState.GONE", "False"),
    Mutant("deliveries", decide.decide, "stored.fingerprint == command.fingerprint and ", ""),
    Mutant("clocks that step back", decide.decide, "max((now, *decided))", "now"),
    Mutant(SLOW, happenings.task_became, "task.sequence + 1", "task.sequence"),
    Mutant(SLOW, happenings.after, "event.sequence + 1", "event.sequence"),
    Mutant("tenants and policies", filters.tenant_authorization, "not tenant.authorized", "False"),
    Mutant(
        "room for one",
        filters.resources,
        "node.slots_used + need.slots > node.slots",
        "False",
    ),
    Mutant("one of a type at once", filters.resources, "left is not None and left < 1", "False"),
    Mutant("room and budget for one", filters.budget, "cost > max(left, 0)", "False"),
)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The function does otherwise, for everybody who has imported it."""
    function = cast("FunctionType", mutant.function)
    source = textwrap.dedent(inspect.getsource(function))
    rule = textwrap.dedent(mutant.rule)
    assert source.count(rule) == 1, f"{mutant}: found {source.count(rule)} times"
    names: dict[str, Any] = dict(function.__globals__)
    exec(compile(source.replace(rule, mutant.otherwise), str(mutant), "exec"), names)
    original = function.__code__
    function.__code__ = names[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = original


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_rule_that_is_written_otherwise_breaks_an_invariant(mutant: Mutant) -> None:
    with applied(mutant), pytest.raises(Broken):
        explore(SCENE[mutant.scene])


def test_a_restored_rule_holds_again() -> None:
    explore(SCENE["deadlines"])
