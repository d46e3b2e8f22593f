"""The seven mandatory filters: every reason is reached, and a missing fact closes."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tenure.contract.ids import IncarnationId, NodeId, TenantId
from tenure.contract.states import AttemptState, Effects, Match, NodeState, TaskState
from tenure.coordinator.core.explanation import Standing, explain
from tenure.coordinator.core.filters import (
    FILTERS,
    Exclusion,
    Filter,
    exclusion,
    exclusions,
    unavailable,
)
from tenure.coordinator.core.rows import (
    ANY,
    NodeFacts,
    Requirements,
    ResourceAmounts,
    RunProfile,
    TaskRow,
    TenantRow,
)
from tests.support.rows import NODE, NOW, POLICY, PROFILE, SECOND, TASK, UNLIMITED

WAITING = replace(TASK, current_attempt_id=None)
SILENCE = POLICY.node_silence_microseconds
A, B = frozenset({"a"}), frozenset({"b"})


def demanding(**requirements: Any) -> TaskRow:
    return replace(WAITING, profile=replace(PROFILE, requirements=Requirements(**requirements)))


def costing(cost_minor: int) -> TaskRow:
    return replace(WAITING, profile=replace(PROFILE, cost_minor=cost_minor))


def facts(**stated: Any) -> dict[str, Any]:
    return {"facts": NodeFacts(**stated)}


AT_ONCE = {"profiles": tuple(replace(run, concurrency=1) for run in NODE.profiles)}
UNGUARDED = (RunProfile("sha256", "bb" * 32, Effects.UNGUARDED),)
EXACT = replace(WAITING, profile=replace(PROFILE, match=Match.EXACT))
BUDGET = replace(UNLIMITED, budget_unlimited=False, budget_minor=10, held_minor=4, spent_minor=3)


def limited(**changes: Any) -> TenantRow:
    return replace(UNLIMITED, **changes)


GPU = demanding(labels=frozenset({("gpu", "a100")}))
T4 = facts(labels=frozenset({("gpu", "t4")}))
Case = tuple[Exclusion | None, TaskRow, dict[str, Any], TenantRow | None]
GROUPS: dict[Filter, list[Case]] = {
    Filter.TENANT_AUTHORIZATION: [
        (Exclusion.TENANT_UNKNOWN, WAITING, {}, None),
        (Exclusion.TENANT_SUSPENDED, WAITING, {}, limited(authorized=False)),
        (Exclusion.OTHER_TENANT, WAITING, {"tenant": TenantId("other")}, UNLIMITED),
        (Exclusion.TENANT_POOLS_NOT_STATED, WAITING, facts(pool="a"), limited(node_pools=None)),
        (Exclusion.NODE_POOL_NOT_STATED, WAITING, {}, limited(node_pools=A)),
        (Exclusion.POOL_NOT_PERMITTED, WAITING, facts(pool="b"), limited(node_pools=A)),
        (None, WAITING, facts(pool="a"), limited(node_pools=A)),
    ],
    Filter.DATA_LOCATION: [
        (
            Exclusion.TENANT_LOCATIONS_NOT_STATED,
            WAITING,
            facts(location="a"),
            limited(locations=None),
        ),
        (Exclusion.NODE_LOCATION_NOT_STATED, WAITING, {}, limited(locations=A)),
        (Exclusion.NODE_LOCATION_NOT_STATED, demanding(locations=A), {}, UNLIMITED),
        (Exclusion.LOCATION_NOT_PERMITTED, WAITING, facts(location="b"), limited(locations=A)),
        (Exclusion.LOCATION_NOT_DEMANDED, demanding(locations=A), facts(location="b"), UNLIMITED),
        (None, demanding(locations=A | B), facts(location="a"), limited(locations=A)),
    ],
    Filter.WORKLOAD_COMPATIBILITY: [
        (Exclusion.PROFILE_UNKNOWN, replace(WAITING, profile=None), {}, UNLIMITED),
        (Exclusion.TYPE_NOT_RUN, WAITING, {"task_types": A}, UNLIMITED),
        (Exclusion.EXECUTABLE_WITHDRAWN, WAITING, {"executable_withdrawn": True}, UNLIMITED),
        (Exclusion.BUILD_DIFFERS, EXACT, {"profiles": UNGUARDED}, UNLIMITED),
        (Exclusion.BUILD_DIFFERS, EXACT, {"profiles": ()}, UNLIMITED),
        (Exclusion.EFFECTS_DIFFER, WAITING, {"profiles": UNGUARDED}, UNLIMITED),
        (Exclusion.EFFECTS_DIFFER, WAITING, {"profiles": ()}, UNLIMITED),
        (None, EXACT, {}, UNLIMITED),
    ],
    Filter.RESOURCES: [
        (Exclusion.LABEL_MISSING, GPU, {}, UNLIMITED),
        (Exclusion.LABEL_MISSING, GPU, T4, UNLIMITED),
        (Exclusion.NO_FREE_SLOT, WAITING, {"slots_used": 2}, UNLIMITED),
        (Exclusion.TYPE_AT_CONCURRENCY, WAITING, AT_ONCE | {"running": {"sha256": 1}}, UNLIMITED),
        (None, WAITING, AT_ONCE | {"running": {"other": 1}}, UNLIMITED),
        (Exclusion.NOT_ENOUGH_CPU, WAITING, {"cpu_used": 901}, UNLIMITED),
        (Exclusion.NOT_ENOUGH_MEMORY, WAITING, {"memory_used": 901}, UNLIMITED),
    ],
    Filter.NETWORK_ACCESS: [
        (Exclusion.TENANT_NETWORKS_NOT_STATED, WAITING, {}, limited(networks=None)),
        (
            Exclusion.NETWORK_NOT_PERMITTED,
            demanding(networks=A | B),
            facts(networks=A | B),
            limited(networks=A),
        ),
        (Exclusion.NODE_NETWORKS_NOT_STATED, demanding(networks=A), {}, UNLIMITED),
        (Exclusion.NETWORK_NOT_REACHED, demanding(networks=A), facts(networks=B), UNLIMITED),
        (None, demanding(networks=A), facts(networks=A | B), limited(networks=A)),
        (None, WAITING, {}, limited(networks=frozenset())),
    ],
    Filter.BUDGET: [
        (Exclusion.BUDGET_NOT_STATED, WAITING, {}, limited(budget_unlimited=False)),
        (Exclusion.BUDGET_EXHAUSTED, costing(4), {}, BUDGET),
        (None, costing(3), {}, BUDGET),
        (None, WAITING, {}, replace(BUDGET, budget_minor=0)),
    ],
    Filter.DEADLINE: [
        (Exclusion.DEADLINE_PASSED, replace(WAITING, deadline=NOW - 1), {}, UNLIMITED),
        (Exclusion.DEADLINE_PASSED, replace(WAITING, deadline=NOW), {}, UNLIMITED),
        (None, replace(WAITING, deadline=NOW + 1), {}, UNLIMITED),
    ],
}
CASES = [(name, *case) for name, group in GROUPS.items() for case in group]


@pytest.mark.requirement("SCHED-01")
@pytest.mark.parametrize(("name", "code", "task", "node", "tenant"), CASES)
def test_a_filter_says_what_is_wrong_and_only_the_filter_it_belongs_to(
    name: Filter,
    code: Exclusion | None,
    task: TaskRow,
    node: dict[str, Any],
    tenant: TenantRow | None,
) -> None:
    found = dict(exclusions(task, replace(NODE, **node), tenant, NOW))
    if code is None:
        assert found == {}
    else:
        assert found[name].code is code
        assert found[name].distance >= 0
        assert found[name].wanted
        assert found[name].found
        if tenant is not None:
            assert set(found) == {name}


def test_every_reason_of_every_filter_is_shown() -> None:
    reached = {code for _, code, *_ in CASES if code is not None}
    before_the_filters = {
        Exclusion.NODE_NOT_ACTIVE,
        Exclusion.NODE_SILENT,
        Exclusion.NODE_UNDER_REVIEW,
        Exclusion.TASK_REJECTED,
        Exclusion.PAUSED,
    }
    assert reached == set(Exclusion) - before_the_filters
    assert [name for name, _ in FILTERS] == list(Filter)


TENANT_SETS = (None, frozenset[str](), A, B, frozenset({ANY}))


@pytest.mark.requirement("SCHED-01")
def test_in_every_small_world_a_node_is_eligible_only_with_every_fact_stated_and_met() -> None:
    """An oracle that is written otherwise: who may pass is listed, instead of who may not."""
    worlds = 0
    for pools, pool in product(TENANT_SETS, (None, "a", "b")):
        passes = pools is not None and (ANY in pools or (pool is not None and pool in pools))
        assert_passes(passes, WAITING, facts(pool=pool), node_pools=pools)
        worlds += 1
    for locations, demanded, location in product(TENANT_SETS, (None, A, A | B), (None, "a", "b")):
        bound = demanded is not None or (locations is not None and ANY not in locations)
        permitted = locations is not None and (ANY in locations or location in locations)
        wanted = demanded is None or location in demanded
        passes = locations is not None and (
            not bound or (location is not None and permitted and wanted)
        )
        assert_passes(
            passes, demanding(locations=demanded), facts(location=location), locations=locations
        )
        worlds += 1
    for networks, needed, reached in product(
        TENANT_SETS, (frozenset[str](), A, A | B), (None, frozenset[str](), A, A | B)
    ):
        passes = networks is not None and all(
            (ANY in networks or one in networks) and reached is not None and one in reached
            for one in needed
        )
        assert_passes(
            passes, demanding(networks=needed), facts(networks=reached), networks=networks
        )
        worlds += 1
    for budget, held, spent, cost in product((None, 0, 3, 4), range(3), range(3), range(4)):
        passes = budget is not None and (cost == 0 or budget >= held + spent + cost)
        assert_passes(
            passes,
            costing(cost),
            {},
            budget_unlimited=False,
            budget_minor=budget,
            held_minor=held,
            spent_minor=spent,
        )
        worlds += 1
    for frozen, runs, match, same in product(Effects, Effects, Match, (True, False)):
        digest = PROFILE.digest if same else "cc" * 32
        passes = (same or match is Match.COMPATIBLE) and (
            runs is not Effects.UNGUARDED or frozen is Effects.UNGUARDED
        )
        task = replace(WAITING, profile=replace(PROFILE, effects=frozen, match=match))
        assert_passes(passes, task, {"profiles": (RunProfile("sha256", digest, runs),)})
        worlds += 1
    assert worlds >= 15 + 45 + 60 + 144 + 64


def assert_passes(passes: bool, task: TaskRow, node: dict[str, Any], **tenant: Any) -> None:
    found = exclusion(task, replace(NODE, **node), replace(UNLIMITED, **tenant), NOW)
    assert (found is None) is passes, (found, node, tenant)


def test_a_node_that_drains_or_is_silent_is_asked_nothing() -> None:
    assert unavailable(NODE, NOW, SILENCE) is None
    for state in (NodeState.DRAINING, NodeState.GONE):
        found = unavailable(replace(NODE, state=state), NOW, SILENCE)
        assert found is not None
        assert found.code is Exclusion.NODE_NOT_ACTIVE
    found = unavailable(replace(NODE, last_seen_at=NOW - SILENCE), NOW, SILENCE)
    assert found is not None
    assert found.code is Exclusion.NODE_SILENT
    found = unavailable(replace(NODE, under_review=True), NOW, SILENCE)
    assert found is not None
    assert found.code is Exclusion.NODE_UNDER_REVIEW


@pytest.mark.requirement("SCHED-02")
def test_an_explanation_counts_every_filter_over_every_node_and_names_the_nearest_miss() -> None:
    task = replace(demanding(networks=A), resources=ResourceAmounts(cpu_millis=500))
    nodes = [
        replace(NODE, node_id=NodeId(name), incarnation=IncarnationId(name), **changes)
        for name, changes in {
            "short": {"cpu_used": 600} | facts(networks=A),
            "shorter": {"cpu_used": 900} | facts(networks=A),
            "both": {"cpu_used": 510} | facts(networks=B),
            "drains": {"state": NodeState.DRAINING},
        }.items()
    ]
    explained = explain(task, None, nodes, UNLIMITED, NOW, SILENCE)
    assert (explained.standing, explained.nodes, explained.eligible) == (Standing.EXCLUDED, 4, 0)
    assert explained.unavailable == {Exclusion.NODE_NOT_ACTIVE: 1}
    verdicts = {verdict.filter: verdict for verdict in explained.verdicts}
    assert list(verdicts) == list(Filter)
    assert {name: verdict.removed for name, verdict in verdicts.items() if verdict.removed} == {
        Filter.RESOURCES: 3,
        Filter.NETWORK_ACCESS: 1,
    }
    assert verdicts[Filter.RESOURCES].codes == {Exclusion.NOT_ENOUGH_CPU: 3}
    nearest = verdicts[Filter.RESOURCES].nearest
    assert nearest is not None
    assert (nearest.node_id, nearest.others, nearest.excluded.distance) == ("short", (), 100)
    network = verdicts[Filter.NETWORK_ACCESS].nearest
    assert network is not None
    assert (network.node_id, network.others) == ("both", (Filter.RESOURCES,))


@pytest.mark.parametrize(
    ("change", "attempt", "nodes", "standing"),
    [
        ({"state": TaskState.HELD}, None, 1, Standing.HELD),
        ({"state": TaskState.DELIVERED}, AttemptState.DELIVERED, 1, Standing.ENDED),
        ({}, AttemptState.RUNNING, 1, Standing.WITH_A_NODE),
        ({"deadline": NOW}, None, 1, Standing.DEADLINE_PASSED),
        ({"not_before": NOW + SECOND}, None, 1, Standing.NOT_BEFORE),
        ({}, None, 0, Standing.NO_NODE),
        ({"type": "other"}, None, 1, Standing.EXCLUDED),
        ({}, None, 1, Standing.QUEUED),
    ],
)
def test_the_standing_of_a_task_is_one_word(
    change: dict[str, Any], attempt: AttemptState | None, nodes: int, standing: Standing
) -> None:
    task = replace(WAITING, **change)
    assert explain(task, attempt, [NODE] * nodes, UNLIMITED, NOW, SILENCE).standing is standing
