"""The scenes that are explored."""

from typing import Final

from tenure.contract.states import Effects, LimitScope, PauseScope
from tenure.coordinator.core.rows import LimitRow
from tests.support.scenes import CONTENTS, LABEL, REPORTS, TICK, TYPE, Scene

SCENES: Final = (
    Scene(
        "three attempts",
        ("allocate", "take", "deliver", "fail", "expire", "cancel", "confirm"),
        in_flight=0,
    ),
    Scene(
        "a coordinator that is slow",
        ("allocate", "take", "deliver", "fail", "expire", "cancel"),
        attempts=2,
    ),
    Scene(
        "two decisions in flight",
        ("allocate", "take", "deliver", "renew", "expire", "cancel"),
        attempts=1,
        in_flight=2,
    ),
    Scene(
        "deliveries",
        (
            "allocate", "take", "deliver", "deliver again", "deliver other", "deliver changed",
            "expire",
        ),
        attempts=2,
        in_flight=0,
    ),
    Scene(
        "cancellations",
        (
            "allocate", "accept", "start", "take", "cancel", "receive", "confirm", "fail",
            "fail for good", "hand back", "expire", "deliver", "renew", "revoke",
        ),
        attempts=1,
        nodes=("a",),
    ),
    Scene(
        "strangers",
        ("allocate", "accept", "take", "deliver", "fail", "renew", "expire"),
        attempts=2,
        in_flight=0,
        strangers=True,
    ),
    Scene(
        "operators",
        (
            "allocate", "take", "reject", "reject draining", "fail", "expire", "hold", "try again",
            "hold rejected",
        ),
        attempts=2,
        in_flight=0,
        max_attempts=3,
    ),
    Scene(
        "effects that nobody can tell",
        ("allocate", "take", "hand back", "fail for good", "expire", "hold", "revoke"),
        attempts=2,
        in_flight=0,
        effects=Effects.UNGUARDED,
    ),
    Scene(
        "another profile",
        ("allocate", "take", "hand back", "expire", "move profile"),
        attempts=2,
        nodes=("a",),
    ),
    Scene(
        "deadlines",
        ("allocate", "take", "deliver", "fail", "expire", "renew"),
        attempts=2,
        nodes=("a",),
        deadline_ticks=3,
        not_before_ticks=1,
    ),
    Scene(
        "clocks that step back",
        ("allocate", "take", "deliver", "expire", "renew", "cancel"),
        attempts=1,
        nodes=("a",),
        clock_steps_back=True,
    ),
    Scene(
        "nodes",
        ("allocate", "take", "reject", "nodes"),
        attempts=1,
        nodes=("a",),
        starts=2,
        silences=True,
    ),
    Scene(
        "quarantines",
        ("allocate", "accept", "revoke", "quarantine", "nodes"),
        attempts=1,
        nodes=("a",),
        starts=2,
        in_flight=0,
    ),
    Scene(
        "reviews",
        ("allocate", "review", "register"),
        attempts=1,
        nodes=("a",),
        starts=2,
        silences=True,
    ),
    Scene(
        "tenants and policies",
        ("allocate", "take", "fail", "hold rejected", "reject"),
        attempts=2,
        nodes=("a",),
        suspensions=3,
        policies=2,
    ),
    Scene(
        "pauses",
        ("allocate", "take", "fail", "expire"),
        attempts=2,
        nodes=("a",),
        pauses=2,
    ),
    Scene(
        "a type that is paused",
        ("allocate", "take", "fail"),
        attempts=1,
        nodes=("a",),
        pauses=2,
        paused=(PauseScope.TYPE, TYPE),
    ),
    Scene(
        "a node that is paused",
        ("allocate", "take", "fail"),
        attempts=2,
        pauses=2,
        paused=(PauseScope.NODE, "a"),
    ),
    Scene(
        "a label that is paused",
        ("allocate", "take", "fail"),
        attempts=2,
        pauses=2,
        paused=(PauseScope.LABEL, "=".join(LABEL)),
        labelled=("a",),
    ),
    Scene(
        "a limit for each key",
        ("allocate", "reject"),
        tasks=3,
        slots=3,
        nodes=("a",),
        attempts=3,
        keys=("x", "x", "y"),
        limits=(
            LimitRow(LimitScope.EACH_KEY, TYPE, max_running=1),
            LimitRow(LimitScope.TENANT, "", max_running=2),
        ),
    ),
    Scene(
        "a limit that comes and goes",
        ("allocate", "take", "fail"),
        tasks=2,
        slots=2,
        nodes=("a",),
        attempts=2,
        limits=(LimitRow(LimitScope.TYPE, TYPE, max_running=1),),
        limited_later=True,
    ),
    Scene(
        "one of a type at once",
        ("allocate", "reject", "expire"),
        tasks=2,
        slots=2,
        nodes=("a",),
        attempts=3,
        concurrency=1,
    ),
    Scene(
        "starts in a time",
        ("allocate", "reject", "expire"),
        tasks=2,
        slots=2,
        nodes=("a",),
        attempts=3,
        limits=(LimitRow(LimitScope.TYPE, TYPE, interval=2 * TICK),),
    ),
    Scene(
        "promotions and restores",
        ("allocate", "take", "deliver", "expire"),
        promotions=1,
        restores=1,
        nodes=("a",),
    ),
    Scene(
        "room and budget for one",
        ("allocate", "take", "deliver", "fail"),
        tasks=2,
        nodes=("a",),
        attempts=2,
        cost_minor=3,
        budget_minor=5,
    ),
    Scene(
        "room for one",
        ("allocate", "take", "deliver"),
        tasks=2,
        nodes=("a",),
        attempts=2,
        in_flight=0,
    ),
    Scene("submissions", ("cancel",), submitted=False, nodes=("a",)),
)  # fmt: skip
"""Explored with every run of the tests."""

LONG_SCENES: Final = (
    Scene("three attempts and a slow coordinator", SCENES[0].asked),
    Scene("three decisions in flight", SCENES[2].asked, attempts=2, in_flight=3),
    Scene(
        "everything about one attempt",
        (*REPORTS, *CONTENTS, "allocate", "expire", "cancel", "hold", "try again", "hold rejected"),
        attempts=1,
        nodes=("a",),
    ),
)
"""Explored by ``make explore``, in some minutes."""
