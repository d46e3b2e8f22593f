"""Authority that is taken away before its time: by an operator, or because nobody is left."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import CommandId, NodeId
from tenure.contract.states import Effects, NodeState
from tenure.coordinator.core.commands import Accept, ChangeNode, Revoke
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.sweeper import Sweeper
from tests.support.authority import TENANT, Bench, Held, replica
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


async def revoke(bench: Bench, held: Held, command_id: str | None = None) -> Outcome:
    identity = CommandId(command_id or str(uuid4()))
    why = "it writes nonsense"
    command = Revoke(identity, b"", TENANT, "operator", held.task_id, held.attempt_id, why)
    (outcome,) = await bench.authority.revoke([command])
    return outcome


async def ended(bench: Bench, held: Held) -> tuple[str, str, str | None]:
    row = await bench.attempt(held)
    return row["state"], row["reason"], row["message"]


@pytest.mark.requirement("LEASE-07")
@pytest.mark.requirement("STATE-04")
@pytest.mark.parametrize(
    ("before", "after"),
    [("submitted", "cancelled"), ("accepted", "expired"), ("running", "expired")],
)
async def test_a_revoked_attempt_ends_as_its_state_asks_and_its_task_goes_on(
    bench: Bench, before: str, after: str
) -> None:
    await bench.register()
    held = (
        await bench.running() if before == "running" else await bench.assigned(await bench.submit())
    )
    if before == "accepted":
        await bench.report(Accept, held)
    command_id = str(uuid4())
    first = await revoke(bench, held, command_id)
    assert first.reply is not None
    assert await ended(bench, held) == (after, "revoked", "it writes nonsense")
    assert (await bench.task(held.task_id))["state"] == "open"
    # Its word counts no more, and its delivery is evidence.
    renewed = await bench.renew(held)
    assert renewed.refused is not None
    assert renewed.refused.code == Code.NOT_CURRENT
    late = await bench.deliver(held)
    assert late.reply is not None
    assert late.reply.outcome == "recorded"
    # Its successor has a higher token; the same revocation again takes nothing from that.
    successor = await bench.assigned(held.task_id)
    assert successor.fencing_token > held.fencing_token
    again = await revoke(bench, held, command_id)
    assert again.reply == first.reply
    other = await revoke(bench, held)
    assert other.reply is not None
    assert other.reply.outcome == "ended"
    assert await bench.holder(held.task_id) == successor
    used = await bench.owner.fetchval("select sum(slots_used) from tenure.incarnations")
    assert used == 1


async def test_a_revoked_attempt_with_possible_effects_leaves_its_task_to_a_person(
    bench: Bench,
) -> None:
    await bench.register(effects=Effects.UNGUARDED)
    held = await bench.running()
    await revoke(bench, held)
    task = await bench.task(held.task_id)
    assert (task["state"], task["reason"]) == ("held", "lost_with_possible_effect")


@pytest.mark.requirement("INC-02")
async def test_what_a_dead_process_had_not_taken_waits_for_no_lease(bench: Bench) -> None:
    """T7: its successor under the same name gets it at once; what it had begun runs out."""
    old = await bench.register(slots=2)
    running = await bench.running()
    submitted = await bench.assigned(await bench.submit())
    new = await bench.register(slots=1)
    await Sweeper(bench.pool, bench.authority).step()
    assert (await ended(bench, submitted))[:2] == ("cancelled", "revoked")
    assert (await bench.attempt(running))["state"] == "running"
    successor = await bench.assigned(submitted.task_id)
    assert (successor.incarnation, successor.fencing_token > submitted.fencing_token) == (new, True)
    # The newcomer's heartbeats do not extend the dead one's lease.
    expires_at = (await bench.attempt(running))["expires_at"]
    await bench.authority.renew([], new)
    assert (await bench.attempt(running))["expires_at"] == expires_at
    await bench.end_lease(running)
    await Sweeper(bench.pool, bench.authority).step()
    assert (await ended(bench, running))[:2] == ("expired", "lease_expired")
    assert old != new


@pytest.mark.requirement("INC-02")
async def test_work_of_a_start_whose_record_was_deleted_is_rescued(bench: Bench) -> None:
    """T7: the row is gone, the lease is not."""
    old = await bench.register(slots=2)
    running = await bench.running()
    submitted = await bench.assigned(await bench.submit())
    await bench.superuser(
        f"delete from tenure.incarnations where incarnation = '{old}'; delete from tenure.nodes"
    )
    await bench.register("other")
    await Sweeper(bench.pool, bench.authority).step()
    assert (await ended(bench, submitted))[:2] == ("cancelled", "revoked")
    await bench.end_lease(running)
    await Sweeper(bench.pool, bench.authority).step()
    assert (await ended(bench, running))[:2] == ("expired", "lease_expired")
    for held in (submitted, running):
        successor = await bench.assigned(held.task_id)
        assert successor.fencing_token > held.fencing_token


async def operator(api: Fleet, path: str, **body: Any) -> Any:
    reply = await api.operator.post(path, body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.requirement("INC-06")
async def test_a_quarantined_node_loses_what_it_has_and_gets_nothing_until_it_is_let_back(
    api: Fleet,
) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    await api.report(incarnation, assignment, "take")
    reply = await operator(api, "/v1/nodes/node-1/quarantine", reason="its key has leaked")
    (attempt,) = reply["attempts"]
    assert attempt["fencing_token"] == assignment["fencing_token"]
    # Revoked within moments, and where its token is still accepted is told to whoever asks again.
    view = await until(lambda: task_with(api, task_id, "expired"))
    assert view["attempt_list"][0]["message"] == "the node is quarantined: its key has leaked"
    assert (await operator(api, "/v1/nodes/node-1/quarantine", reason="again"))["attempts"]
    # A new start under the same name is quarantined as well, and hears so.
    later = await api.register()
    heard = await api.executor.post("/v1/nodes/node-1/renewals", {"incarnation": later})
    assert heard.json()["node_state"] == NodeState.QUARANTINED
    other = await api.register("node-2", slots=1)
    assert (await api.assigned(other, task_id, "node-2"))["task_id"] == task_id
    assert (await operator(api, "/v1/nodes/node-1/release")) == {}
    second = await api.submit()
    assert (await api.assigned(later, second))["task_id"] == second
    unknown = await api.operator.post("/v1/nodes/nobody/quarantine", {"reason": "typo"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_node")
    forbidden = await api.executor.post("/v1/nodes/node-1/quarantine", {"reason": "mine"})
    assert forbidden.status_code == 403


async def task_with(api: Fleet, task_id: str, first_attempt: str) -> Any:
    view = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    return view if view["attempt_list"][0]["state"] == first_attempt else None


async def test_an_operator_revokes_one_attempt_and_is_told_how_long_it_can_write(
    api: Fleet,
) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    taken = await api.report(incarnation, assignment, "take")
    body = {"attempt_id": assignment["attempt_id"], "reason": "it hangs"}
    reply = await operator(api, f"/v1/tasks/{task_id}/revoke", **body)
    assert (reply["outcome"], reply["attempt_state"]) == ("revoked", "expired")
    assert taken.expires_at is not None
    assert reply["writable_until"] == taken.expires_at.isoformat().replace("+00:00", "Z")
    assert await operator(api, f"/v1/tasks/{task_id}/revoke", **body) == reply
    heard = await api.executor.post(
        "/v1/nodes/node-1/renewals",
        {
            "incarnation": incarnation,
            "leases": [
                {name: assignment[name] for name in ("task_id", "attempt_id", "fencing_token")}
            ],
        },
    )
    assert heard.json()["replies"][0]["outcome"] == "refused"


@pytest.mark.requirement("LEASE-06")
async def test_every_renewal_is_listed_with_both_ends_and_who_asked(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    assignment = await api.assigned(incarnation, task_id)
    taken = await api.report(incarnation, assignment, "take")
    lease = {name: assignment[name] for name in ("task_id", "attempt_id", "fencing_token")}
    body = {"incarnation": incarnation, "leases": [lease]}
    for _ in range(2):
        await api.executor.post("/v1/nodes/node-1/renewals", body)
    listed = (await api.reader.get(f"/v1/tasks/{task_id}/renewals")).json()["renewals"]
    second, first = listed
    assert first["prior_expires_at"] == taken.model_dump(mode="json")["expires_at"]
    assert second["prior_expires_at"] == first["new_expires_at"] < second["new_expires_at"]
    assert {one["renewed_by"] for one in listed} == {"fleet"}
    assert {one["attempt_id"] for one in listed} == {assignment["attempt_id"]}
    stranger = await api.stranger.get(f"/v1/tasks/{task_id}/renewals")
    assert stranger.json()["renewals"] == []


async def test_a_drained_node_that_is_quarantined_stays_so(bench: Bench) -> None:
    """Draining asks for less than what it is under already."""
    incarnation = await bench.register()
    await bench.superuser("update tenure.incarnations set state = 'quarantined'")
    outcome = await bench.authority.change_node(
        ChangeNode(
            CommandId(str(uuid4())),
            b"",
            TENANT,
            "executor",
            NodeId("node-1"),
            incarnation,
            NodeState.DRAINING,
        )
    )
    assert outcome.reply is not None
    state = await bench.owner.fetchval("select state from tenure.incarnations")
    assert state == "quarantined"
