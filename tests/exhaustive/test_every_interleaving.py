"""No interleaving of a small world breaks an invariant: the real decisions, all of them.

See ``tests.support.exploration``. How much is explored is printed, and may not become less: the
least is in ``floor.json``, and ``make explore ARGS=--floor`` writes it anew.
"""

import ast
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from tenure.contract.codes import Code
from tenure.contract.states import ATTEMPT_MOVES
from tenure.coordinator import core
from tenure.coordinator.core.commands import AnyCommand
from tests.support.exploration import Findings, explore
from tests.support.scene_list import SCENES
from tests.support.scenes import Scene

FLOOR = Path(__file__).with_name("floor.json")


@cache
def found(scene: Scene) -> Findings:
    """What one scene has shown; explored once."""
    return explore(scene)


def everything() -> Findings:
    """What all scenes have shown."""
    total = Findings()
    for scene in SCENES:
        total.add(found(scene))
    return total


@pytest.mark.requirement("STATE-01")
@pytest.mark.requirement("STATE-02")
@pytest.mark.requirement("STATE-04")
@pytest.mark.requirement("STATE-05")
@pytest.mark.requirement("STATE-06")
@pytest.mark.requirement("LEASE-01")
@pytest.mark.requirement("LEASE-02")
@pytest.mark.requirement("LEASE-03")
@pytest.mark.requirement("LEASE-04")
@pytest.mark.requirement("LEASE-05")
@pytest.mark.requirement("LEASE-06")
@pytest.mark.requirement("LEASE-07")
@pytest.mark.requirement("LATE-01")
@pytest.mark.requirement("LATE-02")
@pytest.mark.requirement("LATE-04")
@pytest.mark.requirement("EVENT-02")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_no_interleaving_breaks_an_invariant(scene: Scene) -> None:
    found(scene)


@pytest.mark.timeout(600)
def test_as_much_is_explored_as_ever(record_property: Callable[[str, object], None]) -> None:
    floor = json.loads(FLOOR.read_text())
    now = {
        scene.name: {"situations": found(scene).situations, "decisions": found(scene).decisions}
        for scene in SCENES
    }
    total = everything()
    record_property(
        "told",
        f"explored: {total.situations:,} situations, {total.decisions:,} decisions,"
        f" {total.commits:,} commits in {len(SCENES)} scenes",
    )
    assert now.keys() >= floor.keys()
    less = {
        name: (least, now[name])
        for name, least in floor.items()
        if any(now[name][what] < number for what, number in least.items())
    }
    assert less == {}


@pytest.mark.timeout(600)
def test_every_kind_of_command_is_accepted_somewhere() -> None:
    assert set(everything().accepted) == {kind.__name__ for kind in get_args(AnyCommand)}


@pytest.mark.timeout(600)
def test_every_permitted_move_is_made_and_no_other() -> None:
    made = {(before, after) for kind, before, after in everything().moves if kind == "attempt"}
    permitted = {
        (before.value, after.value)
        for before, following in ATTEMPT_MOVES.items()
        for after in following
    }
    assert made == permitted | {("", "submitted")}


@pytest.mark.timeout(600)
def test_every_refusal_of_the_core_is_reached() -> None:
    total = everything()
    reached = {code for _, code in total.refused} | {*map(Code, total.evidence)}
    assert codes_in_core() - reached == set()


def codes_in_core() -> set[Code]:
    """Every code that a module of the core names."""
    modules = [path for folder in core.__path__ for path in Path(folder).glob("*.py")]
    return {
        Code[node.attr]
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Code"
    }
