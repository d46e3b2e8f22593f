"""The commit function called past everything, with what no coordinator of ours sends: it changes
nothing, and whoever else is in the call loses nothing by it but the call."""

from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tenure.coordinator.core.commands import Deliver, Fail, Renew, Take
from tenure.coordinator.core.decisions import ItemOutcome, Reads
from tenure.coordinator.store import commit as store
from tenure.coordinator.store.roles import Roles
from tests.support import steps
from tests.support.authority import Bench, replica
from tests.support.isolation import FreshDatabase
from tests.support.sessions import session
from tests.support.steps import Item

NOT_COVERED = "a write is covered by no guard"
CALL = store._COMMIT
WRITES = {
    "task insert": 1, "task update": 2, "attempt insert": 3, "attempt update": 4,
    "lease renewal": 5, "receipt": 6, "incarnation insert": 7, "incarnation update": 8,
}  # fmt: skip
"""Which argument of the function carries what."""


@pytest.fixture
async def bench(emptied_database: FreshDatabase) -> AsyncIterator[Bench]:
    async with replica(emptied_database) as bench:
        yield bench


async def items(bench: Bench) -> dict[str, Item]:
    """Sound decisions, one for each kind of write at least."""
    incarnation = await bench.register()
    held, ending = await bench.running(), await bench.running()
    taken = await bench.assigned(await bench.submit())
    report = bench.command
    commands: dict[str, Any] = {
        "submission": bench.submission(),
        "cancellation": steps.cancellation(await bench.submit()),
        "allocation": steps.allocation(await bench.submit(), incarnation),
        "take": report(Take, taken),
        "renewal": report(Renew, held),
        "delivery": report(Deliver, held, output_text="1", content_digest=b"1"),
        "failure": report(Fail, ending, reason="r", message="m", retryable=False),
        "registration": bench.registration("another"),
    }
    return {name: await steps.accept(bench.pool, command) for name, command in commands.items()}


def arguments(*decided: Item) -> list[Any]:
    return list(store.arguments([(one.command, one.accepted) for one in decided]))


async def call(bench: Bench, sent: list[Any]) -> list[ItemOutcome]:
    row = await bench.pool.fetchrow(CALL, *sent)
    assert row is not None
    return [ItemOutcome(one) for one in row["outcomes"] or ()]


@pytest.mark.requirement("STATE-01")
@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("cancellation", "task_id"), ("cancellation", "task_version"),
        ("allocation", "task_id"), ("allocation", "task_version"),
        ("allocation", "incarnation"), ("allocation", "incarnation_version"),
        ("take", "attempt_id"), ("take", "attempt_version"),
        ("renewal", "attempt_id"), ("renewal", "attempt_version"),
        ("delivery", "attempt_id"), ("delivery", "attempt_version"), ("delivery", "task_id"),
        ("failure", "attempt_version"), ("failure", "task_version"),
        ("registration", "node_id"),
    ],
)  # fmt: skip
async def test_a_write_of_a_row_that_no_guard_names_is_refused(
    bench: Bench, name: str, without: str
) -> None:
    """With a sound decision beside it, which is then sent again alone, as a lane does."""
    decided = await items(bench)
    hostile = steps.with_reads(decided[name], **{without: None})
    sound = decided["submission"]
    before = await bench.everything()
    with pytest.raises(asyncpg.PostgresError, match=NOT_COVERED):
        await call(bench, arguments(sound, hostile))
    assert await bench.everything() == before
    assert await call(bench, arguments(sound)) == [ItemOutcome.APPLIED]


@pytest.mark.requirement("STATE-01")
@pytest.mark.parametrize("kind", [kind for kind in WRITES if "insert" not in kind])
async def test_a_write_smuggled_into_anothers_item_is_refused(bench: Bench, kind: str) -> None:
    """An item with all its guards, and a write about a row of somebody else's."""
    decided = await items(bench)
    sent = arguments(*decided.values())
    stolen = [value for value in sent[WRITES[kind]] if value is not None]
    innocent = arguments(decided["submission"])
    innocent[WRITES[kind]] = [(1, *value[1:]) for value in stolen] or [(1, uuid4(), "gone", 2)]
    before = await bench.everything()
    with pytest.raises(asyncpg.PostgresError, match=NOT_COVERED):
        await call(bench, innocent)
    assert await bench.everything() == before


@pytest.mark.parametrize("number", [0, -1, 9, None])
async def test_writes_of_an_item_that_is_not_there_are_refused(
    bench: Bench, number: int | None
) -> None:
    decided = await items(bench)
    before = await bench.everything()
    for position in WRITES.values():
        sent = arguments(decided["submission"])
        for one in decided.values():
            values = arguments(one)[position]
            if values:
                sent[position] = [(number, *value[1:]) for value in values]
        if sent[position] and all(value[0] == number for value in sent[position]):
            with pytest.raises(asyncpg.PostgresError, match=NOT_COVERED):
                await call(bench, sent)
    assert await bench.everything() == before


async def test_without_items_nothing_is_written_whatever_is_sent_along(bench: Bench) -> None:
    decided = await items(bench)
    before = await bench.everything()
    absent: tuple[list[Any] | None, ...] = ([], None)
    for nothing in absent:
        sent = arguments(*decided.values())
        sent[0] = nothing
        with pytest.raises(asyncpg.PostgresError, match=NOT_COVERED):
            await call(bench, sent)
        assert await call(bench, [nothing, *([] for _ in sent[1:])]) == []
    assert await bench.everything() == before


async def test_an_item_without_any_guard_is_of_no_epoch_and_stale(bench: Bench) -> None:
    decided = await items(bench)
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in fields(Reads))
    guardless = steps.with_reads(decided["submission"], **nothing)
    before = await bench.everything()
    assert await call(bench, arguments(guardless)) == [ItemOutcome.STALE]
    assert await bench.everything() == before


async def test_the_same_item_many_times_in_one_call_is_applied_once(bench: Bench) -> None:
    for item in (await items(bench)).values():
        outcomes = await call(bench, arguments(item, item, item))
        assert sorted(outcomes) == [ItemOutcome.APPLIED, ItemOutcome.STALE, ItemOutcome.STALE]


@pytest.mark.parametrize("text", ["seven", "task-1", "{{1}}", '(")', "{(1,2)}"])
async def test_values_of_another_type_are_refused_before_anything_is_looked_at(
    bench: Bench, text: str
) -> None:
    await items(bench)
    before = await bench.everything()
    for position in range(13):
        values = ["'{}'"] * 13
        values[position] = f"'{text}'"
        with pytest.raises((asyncpg.DataError, asyncpg.PostgresSyntaxError)):
            await bench.pool.fetch(f"select tenure.commit_batch({', '.join(values)})")
    assert await bench.everything() == before


@pytest.mark.direct
async def test_nobody_but_the_coordinator_may_call_it(
    bench: Bench, emptied_database: FreshDatabase
) -> None:
    sent = arguments((await items(bench))["submission"])
    async with session(emptied_database.admin_url) as admin:
        await admin.execute("create role stranger login password 'stranger'")
        try:
            for role in ("stranger", Roles().relay):
                async with admin.transaction():
                    await admin.execute(f"set local role {role}")
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        async with admin.transaction():
                            await admin.fetchrow(CALL, *sent)
        finally:
            await admin.execute("drop role stranger")
