"""What a pause keeps from beginning, and what it does not concern."""

from dataclasses import replace
from typing import Any

import pytest

from tenure.contract.ids import IncarnationId, NodeId, TenantId
from tenure.contract.states import AttemptState, PauseScope
from tenure.coordinator.core.explanation import Standing, explain
from tenure.coordinator.core.filters import Exclusion, exclusion
from tenure.coordinator.core.flow import over_since
from tenure.coordinator.core.ranking import Kind, plan, rooms
from tenure.coordinator.core.rows import ANY, NodeFacts, PauseRow
from tests.support.rows import NODE, NOW, POLICY, PROFILE, SECOND, TASK, TENANT, UNLIMITED

WAITING = replace(TASK, current_attempt_id=None)
LABELLED = replace(NODE, facts=NodeFacts(labels=frozenset({("gpu", "a100"), ("disk", "ssd")})))
OTHER = replace(NODE, node_id=NodeId("other"), incarnation=IncarnationId("other"))


def pause(scope: PauseScope, name: str = "", *, until: int | None = None) -> PauseRow:
    tenant = ANY if scope is PauseScope.ALL else TENANT
    return PauseRow(scope, tenant, name, until, "the store is full", "ops", NOW - SECOND)


CONCERNED = [
    pause(PauseScope.ALL),
    pause(PauseScope.TENANT),
    pause(PauseScope.TYPE, "sha256"),
    pause(PauseScope.NODE, "node"),
    pause(PauseScope.LABEL, "gpu=a100"),
]
OTHERS = [
    pause(PauseScope.TYPE, "sha512"),
    pause(PauseScope.NODE, "other"),
    pause(PauseScope.LABEL, "gpu=t4"),
    pause(PauseScope.LABEL, "disk=hdd"),
]


def excluded(*pauses: PauseRow, now: int = NOW) -> bool:
    found = exclusion(WAITING, LABELLED, replace(UNLIMITED, pauses=pauses), now)
    assert found is None or found.code is Exclusion.PAUSED
    return found is not None


@pytest.mark.requirement("FLOW-01")
@pytest.mark.parametrize("one", CONCERNED, ids=lambda one: one.scope.value)
def test_what_is_paused_begins_nothing_until_the_pause_is_over(one: PauseRow) -> None:
    assert excluded(*OTHERS, one)
    bounded = replace(one, until=NOW + 1)
    assert excluded(*OTHERS, bounded)
    assert not excluded(*OTHERS, bounded, now=NOW + 1)


@pytest.mark.requirement("FLOW-01")
def test_other_types_nodes_and_labels_go_on() -> None:
    assert not excluded(*OTHERS)


def test_an_allocation_relies_on_the_latest_end_that_has_passed_and_concerns_it() -> None:
    def relied_on(*pauses: PauseRow) -> int | None:
        return over_since(WAITING, LABELLED, replace(UNLIMITED, pauses=pauses), NOW)

    assert relied_on() is None
    early, late = (replace(CONCERNED[0], until=NOW - age) for age in (2, 1))
    assert relied_on(early, late) == NOW - 1
    assert relied_on(*(replace(one, until=NOW) for one in OTHERS)) is None
    for one in CONCERNED:
        assert relied_on(replace(one, until=NOW)) == NOW
        assert relied_on(replace(one, until=NOW + 1)) is None


@pytest.mark.requirement("FLOW-01")
def test_nothing_is_looked_for_under_a_pause_and_nobody_else_waits_for_it() -> None:
    sibling = replace(PROFILE, type="sha512", digest="dd" * 32)
    kinds = [Kind(TENANT, PROFILE), Kind(TENANT, sibling)]
    node = replace(
        NODE,
        task_types=frozenset({"sha256", "sha512"}),
        profiles=tuple(replace(NODE.profiles[0], type=kind.profile.type) for kind in kinds),
    )
    paused = {TENANT: replace(UNLIMITED, pauses=(pause(PauseScope.TYPE, "sha256"),))}
    found = rooms(kinds, [node], paused, NOW)
    assert [room.profile_digest for room in found] == [sibling.digest]
    tasks = [WAITING, replace(WAITING, type="sha512", profile=sibling)]
    (placed,) = plan(tasks, [node], paused, {}, NOW, 10)
    assert placed.task_id == tasks[1].task_id
    nodes = {TENANT: replace(UNLIMITED, pauses=(pause(PauseScope.NODE, "node"),))}
    assert [p.incarnation for p in plan([WAITING], [NODE, OTHER], nodes, {}, NOW, 9)] == ["other"]


@pytest.mark.requirement("FLOW-01")
def test_an_explanation_names_the_pauses_and_the_nodes_that_they_keep_away() -> None:
    def explained(*pauses: PauseRow, attempt: AttemptState | None = None) -> Any:
        tenant = replace(UNLIMITED, pauses=pauses)
        return explain(
            WAITING, attempt, [NODE, OTHER], tenant, NOW, POLICY.node_silence_microseconds
        )

    of_type, of_node = pause(PauseScope.TYPE, "sha256"), pause(PauseScope.NODE, "other")
    both = explained(of_type, of_node)
    assert (both.standing, both.pauses) == (Standing.PAUSED, (of_type, of_node))
    assert both.unavailable == {Exclusion.PAUSED: 1}
    assert both.eligible == 1  # what the filters say is told all the same
    assert explained(of_type, attempt=AttemptState.RUNNING).standing is Standing.WITH_A_NODE
    one = explained(of_node)
    assert (one.standing, one.eligible) == (Standing.QUEUED, 1)
    assert explained(of_node, pause(PauseScope.NODE, "node")).standing is Standing.NO_NODE


def test_a_tenant_of_which_nothing_is_stated_has_no_pauses() -> None:
    stranger = replace(WAITING, tenant=TenantId("stranger"))
    found = exclusion(stranger, NODE, None, NOW)
    assert found is not None
    assert found.code is Exclusion.TENANT_UNKNOWN
