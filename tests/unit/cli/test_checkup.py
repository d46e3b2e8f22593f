"""What `tenure doctor` makes of facts: each fault has a verdict, and a way out."""

from dataclasses import replace

import pytest
from pydantic import SecretStr

from tenure.cli.checkup import (
    DISK_FAIL_BYTES,
    DISK_WARN_BYTES,
    Finding,
    Verdict,
    judge_broker,
    judge_database,
    judge_disk,
    judge_downstream,
    judge_left_undone,
    judge_tokens,
    worst,
)
from tenure.contract.errors import TenureError
from tenure.coordinator.broker_inspection import BrokerFacts
from tenure.coordinator.config import TokenEntry
from tenure.coordinator.identities import Role
from tenure.coordinator.store.inspection import Clock, DatabaseFacts, LeftUndone, Pooling
from tenure.executor.guards.sql_inspection import DownstreamFacts

LIMITS = {"lock_timeout": 750, "statement_timeout": 1500, "transaction_timeout": 2000}
GOOD = DatabaseFacts(
    server_version="18.1",
    user_name="tenure_coordinator",
    superuser=False,
    owner=False,
    pooling=Pooling.NONE,
    schema_fault=None,
    lacking=(),
    writable=(),
    limits=LIMITS,
    free_connections=90,
    clock=Clock(0.01, 0.001),
    authority_confirmed=True,
)


def database(facts: DatabaseFacts, **given: object) -> dict[str, Finding]:
    told: dict[str, object] = {
        "pooled": False,
        "verified": True,
        "connections": 15,
        "tolerance_seconds": 1.0,
    }
    found = judge_database(facts, "coordinator", **(told | given))  # type: ignore[arg-type]  # see told
    return {one.check: one for one in found}


def test_good_facts_are_ok_and_ask_for_nothing() -> None:
    found = database(GOOD)
    assert {one.verdict for one in found.values()} == {Verdict.OK}
    assert {one.next_step for one in found.values()} == {""}
    assert set(found) == {
        "database", "migrations", "rights", "limits", "pooler", "connections", "clock",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told", "check", "verdict", "says"),
    [
        ({}, {"verified": False}, "database", "warn", "certificate is not verified"),
        (
            {"schema_fault": TenureError("lacks 0001", next_step="migrate", code="not_migrated")},
            {}, "migrations", "fail", "not_migrated: lacks 0001",
        ),
        ({"authority_confirmed": False}, {}, "authority", "fail", "not the one"),
        ({"superuser": True}, {}, "rights", "fail", "is a superuser"),
        ({"owner": True}, {}, "rights", "fail", "owns the schema"),
        ({"writable": ("tasks",)}, {}, "rights", "fail", "may change tables by itself: tasks"),
        ({"lacking": ("commit_batch",)}, {}, "rights", "fail", "may not use commit_batch"),
        (
            {"limits": LIMITS | {"transaction_timeout": 0}},
            {}, "limits", "fail", "has no transaction_timeout",
        ),
        ({"limits": LIMITS | {"lock_timeout": 5000}}, {}, "limits", "warn", "does not hold"),
        ({"pooling": Pooling.TRANSACTION}, {}, "pooler", "fail", "TENURE_POOLED is not set"),
        ({"pooling": Pooling.SESSION}, {}, "pooler", "warn", "not seen to be"),
        ({}, {"pooled": True}, "pooler", "warn", "none was seen"),
        ({"pooling": Pooling.TRANSACTION}, {"pooled": True}, "pooler", "ok", "as set"),
        ({"free_connections": 3}, {}, "connections", "warn", "room for 3 more"),
        ({"clock": Clock(-1.5, 0.1)}, {}, "clock", "warn", "1.500 s behind"),
        ({"clock": Clock(1.5, 0.6)}, {}, "clock", "ok", "ahead of"),
        ({"clock": Clock(3600, 0.1)}, {}, "clock", "fail", "ahead of"),
    ],
)  # fmt: skip
def test_a_fault_of_the_database_is_said_with_a_way_out(
    changes: dict[str, object], told: dict[str, object], check: str, verdict: str, says: str
) -> None:
    found = database(replace(GOOD, **changes), **told)  # type: ignore[arg-type]  # field by field
    assert found[check].verdict == verdict
    assert says in found[check].says
    assert bool(found[check].next_step) == (verdict != "ok")
    others = {name: one.verdict for name, one in found.items() if name != check}
    assert set(others.values()) <= {Verdict.OK}


def test_the_administrator_of_the_local_stack_is_no_fault() -> None:
    facts = replace(GOOD, superuser=True, limits={"transaction_timeout": 0})
    assert database(facts, administrator=True)["rights"].verdict is Verdict.OK


