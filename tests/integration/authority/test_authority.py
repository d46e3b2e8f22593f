"""The authority over a real database: one task, its attempts, leases, receipts and events."""

import json
from collections.abc import AsyncIterator

import pytest

from tenure.contract.codec import decode_event
from tenure.coordinator.core.commands import Take
from tests.support.authority import Bench, replica
from tests.support.isolation import FreshDatabase


@pytest.fixture
async def bench(database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(database) as bench:
        yield bench


async def test_a_task_goes_from_submission_to_its_result(bench: Bench) -> None:
    await bench.register()
    task_id = await bench.submit()
    held = await bench.assigned(task_id)
    taken = await bench.report(Take, held)
    assert taken.reply is not None
    assert taken.input_text is not None
    assert json.loads(taken.input_text) == {"path": "a"}
    delivered = await bench.deliver(held, {"digest": "x"})
    assert delivered.reply is not None
    assert delivered.reply.outcome == "applied"
    assert (await bench.task(task_id))["state"] == "delivered"
    moves = [
        (e["entity_type"], e["sequence"], decode_event(e["body"]).previous_state, e["next_state"])
        for e in await bench.events(task_id)
    ]
    assert moves == [
        ("task", 1, None, "open"),
        ("attempt", 1, None, "submitted"),
        ("attempt", 2, "submitted", "accepted"),
        ("attempt", 3, "accepted", "running"),
        ("attempt", 4, "running", "delivered"),
        ("task", 2, "open", "delivered"),
    ]
