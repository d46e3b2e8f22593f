"""What the authority records looks like the golden messages: the same kinds and attributes."""

import json
from typing import Any

import pytest

from tenure.contract.codec import decode_event
from tests.support import golden
from tests.support.authority import replica
from tests.support.happenings import everything_that_can_happen
from tests.support.isolation import FreshDatabase


def shape(body: bytes) -> tuple[str, bool, tuple[str, ...]]:
    """Kind of an event, and the names of its attributes in their order."""
    event = decode_event(body)
    value: dict[str, Any] = json.loads(body)
    names = (*value, *(f"data.{name}" for name in value["data"]))
    return event.type, event.data.cancel_requested is not None, names


@pytest.mark.requirement("EVENT-01")
async def test_real_events_have_the_attributes_of_the_golden_messages(
    database: FreshDatabase,
) -> None:
    async with replica(database) as bench:
        await everything_that_can_happen(bench)
        recorded = await bench.owner.fetch("select body from tenure.log order by position")
    expected = {shape(body) for body in golden.messages().values()}
    # Where a failed attempt is the last one there is no delay before the next.
    expected |= {
        (kind, cancelled, tuple(name for name in names if name != "data.retry_after_seconds"))
        for kind, cancelled, names in expected
        if kind == "tenure.attempt.failed"
    }
    assert {shape(record["body"]) for record in recorded} == expected
