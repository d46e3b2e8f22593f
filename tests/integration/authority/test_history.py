"""What proves that the database has lost history, what follows, and how an operator ends it."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import GENERATION_LIMIT, FencingToken, TaskId
from tenure.coordinator.core.commands import Take
from tests.support.authority import Bench, Held, replica
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


def token(epoch: int, generation: int) -> FencingToken:
    return FencingToken(epoch * GENERATION_LIMIT + generation)


async def period(owner: asyncpg.Connection) -> int:
    """The ten minutes that it is now."""
    value: int = await owner.fetchval("select tenure.epoch_period(clock_timestamp())")
    return value


async def renewed_with(bench: Bench, held: Held, presented: FencingToken) -> str | None:
    command = bench.command(Take, held, fencing_token=presented)
    (outcome,) = await bench.authority.report([command])
    return None if outcome.refused is None else outcome.refused.code


async def code_of_submitting(bench: Bench) -> str | None:
    (outcome,) = await bench.authority.submit([bench.submission()])
    return None if outcome.refused is None else outcome.refused.code


@pytest.mark.requirement("LEASE-04")
@pytest.mark.parametrize(("epoch", "generation"), [(1, 2), (2, 1)])
async def test_a_token_above_the_granted_ones_stops_every_grant(
    bench: Bench, database: FreshDatabase, epoch: int, generation: int
) -> None:
    await bench.register()
    held = await bench.running()
    other = await bench.submit()
    assert await renewed_with(bench, held, token(epoch, generation)) == Code.AUTHORITY_HISTORY_LOST
    # For everybody, and every replica that starts later: nothing is applied.
    before = await bench.everything()
    await bench.scheduler.step()
    assert await bench.holder(other) is None
    assert await code_of_submitting(bench) == Code.AUTHORITY_HISTORY_LOST
    delivered = await bench.deliver(held)
    assert delivered.refused is not None
    assert delivered.refused.code == Code.AUTHORITY_HISTORY_LOST
    async with replica(database) as later:
        assert await code_of_submitting(later) == Code.AUTHORITY_HISTORY_LOST
    assert await bench.everything() == before


@pytest.mark.requirement("LEASE-04")
async def test_a_token_of_a_later_epoch_proves_it_for_a_task_that_is_gone(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    unknown = Held(
        TaskId(str(uuid4())), held.attempt_id, held.node_id, held.incarnation, held.fencing_token
    )
    assert await renewed_with(bench, unknown, held.fencing_token) == Code.UNKNOWN_ATTEMPT
    assert await code_of_submitting(bench) is None
    assert await renewed_with(bench, unknown, token(2, 1)) == Code.AUTHORITY_HISTORY_LOST


async def test_a_token_that_nobody_can_have_granted_by_now_stops_nothing(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    assert await renewed_with(bench, held, token(2**21 - 1, 1)) == Code.STALE_TOKEN
    assert await code_of_submitting(bench) is None


async def test_a_token_for_a_task_of_another_tenant_stops_nothing(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    command = bench.command(Take, held, fencing_token=token(1, 9), tenant="other")
    (outcome,) = await bench.authority.report([command])
    assert outcome.refused is not None
    assert outcome.refused.code == Code.UNKNOWN_ATTEMPT
    assert await code_of_submitting(bench) is None


@pytest.mark.requirement("LEASE-04")
async def test_what_is_presented_after_the_proof_counts_for_the_recovery(bench: Bench) -> None:
    await bench.register()
    held = await bench.running()
    assert await renewed_with(bench, held, token(1, 2)) == Code.AUTHORITY_HISTORY_LOST
    ahead = await period(bench.owner) + 1000
    assert await renewed_with(bench, held, token(ahead, 1)) == Code.AUTHORITY_HISTORY_LOST
    seen = await bench.owner.fetchval("select highest_epoch_seen from tenure.authority")
    assert seen == ahead
    # As high as only the time of a later period is: until then somebody else may open the next one.
    assert await bench.owner.fetchval(
        "select epoch is null and wait_seconds > 999 * 600"
        " from tenure.recover_authority('ops', 'a test', null)"
    )


async def presented(api: Fleet, **evidence: Any) -> int:
    reply = await api.application.post("/v1/authority/evidence", evidence)
    assert reply.status_code == 200, reply.text
    return int(reply.json()["proven"])


@pytest.mark.requirement("LEASE-04")
async def test_consumers_and_fences_present_what_they_have_seen(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    await api.deliver(incarnation, task_id)
    view = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    seen = {"task_id": task_id, "fencing_token": view["attempt_list"][0]["fencing_token"]}
    position = {"entity_type": "task", "entity_id": task_id, "epoch": 1, "sequence": 2}
    unknown = position | {"entity_id": str(uuid4()), "sequence": 7}
    assert await presented(api, tokens=[seen], positions=[position, unknown]) == 0
    assert await presented(api, positions=[position | {"sequence": 3}]) == 1

    async def not_ready() -> bool:
        reply = await api.nobody.get("/readyz")
        return reply.status_code == 503 and Code.AUTHORITY_HISTORY_LOST in reply.text

    await until(not_ready)
    refused = await api.application.post("/v1/tasks", {"type": "sha256"})
    assert (refused.status_code, refused.json()["code"]) == (503, Code.AUTHORITY_HISTORY_LOST)
    # What is recorded can be read all the same.
    assert (await api.reader.get(f"/v1/tasks/{task_id}")).json() == view
    metrics = (await api.nobody.get("/metrics")).text
    assert "tenure_authority_history_lost 1.0" in metrics
    assert "tenure_authority_epoch 0.0" in metrics


@pytest.mark.requirement("LEASE-04")
async def test_an_operator_recovers_under_an_epoch_above_all_that_was_seen(
    api: Fleet, database: FreshDatabase
) -> None:
    owner = await asyncpg.connect(database.owner_url)
    ahead = await period(owner) + 1000
    await owner.close()
    incarnation = await api.register()
    task_id = await api.submit()
    await api.assigned(incarnation, task_id)
    nothing = await api.operator.post("/v1/authority/recover", {"reason": "none"})
    assert (nothing.status_code, nothing.json()["code"]) == (409, Code.NOTHING_TO_RECOVER)
    assert await presented(api, tokens=[{"task_id": task_id, "fencing_token": token(ahead, 5)}])
    early = await api.operator.post("/v1/authority/recover", {"reason": "restored"})
    assert (early.status_code, early.json()["code"]) == (409, Code.RECOVERY_TOO_EARLY)
    assert int(early.headers["retry-after"]) > 0
    forbidden = await api.application.post("/v1/authority/recover", {"reason": "restored"})
    assert forbidden.status_code == 403
    recovery = {"reason": "restored", "above_epoch": ahead}
    recovered = await api.operator.post("/v1/authority/recover", recovery)
    assert recovered.json() == {"epoch": ahead + 1}
    view = (await api.reader.get("/v1/authority")).json()
    assert (view["state"], view["stored_epoch"]) == ("confirmed", ahead + 1)
    assert view["lost_proof"] is None
    assert [(one["epoch"], one["cause"], one["opened_by"]) for one in view["epochs"]] == [
        (ahead + 1, "recovery", "ops"),
        (1, "initial", "migration"),
    ]

    async def granted() -> Any:
        reply = await api.application.post("/v1/tasks", {"type": "sha256"})
        return reply.json()["task_id"] if reply.status_code == 201 else None

    later = await api.assigned(incarnation, await until(granted))
    assert later["fencing_token"] == token(ahead + 1, 1)


async def epoch_to_recover(owner: asyncpg.Connection, *arguments: object) -> tuple[Any, Any]:
    (row,) = await owner.fetch(
        "select * from tenure.epoch_to_recover($1, $2, $3,"
        " '2026-01-01 00:00+00'::timestamptz + $4::integer * interval '1 minute',"
        " '2026-01-01 00:00+00'::timestamptz + $5::integer * interval '1 minute')",
        *arguments,
    )
    return row["epoch"], row["wait_seconds"]


@pytest.mark.requirement("LEASE-04")
async def test_no_two_recoveries_one_after_the_other_open_the_same_epoch(
    database: FreshDatabase,
) -> None:
    """Of one backup, at every pair of minutes of an hour, the second server started after the first
    recovery: none knows of the other."""
    owner = await asyncpg.connect(database.owner_url)
    try:
        for stored in (1, 7):
            opened: list[int] = []
            for started in range(60, 120):
                # It may have to wait, and so does the person.
                epoch, wait = await epoch_to_recover(owner, stored, stored, None, started, started)
                assert (epoch is None) == (wait is not None)
                now = started + -(-(wait or 0) // 60)
                epoch, _ = await epoch_to_recover(owner, stored, stored, None, started, now)
                assert epoch > stored
                opened.append(epoch)
                # Another one that starts once this one is open:
                after, wait = await epoch_to_recover(owner, stored, stored, None, now, now)
                assert wait
                after, _ = await epoch_to_recover(
                    owner, stored, stored, None, now, now + -(-wait // 60)
                )
                assert after > epoch
            assert opened == sorted(opened)
        assert await epoch_to_recover(owner, 5, 9, None, 0, 0) == (None, 9 * 600)
        assert await epoch_to_recover(owner, 5, 9, 30, 0, 0) == (31, None)
    finally:
        await owner.close()


@pytest.mark.requirement("LEASE-04")
async def test_a_promotion_opens_the_next_epoch_or_waits_as_the_policy_says(
    bench: Bench,
) -> None:
    """The server stays what it is; the stored timeline is put back, as a promotion finds it."""
    await bench.register()
    held = await bench.running()
    await bench.superuser("update tenure.authority set timeline = '00000000'")
    standing = await bench.authority.standing()
    assert standing.epoch is not None
    assert standing.epoch > 1
    # Recorded leases go on, and everything granted afterwards carries the new epoch.
    assert (await bench.renew(held)).reply is not None
    later = await bench.running()
    assert later.fencing_token == token(standing.epoch, 1)
    assert (await bench.deliver(held)).reply is not None
    await bench.owner.execute(
        "select tenure.set_policy(1, 30000000, null, 1000000, 30000000, 1000000, 300000000,"
        " 'hold', 'ops', 'a test')"
    )
    await bench.superuser("update tenure.authority set timeline = '00000000'")
    assert (await bench.authority.standing()).epoch is None
    assert await code_of_submitting(bench) == Code.AUTHORITY_UNCONFIRMED
    above = await period(bench.owner) + 1000
    recovered = "select epoch from tenure.recover_authority('ops', 'yes', $1)"
    assert await bench.owner.fetchval(recovered, above) == above + 1
    assert await code_of_submitting(bench) is None


@pytest.mark.requirement("LEASE-04")
@pytest.mark.parametrize(
    "change", ["system_identifier = 1, timeline = '00000000'", "timeline = 'FFFFFFFF'"]
)
async def test_another_cluster_and_an_earlier_timeline_are_no_promotion(
    bench: Bench, change: str
) -> None:
    await bench.superuser(f"update tenure.authority set {change}")
    assert (await bench.authority.standing()).epoch is None
    assert await code_of_submitting(bench) == Code.AUTHORITY_UNCONFIRMED