def test_faults_of_the_broker_are_said() -> None:
    good = BrokerFacts("RabbitMQ 4", exchange_exists=True, dead_letters_exist=True, refused=())
    assert worst(list(judge_broker(good, "tenure"))) is Verdict.OK
    refused = list(judge_broker(replace(good, refused=("declare a queue: no",)), "shop"))
    assert worst(refused) is Verdict.FAIL
    assert "with the prefix shop" in refused[1].says
    assert worst(list(judge_broker(replace(good, exchange_exists=False), "x"))) is Verdict.WARN


def entry(name: str, role: Role, token: str = "t" * 64) -> TokenEntry:
    return TokenEntry(name=name, token=SecretStr(token), tenant="default", role=role)


def test_faults_of_the_tokens_are_said_and_no_token_is_shown() -> None:
    both = [entry("shop", Role.APPLICATION), entry("fleet", Role.EXECUTOR)]
    assert worst(list(judge_tokens(both))) is Verdict.OK
    (one,) = judge_tokens(both[:1])
    assert "nobody has the role executor" in one.says
    (one,) = judge_tokens([*both, entry("late", Role.OPERATOR, "short-but-allowed")])
    assert one.verdict is Verdict.WARN
    assert "late" in one.says
    assert "short-but-allowed" not in str(one)


def test_a_disk_that_fills_up_is_said() -> None:
    assert judge_disk("d", DISK_WARN_BYTES).verdict is Verdict.OK
    assert judge_disk("d", DISK_WARN_BYTES - 1).verdict is Verdict.WARN
    assert judge_disk("d", DISK_FAIL_BYTES - 1).verdict is Verdict.FAIL


DOWNSTREAM = DownstreamFacts(
    name="ledger",
    server_version="18.1",
    version_number=180_001,
    user_name="bookkeeper",
    lacking=(),
    writable=(),
    ahead_seconds=0.0,
    uncertainty_seconds=0.01,
)


@pytest.mark.parametrize(
    ("changes", "check", "verdict", "says"),
    [
        ({}, "downstream ledger", "ok", "guarded"),
        ({"lacking": ("tenure_guard",)}, "downstream ledger", "fail", "no use of tenure_guard"),
        ({"writable": ("tenure_fence",)}, "downstream ledger", "warn", "by itself"),
        ({"version_number": 150_000}, "downstream ledger", "ok", "from 17 on"),
        ({"ahead_seconds": 5.0}, "downstream ledger clock", "ok", "0.000 s behind the authority's"),
        ({"ahead_seconds": 3.0}, "downstream ledger clock", "fail", "2.000 s behind"),
        ({"ahead_seconds": 6.05}, "downstream ledger clock", "ok", "ahead of"),
        ({"ahead_seconds": 7.0}, "downstream ledger clock", "fail", "ahead of"),
    ],
)
def test_a_downstream_is_compared_with_the_clock_that_leases_end_by(
    changes: dict[str, object], check: str, verdict: str, says: str
) -> None:
    """Both are read against this machine's, which may be wrong itself."""
    facts = replace(DOWNSTREAM, **changes)  # type: ignore[arg-type]  # see above
    authority = Clock(facts.ahead_seconds if not changes else 5.0, 0.1)
    found = {one.check: one for one in judge_downstream(facts, authority, 1.0)}
    assert found[check].verdict == verdict
    assert says in found[check].says
    assert bool(found[check].next_step) is (verdict != "ok")


def test_without_the_authoritys_clock_a_downstream_is_compared_with_this_machine() -> None:
    _, clock = judge_downstream(replace(DOWNSTREAM, ahead_seconds=-2.0), None, 1.0)
    assert clock.verdict == "fail"
    assert "2.000 s behind this machine's" in clock.says


@pytest.mark.parametrize(
    ("left", "check", "says", "step"),
    [
        (LeftUndone(3, {}, {}, {}), "parked messages", "3 could not be published", "tenure outbox"),
        (
            LeftUndone(0, {"queue_missing": 2, "operator": 1}, {}, {}),
            "replays", "cannot go on: 2 by queue_missing", "--state paused",
        ),
        (LeftUndone(0, {"operator": 1}, {}, {}), "replays", "1 paused by an operator", "resume"),
        (
            LeftUndone(0, {}, {"tasks": 7200.5, "log": 3000.0}, {}),
            "retention", "still there: tasks for 2 h", "tenure retention plan",
        ),
        (
            LeftUndone(0, {}, {}, {"resize": 2, "count": 1}),
            "waiting tasks", "1 of type count, 2 of type resize", "tenure executor MODULE:NAME",
        ),
    ],
)  # fmt: skip
def test_what_waits_for_a_person_is_said_with_what_to_do(
    left: LeftUndone, check: str, says: str, step: str
) -> None:
    (found,) = judge_left_undone(left)
    assert (found.check, found.verdict) == (check, Verdict.WARN)
    assert says in found.says
    assert step in found.next_step


def test_what_fell_due_just_now_is_no_fault() -> None:
    (found,) = judge_left_undone(LeftUndone(0, {}, {"tasks": 90.0}, {}))
    assert found.verdict is Verdict.OK
