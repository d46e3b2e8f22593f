"""What people are told about a task that no node takes."""

from typing import Any

import pytest

from tenure.cli.why import START_ONE, sentence
from tenure.contract.scheduling import Explanation, FilterView, Why


def found(standing: str, nodes: int, away: dict[str, int], **codes: int) -> Why:
    view = FilterView(filter="workload", removed=sum(codes.values()), codes=codes, nearest=None)
    parts: dict[str, Any] = {"standing": standing, "nodes": nodes, "unavailable": away}
    known: dict[str, Any] = {
        "explanation": Explanation.model_construct(**parts, eligible=0, filters=(view,))
    }
    return Why.model_construct(**known)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (
            found("no_node", 0, {}),
            f"there is no node: {START_ONE}",
        ),
        (found("no_node", 2, {"node_silent": 2}), "no node takes work now: 2 node_silent"),
        (found("excluded", 1, {}, no_free_slot=1), "the one node is excluded: 1 no_free_slot"),
        (
            found("excluded", 2, {}, type_not_run=2, location_not_demanded=1),
            f"no node runs the type 'count': {START_ONE}",
        ),
        (
            found("excluded", 2, {"node_silent": 1}, type_not_run=1),
            f"no node that takes work runs the type 'count' (away: 1 node_silent): {START_ONE}",
        ),
        (
            found("excluded", 4, {"node_silent": 1}, no_free_slot=1, type_not_run=2),
            "each of 3 nodes is excluded: 2 type_not_run, 1 no_free_slot",
        ),
    ],
)
def test_what_keeps_nodes_away_is_in_the_sentence(why: Why, said: str) -> None:
    assert sentence(why.explanation, "count") == said
