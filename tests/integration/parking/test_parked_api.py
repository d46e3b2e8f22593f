"""Parked messages over HTTP and at the command line: seen, tried again, skipped (RELAY-04)."""

from collections.abc import AsyncIterator

import pytest

from tenure.cli.exits import Exit
from tests.support.commands import tenure, tenure_json
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, append, rows_of
from tests.support.parked import parked_are, results
from tests.support.relays import (
    Consumer,
    broker_channel,
    consume,
    declare_queue,
    relaying,
)
from tests.support.sessions import session, until


class Situation:
    """Two tasks, of each one message that is too large and one behind it, and a relay that runs."""

    def __init__(self, positions: list[int], consumer: Consumer) -> None:
        self.large = positions[:2]
        self.behind = positions[2:]
        self.consumer = consumer

    async def all_sent(self, count: int) -> None:
        async def sent() -> bool:
            return len(self.consumer.messages) == count

        await until(sent)


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
async def situation(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Situation]:
    async with broker_channel(broker.url) as channel, session(database.owner_url) as owner:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        consumer = await consume(channel, queue)
        streams = [Stream(), Stream()]
        rows = rows_of(streams, 1, routing_key=queue, required=True, filler="x" * 2000)
        rows += rows_of(streams, 1, routing_key=queue, required=True)
        positions = await append(owner, rows)
        async with relaying(
            database.relay_url, broker.url, broker.name_prefix, relay_max_body_bytes=1500
        ):
            await parked_are(database, "failed", "failed", "behind", "behind")
            yield Situation(positions, consumer)


@pytest.mark.requirement("RELAY-04")
async def test_parked_messages_are_listed_shown_and_settled_over_http(
    api: Fleet, database: FreshDatabase, situation: Situation
) -> None:
    page = (await api.reader.get("/v1/outbox/parked?limit=3")).json()
    assert [one["position"] for one in page["parked"]] == [*situation.large, situation.behind[0]]
    assert page["next"] == situation.behind[0]
    first, behind = page["parked"][0], page["parked"][2]
    assert (first["state"], first["reason"], first["due_at"]) == ("failed", "unsendable", None)
    assert (behind["state"], behind["reason"], behind["holds"]) == ("behind", "behind", True)
    page = (await api.reader.get(f"/v1/outbox/parked?after={page['next']}")).json()
    assert ([one["position"] for one in page["parked"]], page["next"]) == (
        situation.behind[1:],
        None,
    )
    found = (await api.reader.get("/v1/outbox/parked?state=behind&reason=behind")).json()
    assert len(found["parked"]) == 2

    path = f"/v1/outbox/parked/{situation.large[0]}"
    detail = (await api.reader.get(path)).json()
    assert detail["parked"] == first
    assert f'"id":"{first["event_id"]}"' in detail["body"]
    assert detail["requests"] == []

    body = {"positions": [situation.behind[0]], "reason": "try it"}
    asked = await api.operator.post("/v1/outbox/parked/retry", body)
    assert asked.json() == {"positions": [situation.large[0]]}  # the first of its stream

    async def failed_again() -> bool:
        return await results(database) == [("retry", "failed")]

    await until(failed_again)
    body = {"positions": [situation.large[0]], "reason": "no use"}
    asked = await api.operator.post("/v1/outbox/parked/skip", body)
    assert asked.json() == {"positions": [situation.large[0]]}
    await situation.all_sent(1)
    await parked_are(database, "failed", "behind")
    detail = (await api.reader.get(path)).json()
    assert (detail["parked"], detail["body"]) == (None, None)
    assert [
        (each["action"], each["reason"], each["result"], bool(each["requested_by"]))
        for each in detail["requests"]
    ] == [("skip", "no use", "skipped", True), ("retry", "try it", "failed", True)]
    gone = await api.operator.post("/v1/outbox/parked/skip", body)
    assert gone.json() == {"positions": []}


async def test_parked_messages_are_settled_at_the_command_line(
    api: Fleet, database: FreshDatabase, situation: Situation
) -> None:
    code, out, err = await tenure(api, "outbox", "parked", "list")
    assert (code, err) == (Exit.DONE, "")
    assert out.count("on request") == 2
    assert out.count("after others") == 2
    page = await tenure_json(api, "outbox", "parked", "list", "--failed-as", "unsendable")
    assert [one["position"] for one in page["parked"]] == situation.large
    asked = await tenure_json(
        api, "outbox", "retry", "--failed-as", "unsendable", "--reason", "a test"
    )
    assert asked == {"positions": situation.large}
    first, second = map(str, situation.large)
    code, out, err = await tenure(api, "outbox", "skip", first, second, "--reason", "a test")
    assert (code, out, err) == (Exit.DONE, f"{first}: is skipped\n{second}: is skipped\n", "")
    await situation.all_sent(2)
    await parked_are(database)
    code, out, _ = await tenure(api, "outbox", "parked", "show", first)
    assert code == Exit.DONE
    assert "is not parked any more" in out
    assert "skipped" in out
    code, out, _ = await tenure(api, "outbox", "retry", "--all", "--reason", "a test")
    assert (code, out) == (Exit.DONE, "nothing of this is parked\n")


async def test_what_is_asked_of_parked_messages_is_checked(
    api: Fleet, database: FreshDatabase
) -> None:
    for caller in (api.application, api.executor, api.stranger):
        assert (await caller.get("/v1/outbox/parked")).status_code == 403
    body = {"positions": [1], "reason": "x"}
    for caller in (api.application, api.executor, api.reader, api.stranger):
        for verb in ("retry", "skip"):
            assert (await caller.post(f"/v1/outbox/parked/{verb}", body)).status_code == 403
    for odd in ("0", "x", "9" * 30, "-1", "7"):
        reply = await api.reader.get(f"/v1/outbox/parked/{odd}")
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
    for wrong in (
        {"reason": ""},
        {"positions": [], "reason": "x"},
        {"positions": [0], "reason": "x"},
        {"positions": [1]},
        {"positions": [1], "failed_as": "returned", "reason": "x"},
        {"failed_as": "odd", "reason": "x"},
    ):
        assert (await api.operator.post("/v1/outbox/parked/retry", wrong)).status_code == 422
    assert (await api.operator.post("/v1/outbox/parked/skip", {"reason": "x"})).status_code == 422
    assert (await api.reader.get("/v1/outbox/parked?reason=odd")).status_code == 422


async def test_operators_of_a_tenant_reach_what_is_parked_of_it_only(
    database: FreshDatabase, situation: Situation
) -> None:
    async with session(database.coordinator_url) as coordinator:
        for action in ("retry", "skip"):
            reached = await coordinator.fetchval(
                "select tenure.ask_parked('other', $1, $2, null, 'x', 'y')",
                action,
                situation.large,
            )
            assert reached == []
        reached = await coordinator.fetchval(
            "select tenure.ask_parked('default', 'retry', $1, null, 'x', 'y')", situation.large
        )
        assert reached == situation.large
