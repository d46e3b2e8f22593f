"""A submission whose answer was lost, repeated by the client, is the same task (LATE-04)."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from pydantic import BaseModel

from tenure.cli.chaos.toxic import toxic
from tenure.client import AsyncClient, Client, TaskHandle, TaskType
from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.toxic_filters import LostAnswers


class HashIn(BaseModel):
    path: str


class HashOut(BaseModel):
    digest: str


SHA256 = TaskType("sha256", input=HashIn, output=HashOut)
TOKEN = TOKENS[0]["token"]


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


@pytest.fixture
async def incarnation(api: Fleet) -> str:
    """The only node there is: a second start of it would leave a task with the first."""
    return await api.register()


@pytest.fixture
async def lossy(api: Fleet, incarnation: str) -> AsyncIterator[tuple[LostAnswers, str]]:
    answers = LostAnswers()
    async with toxic(api.coordinator.url, answers) as proxy:
        yield answers, proxy.url


async def task_ids(database: FreshDatabase) -> set[str]:
    """All tasks there are."""
    connection = await asyncpg.connect(database.owner_url)
    try:
        return {str(row[0]) for row in await connection.fetch("select task_id from tenure.tasks")}
    finally:
        await connection.close()


@pytest.mark.requirement("LATE-04")
@pytest.mark.parametrize("key", [None, "order-1"])
async def test_a_submission_whose_answers_were_lost_is_one_task(
    lossy: tuple[LostAnswers, str], database: FreshDatabase, key: str | None
) -> None:
    answers, url = lossy
    answers.lose = 2
    async with AsyncClient(url, TOKEN) as client:
        handle = await client.submit(SHA256, HashIn(path="a"), idempotency_key=key)
        assert answers.lost == ["HTTP/1.1 201 Created", "HTTP/1.1 200 OK"]  # made, and then found
        assert handle.replayed
        assert await task_ids(database) == {handle.task_id}
        assert (await handle.view()).task_id == handle.task_id


@pytest.mark.requirement("LATE-04")
async def test_a_batch_whose_answer_was_lost_is_the_same_tasks_in_order(
    lossy: tuple[LostAnswers, str], database: FreshDatabase
) -> None:
    answers, url = lossy
    answers.lose = 1
    inputs = [HashIn(path=str(n)) for n in range(20)]
    async with AsyncClient(url, TOKEN) as client:
        handles = await client.submit_many(SHA256, inputs)
        assert answers.lost == ["HTTP/1.1 200 OK"]
        assert all(handle.replayed for handle in handles)
        assert {handle.task_id for handle in handles} == await task_ids(database)
        assert len({handle.task_id for handle in handles}) == 20
        views = [await handle.view() for handle in handles]
    assert [view.input for view in views] == [{"path": str(n)} for n in range(20)]


@pytest.mark.requirement("LATE-04")
async def test_a_thread_whose_answers_were_lost_has_one_task_and_its_result(
    api: Fleet,
    lossy: tuple[LostAnswers, str],
    incarnation: str,
    database: FreshDatabase,
) -> None:
    answers, url = lossy
    answers.lose = 2
    with Client(url, TOKEN) as client:

        def submit() -> tuple[TaskHandle[HashOut], list[TaskHandle[HashOut]]]:
            one = client.submit(SHA256, HashIn(path="a"))
            return one, client.submit_many(SHA256, [HashIn(path="b")])

        one, many = await asyncio.to_thread(submit)
        assert answers.lost == ["HTTP/1.1 201 Created", "HTTP/1.1 200 OK"]
        assert {one.task_id, many[0].task_id} == await task_ids(database)
        await api.deliver(incarnation, one.task_id, output={"digest": "d"})
        answers.lose = 1
        assert await asyncio.to_thread(one.result, timeout=60) == HashOut(digest="d")


@pytest.mark.requirement("LATE-04")
async def test_a_cancellation_whose_answer_was_lost_is_asked_for_again(
    lossy: tuple[LostAnswers, str],
) -> None:
    answers, url = lossy
    async with AsyncClient(url, TOKEN) as client:
        handle = await client.submit(SHA256, HashIn(path="a"))
        answers.lose = 1
        await handle.cancel()
        assert (await handle.status()).state == "cancelled"
