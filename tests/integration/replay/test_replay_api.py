"""Replays as operators ask for them: over HTTP and on the command line (REPLAY-01)."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from uuid import uuid4

import pytest

from tests.support.commands import tenure, tenure_process
from tests.support.coordinator import Caller, Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.log_rows import Stream, rows_of
from tests.support.relays import broker_channel, declare_queue, relaying
from tests.support.replays import listen, record, subscribe
from tests.support.sessions import session

REASON = {"reason": "a test"}


@pytest.fixture(name="fleet")
async def a_fleet(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


async def number_of_replays(database: FreshDatabase) -> int:
    async with session(database.owner_url) as owner:
        return int(await owner.fetchval("select count(*) from tenure.replays"))


@pytest.mark.requirement("REPLAY-01")
async def test_a_dry_run_counts_and_shows_the_first_rows_and_begins_nothing(
    fleet: Fleet, database: FreshDatabase
) -> None:
    rows = rows_of([Stream()], 8, exchange="e", routing_key="k")
    positions = await record(database, rows)
    body = {"queue": "q", "dry_run": True, **REASON}
    reply = await fleet.operator.post("/v1/replays", body)
    assert reply.status_code == 200, reply.text
    preview = reply.json()["preview"]
    assert reply.json()["replay"] is None
    assert (preview["rows"], preview["exact"]) == (8, True)
    assert (preview["from_position"], preview["to_position"]) == (positions[0], positions[-1])
    assert [one["event_id"] for one in preview["sample"]] == [str(r.event_id) for r in rows[:5]]
    assert preview["sample"][0]["type"] == "tenure.task.open"
    assert preview["log_from_position"] == positions[0]
    assert await number_of_replays(database) == 0


@pytest.mark.requirement("REPLAY-01")
async def test_who_began_it_why_and_when_is_kept_and_the_same_request_begins_nothing_more(
    fleet: Fleet, database: FreshDatabase
) -> None:
    await record(database, rows_of([Stream()], 3, exchange="e"))
    replay_id = str(uuid4())
    body = {"replay_id": replay_id, "queue": "q", "filter": {"tenant": "default"}, **REASON}
    first = await fleet.operator.post("/v1/replays", body)
    assert first.status_code == 201, first.text
    assert first.headers["Location"] == f"/v1/replays/{replay_id}"
    replay = first.json()["replay"]
    assert (replay["created_by"], replay["reason"], replay["state"]) == ("ops", "a test", "running")
    assert replay["filter"]["tenant"] == "default"
    again = await fleet.operator.post("/v1/replays", body)
    assert again.status_code == 200
    assert again.json()["replay"]["created_at"] == replay["created_at"]
    other = await fleet.operator.post("/v1/replays", body | {"queue": "another"})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    assert await number_of_replays(database) == 1

    paused = await fleet.operator.post(f"/v1/replays/{replay_id}/pause", {"reason": "noise"})
    assert paused.json()["replay"]["pause_code"] == "operator"
    for _ in range(2):
        resumed = await fleet.operator.post(f"/v1/replays/{replay_id}/resume", {"reason": "quiet"})
        assert resumed.status_code == 200
    await fleet.operator.post(f"/v1/replays/{replay_id}/cancel", {"reason": "enough"})
    detail = (await fleet.reader.get(f"/v1/replays/{replay_id}")).json()
    assert detail["replay"]["state"] == "cancelled"
    assert [(one["change"], one["actor"], one["reason"]) for one in detail["history"]] == [
        ("started", "ops", "a test"),
        ("paused", "ops", "noise"),
        ("resumed", "ops", "quiet"),
        ("cancelled", "ops", "enough"),
    ]
    for word in ("pause", "resume"):
        late = await fleet.operator.post(f"/v1/replays/{replay_id}/{word}", REASON)
        assert (late.status_code, late.json()["code"]) == (409, "wrong_state")
    once_more = await fleet.operator.post(f"/v1/replays/{replay_id}/cancel", REASON)
    assert once_more.status_code == 200


async def test_replays_are_listed_newest_first_by_pages_and_by_state(
    fleet: Fleet, database: FreshDatabase
) -> None:
    await record(database, rows_of([Stream()], 3, exchange="e"))
    ids = [str(uuid4()) for _ in range(5)]
    for one in ids:
        body = {"replay_id": one, "queue": "q", **REASON}
        assert (await fleet.operator.post("/v1/replays", body)).status_code == 201
    await fleet.operator.post(f"/v1/replays/{ids[1]}/pause", REASON)
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = (await fleet.operator.get("/v1/replays", limit=2, **after)).json()
        found += [one["replay_id"] for one in page["replays"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == ids[::-1]
    paused = (await fleet.operator.get("/v1/replays", state="paused")).json()
    assert [one["replay_id"] for one in paused["replays"]] == [ids[1]]


@pytest.mark.requirement("REPLAY-01")
async def test_reaching_behind_what_consumers_remember_is_refused_unless_forced(
    fleet: Fleet, database: FreshDatabase
) -> None:
    await record(database, rows_of([Stream()], 3, exchange="e"))
    async with session(database.admin_url) as admin:
        await admin.execute("update tenure.log set recorded_at = now() - interval '3 hours'")
    await record(database, rows_of([Stream()], 2, exchange="e"))
    await subscribe(database, "ledger.q", timedelta(hours=2))
    body = {"queue": "ledger.q", **REASON}
    refused = await fleet.operator.post("/v1/replays", body)
    assert (refused.status_code, refused.json()["code"]) == (409, "behind_dedupe_retention")
    assert "--since" in refused.json()["next_step"]
    assert await number_of_replays(database) == 0
    dry = await fleet.operator.post("/v1/replays", body | {"dry_run": True})
    assert dry.json()["preview"]["remembered_since"] > dry.json()["preview"]["oldest_recorded_at"]
    young = (await fleet.operator.post("/v1/replays", body | {"queue": "nobodys.q"})).json()
    since = young["replay"]["created_at"].replace("Z", "+00:00")
    for allowed in ({"force": True}, {"filter": {"since": since}}, {"queue": "nobodys.q"}):
        reply = await fleet.operator.post("/v1/replays", body | allowed)
        assert reply.status_code == 201, reply.text


NONSENSE: list[dict[str, object]] = [
    {},
    {"queue": "q"},
    {"queue": "", **REASON},
    {"queue": "q" * 256, **REASON},
    {"queue": "\u00e4" * 200, **REASON},
    {"queue": "amq.rabbitmq.reply-to", **REASON},
    {"queue": "q", "reason": ""},
    {"queue": "q", "rate": 0, **REASON},
    {"queue": "q", "rate": 10**6, **REASON},
    {"queue": "q", "replay_id": "x", **REASON},
    {"queue": "q", "filter": {"from_position": 0}, **REASON},
    {"queue": "q", "filter": {"from_position": 5, "to_position": 4}, **REASON},
    {"queue": "q", "filter": {"to_position": 2**63}, **REASON},
    {"queue": "q", "filter": {"since": "2026-01-01T00:00:00"}, **REASON},
    {
        "queue": "q",
        "filter": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
        **REASON,
    },
    {"queue": "q", "filter": {"entity_id": str(uuid4())}, **REASON},
    {"queue": "q", "filter": {"entity_type": "lease"}, **REASON},
    {"queue": "q", "filter": {"types": ["tenure.task.odd"]}, **REASON},
    {"queue": "q", "filter": {"tenant": "A B"}, **REASON},
    {"queue": "q", "filter": {"odd": 1}, **REASON},
]


async def test_what_makes_no_sense_changes_nothing_and_says_so(
    fleet: Fleet, database: FreshDatabase
) -> None:
    for body in NONSENSE:
        reply = await fleet.operator.post("/v1/replays", body)
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid_field"), body
    assert await number_of_replays(database) == 0


async def test_queues_of_nodes_and_of_dead_letters_are_no_targets(
    fleet: Fleet, broker: BrokerSpace
) -> None:
    prefix = broker.name_prefix
    for queue in (f"{prefix}.node.default.{uuid4()}", f"{prefix}.dead"):
        reply = await fleet.operator.post("/v1/replays", {"queue": queue, **REASON})
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid_field")


@pytest.mark.requirement("REPLAY-01")
async def test_only_operators_of_the_platform_replay(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    tokens = [
        {"name": "ops", "token": "operator-token-0001", "tenant": "default", "role": "operator"},
        {"name": "theirs", "token": "operator-of-others-1", "tenant": "shop", "role": "operator"},
        {"name": "shop", "token": "application-token-1", "tenant": "default",
         "role": "application"},
        {"name": "fleet", "token": "executor-token-0001", "tenant": "default", "role": "executor"},
        {"name": "eyes", "token": "read-only-token-001", "tenant": "default", "role": "read_only"},
        {"name": "other", "token": "other-tenant-token-1", "tenant": "other",
         "role": "application"},
    ]  # fmt: skip
    async with fleet(database, broker, tokens=tokens) as here:
        theirs = Caller(here.coordinator.url, "operator-of-others-1")
        body = {"replay_id": str(uuid4()), "queue": "q", **REASON}
        assert (await here.operator.post("/v1/replays", body)).status_code == 201
        path = f"/v1/replays/{body['replay_id']}"
        for caller in (theirs, here.application, here.executor, here.reader):
            refusals = [await caller.post("/v1/replays", {"queue": "q", **REASON})] + [
                await caller.post(f"{path}/{word}", REASON)
                for word in ("pause", "resume", "cancel")
            ]
            assert {reply.status_code for reply in refusals} == {403}
        assert (await theirs.get(path)).status_code == 403
        assert (await theirs.get("/v1/replays")).status_code == 403
        assert (await here.reader.get(path)).status_code == 200
        assert (await here.nobody.get(path)).status_code == 401
        await theirs.http.aclose()
    assert await number_of_replays(database) == 1


async def test_a_replay_that_is_none_is_not_found(fleet: Fleet) -> None:
    for replay_id in (str(uuid4()), "x"):
        assert (await fleet.operator.get(f"/v1/replays/{replay_id}")).status_code == 404
        for word in ("pause", "resume", "cancel"):
            reply = await fleet.operator.post(f"/v1/replays/{replay_id}/{word}", REASON)
            assert (reply.status_code, reply.json()["code"]) == (404, "not_found")


@pytest.mark.requirement("REPLAY-01")
async def test_the_command_counts_asks_and_watches_to_the_end(
    fleet: Fleet, database: FreshDatabase, broker: BrokerSpace
) -> None:
    replay = partial(tenure, fleet, "outbox", "replay")
    watched = partial(tenure_process, fleet, "outbox", "replay")
    async with broker_channel(broker.url) as channel:
        queue = await declare_queue(channel, f"{broker.name_prefix}.q")
        again = await listen(channel, queue)
        rows = rows_of([Stream(), Stream()], 3, exchange="e")
        await record(database, rows)
        asked = ("--to", queue, "--reason", "why", "--type", "task.open")
        code, out, _ = await replay(*asked, "--dry-run", "-o", "json")
        assert (code, json.loads(out)["rows"]) == (0, 6)
        code, out, err = await replay(*asked)
        assert (code, "--yes" in err) == (2, True)
        assert str(rows[0].event_id) in out
        code, _, err = await replay(*asked, "--task", str(uuid4()), "--yes")
        assert (code, "nothing_matches" in err) == (1, True)
        assert await number_of_replays(database) == 0
        async with relaying(database.relay_url, broker.url, broker.name_prefix):
            code, out, err = await watched(*asked, "--yes", "-o", "json")
            assert code == 0, err
            lines = [json.loads(line) for line in out.splitlines()]
            assert lines[-1]["state"] == "completed"
            assert lines[-1]["replayed"] == 6
            await again.has(rows)
        replay_id = lines[-1]["replay_id"]
        code, out, _ = await replay("list")
        assert (code, replay_id in out, "completed" in out) == (0, True, True)
        code, out, _ = await replay("show", replay_id)
        assert (code, "started" in out, "why" in out) == (0, True, True)


async def test_the_command_says_what_stands_and_what_to_do(
    fleet: Fleet, database: FreshDatabase, broker: BrokerSpace
) -> None:
    replay = partial(tenure, fleet, "outbox", "replay")
    await record(database, rows_of([Stream()], 3, exchange="e"))
    missing = f"{broker.name_prefix}.missing"
    async with relaying(database.relay_url, broker.url, broker.name_prefix):
        asked = ("--to", missing, "--reason", "why", "--yes")
        code, out, err = await tenure_process(fleet, "outbox", "replay", *asked)
        assert (code, "queue_missing" in err, "resume" in err) == (1, True, True)
    replay_id = out.splitlines()[-1].partition(":")[0]
    code, _, err = await replay("cancel", replay_id, "--reason", "no such queue")
    assert code == 0, err
    code, _, err = await replay("resume", replay_id, "--reason", "late")
    assert (code, "wrong_state" in err) == (1, True)
