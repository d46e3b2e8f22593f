"""Heartbeats and health reviews: they decide what a node is given, and never what it has."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tenure.contract.codes import Code
from tenure.contract.ids import CommandId, IncarnationId, NodeId
from tenure.contract.states import NodeState
from tenure.coordinator.core.commands import Allocate, ChangeNode, CloseReview, Renew
from tenure.coordinator.core.decisions import Outcome
from tenure.coordinator.sweeper import Sweeper
from tests.support import steps
from tests.support.authority import TENANT, Bench, replica
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


async def fall_silent(owner: asyncpg.Connection) -> None:
    """No heartbeat for a minute, as time would have it."""
    await owner.execute(
        "update tenure.incarnations set last_seen_at = last_seen_at - interval '1 minute'"
    )


async def sweep(bench: Bench) -> None:
    await Sweeper(bench.pool, bench.authority).step()


async def reviews(bench: Bench) -> list[tuple[str | None, str | None]]:
    rows = await bench.owner.fetch("select * from tenure.health_reviews order by review_id")
    return [(row["outcome"], row["message"]) for row in rows]


async def allocated(bench: Bench, incarnation: IncarnationId) -> Outcome:
    command: Allocate = steps.allocation(await bench.submit(), incarnation)
    snapshot = await steps.load(bench.pool, command)
    (outcome,) = await bench.authority.allocate([command], [snapshot])
    return outcome


async def close(bench: Bench, message: str | None) -> Outcome:
    return await bench.authority.review(
        CloseReview(
            CommandId(str(uuid4())), b"", TENANT, "operator", NodeId("node-1"), None, message
        )
    )


@pytest.mark.requirement("LEASE-07")
@pytest.mark.requirement("INC-02")
async def test_missing_heartbeats_open_a_review_and_end_no_lease(bench: Bench) -> None:
    incarnation = await bench.register()
    held = await bench.running()
    before = await bench.attempt(held)
    await fall_silent(bench.owner)
    await sweep(bench)
    await sweep(bench)
    assert await reviews(bench) == [(None, None)]
    assert await bench.attempt(held) == before
    refused = await allocated(bench, incarnation)
    assert refused.refused is not None
    assert refused.refused.code == Code.NODE_GONE
    # A renewal is granted, and a delivery is admitted, from a node under review.
    outcome = await bench.authority.report([bench.command(Renew, held)])
    assert outcome[0].reply is not None
    delivered = await bench.deliver(held)
    assert delivered.reply is not None
    assert delivered.reply.outcome == "applied"


@pytest.mark.requirement("LEASE-07")
async def test_heartbeats_that_return_close_the_review_and_the_node_is_given_work_again(
    bench: Bench,
) -> None:
    incarnation = await bench.register()
    await fall_silent(bench.owner)
    await sweep(bench)
    await bench.authority.renew([], incarnation)
    # Heard of, but nobody has closed the review yet.
    refused = await allocated(bench, incarnation)
    assert refused.refused is not None
    assert "review" in refused.refused.message
    await sweep(bench)
    assert await reviews(bench) == [("heartbeats_returned", None)]
    assert (await allocated(bench, incarnation)).reply is not None
    events = await bench.owner.fetch(
        "select convert_from(body, 'UTF8')::json #>> '{data,reason}' as reason, sequence"
        " from tenure.log where entity_type = 'node' order by position"
    )
    assert [tuple(row) for row in events] == [
        (None, 1),
        ("heartbeats_missing", 2),
        ("heartbeats_returned", 3),
    ]


@pytest.mark.requirement("LEASE-07")
async def test_an_operator_closes_a_review_for_good_but_silence_still_excludes(
    bench: Bench,
) -> None:
    incarnation = await bench.register()
    await fall_silent(bench.owner)
    await sweep(bench)
    assert (await close(bench, "the cable was pulled")).reply is not None
    await sweep(bench)
    assert await reviews(bench) == [("operator", "the cable was pulled")]
    refused = await allocated(bench, incarnation)
    assert refused.refused is not None
    assert "heard of" in refused.refused.message
    # Another silence is another review.
    await bench.authority.renew([], incarnation)
    await fall_silent(bench.owner)
    await sweep(bench)
    assert await reviews(bench) == [("operator", "the cable was pulled"), (None, None)]


async def test_the_end_of_a_start_closes_its_review(bench: Bench) -> None:
    incarnation = await bench.register()
    await fall_silent(bench.owner)
    await sweep(bench)
    await bench.authority.change_node(
        ChangeNode(
            command_id=CommandId(str(uuid4())),
            fingerprint=b"",
            tenant=TENANT,
            actor="executor",
            node_id=NodeId("node-1"),
            incarnation=incarnation,
            next_state=NodeState.GONE,
        )
    )
    assert await reviews(bench) == [("node_gone", None)]
    refused = await close(bench, "too late")
    assert refused.refused is not None
    assert refused.refused.code == Code.UNKNOWN_NODE


async def test_people_see_which_nodes_are_under_review(api: Fleet, database: FreshDatabase) -> None:
    incarnation = await api.register()
    owner = await asyncpg.connect(database.owner_url)
    try:
        await fall_silent(owner)
    finally:
        await owner.close()

    async def under_review() -> Any:
        nodes = (await api.reader.get("/v1/nodes")).json()["nodes"]
        return [node for node in nodes if node["under_review"]]

    (node,) = await until(under_review)
    assert (node["node_id"], node["state"]) == ("node-1", "active")
    (opened,) = (await api.reader.get("/v1/nodes/node-1/reviews")).json()["reviews"]
    assert (opened["incarnation"], opened["outcome"]) == (incarnation, None)
    closed = await api.operator.post("/v1/nodes/node-1/reviews/close", {"reason": "it was moved"})
    (first,) = closed.json()["reviews"]
    assert (first["outcome"], first["closed_by"], first["message"]) == (
        "operator",
        "ops",
        "it was moved",
    )
    heartbeat = {"incarnation": incarnation}
    assert (await api.executor.post("/v1/nodes/node-1/renewals", heartbeat)).status_code == 200
    assert not await under_review()
    unknown = await api.operator.post("/v1/nodes/nobody/reviews/close", {"reason": "typo"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_node")
