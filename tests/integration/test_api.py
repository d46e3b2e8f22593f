"""The HTTP interface over a real database and a real broker."""

from collections.abc import AsyncIterator

import pytest

from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        yield found


async def test_a_task_is_submitted_worked_on_and_read(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit(input={"path": "a"}, priority=5)
    await api.deliver(incarnation, task_id, output={"digest": "x"})
    result = (await api.application.get(f"/v1/tasks/{task_id}/result", wait=10)).json()
    assert result["state"] == "delivered"
    assert result["output"] == {"digest": "x"}
    view = (await api.reader.get(f"/v1/tasks/{task_id}")).json()
    assert view["input"] == {"path": "a"}
