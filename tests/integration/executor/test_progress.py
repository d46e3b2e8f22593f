"""Progress and checkpoints: tied to the token, read by the next attempt, gone with the input."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tenure.contract.codes import Code
from tenure.contract.ids import fencing_token
from tenure.contract.progress import CHECKPOINT_LIMIT_BYTES
from tenure.executor import Context, Executor, Retry, TaskType
from tests.support.coordinator import Fleet, fleet
from tests.support.executors import executing, registered, result, settings_of
from tests.support.isolated_app import Done, Job, work
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.leases import end_lease
from tests.support.sessions import session

JOB = TaskType("job", input=Job, output=Done)


class Copied(BaseModel):
    """Output: where the last attempt went on from."""

    began_at: int


COPY = TaskType("copy", input=Job, output=Copied)


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as made:
        yield made


async def view(api: Fleet, task_id: str) -> Any:
    return (await api.operator.get(f"/v1/tasks/{task_id}")).json()


@pytest.mark.requirement("STATE-05")
async def test_the_next_attempt_goes_on_from_the_checkpoint_of_the_last(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    app = Executor("copier", version="1")

    @app.task(COPY, effects="none")
    async def copy(input: Job, context: Context[None]) -> Copied:
        begin = 0 if context.last_checkpoint is None else context.last_checkpoint["row"]
        if begin == 0:
            context.progress(0.25, "a quarter")
            await context.checkpoint({"row": 1})
            await context.checkpoint({"row": 2})
            raise Retry("again", after=0)
        return Copied(began_at=begin)

    async with executing(app, settings_of(api, broker, tmp_path)):
        await registered(api, "node-1")
        task_id = await api.submit(type="copy", input={"do": ""})
        ended = await result(api, task_id)
    assert ended["output"] == {"began_at": 2}
    progress = (await view(api, task_id))["progress"]
    assert (progress["fraction"], progress["message"]) == (0.25, "a quarter")
    assert progress["checkpoint"] == {"row": 2}
    assert progress["checkpoint_fencing_token"] == fencing_token(1, 1)


async def test_a_process_saves_checkpoints_too(
    api: Fleet, broker: BrokerSpace, tmp_path: Path
) -> None:
    app = Executor("stages", version="1")
    app.task(JOB, effects="none", runs_in="process")(work)
    async with executing(app, settings_of(api, broker, tmp_path)):
        await registered(api, "node-1")
        task_id = await api.submit(type="job", input={"do": "stages"})
        assert (await result(api, task_id))["output"] == {"said": "from stage 1", "number": 1}
    assert (await view(api, task_id))["progress"]["message"] == "half of it"


async def tell(
    api: Fleet, incarnation: str, *progress: dict[str, Any]
) -> list[tuple[str, str | None]]:
    reply = await api.executor.post(
        "/v1/nodes/node-1/progress", {"incarnation": incarnation, "progress": list(progress)}
    )
    assert reply.status_code == 200, reply.text
    return [(each["outcome"], each.get("code")) for each in reply.json()["replies"]]


def of(assignment: Any, **values: Any) -> dict[str, Any]:
    about = {name: assignment[name] for name in ("task_id", "attempt_id", "fencing_token")}
    return {**about, **values}


REFUSED = "refused"


@pytest.mark.requirement("LEASE-02")
async def test_only_the_current_attempt_under_a_live_lease_is_listened_to(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker) as api, session(database.owner_url) as owner:
        incarnation = await api.register()
        task_id = await api.submit()
        first = await api.assigned(incarnation, task_id)
        assert await tell(api, incarnation, of(first)) == [(REFUSED, Code.WRONG_STATE)]
        await api.report(incarnation, first, "take")
        saved = of(first, checkpoint={"row": 7}, fraction=0.5, message="half")
        assert await tell(api, incarnation, saved) == [("recorded", None)]
        other = "00000000-0000-4000-8000-000000000000"
        wrong = [
            of({**first, "attempt_id": other}, fraction=1.0),
            of({**first, "task_id": other}, fraction=1.0),
            of({**first, "fencing_token": first["fencing_token"] - 1}, fraction=1.0),
            of(first, fraction=0.75),
        ]
        assert await tell(api, incarnation, *wrong) == [
            (REFUSED, Code.UNKNOWN_ATTEMPT),
            (REFUSED, Code.UNKNOWN_ATTEMPT),
            (REFUSED, Code.STALE_TOKEN),
            ("recorded", None),
        ]
        assert await tell(api, other, of(first)) == [(REFUSED, Code.WRONG_NODE)]
        await end_lease(owner, first["attempt_id"])
        second = first
        while second["attempt_id"] == first["attempt_id"]:
            second = await api.assigned(incarnation, task_id)
        assert await tell(api, incarnation, of(first, checkpoint="late")) == [
            (REFUSED, Code.NOT_CURRENT)
        ]
        taken = await api.report(incarnation, second, "take")
        assert taken.checkpoint == {"row": 7}
        assert await tell(api, incarnation, of(second, message="mine")) == [("recorded", None)]
        progress = (await view(api, task_id))["progress"]
    assert (progress["fencing_token"], progress["fraction"]) == (second["fencing_token"], None)
    assert progress["checkpoint_fencing_token"] == first["fencing_token"]


async def test_what_is_too_large_refuses_itself_only(api: Fleet) -> None:
    incarnation = await api.register()
    taken = []
    for task_id in [await api.submit(), await api.submit()]:
        taken.append(await api.assigned(incarnation, task_id))
        await api.report(incarnation, taken[-1], "take")
    large = of(taken[0], checkpoint="x" * CHECKPOINT_LIMIT_BYTES)
    assert await tell(api, incarnation, large, of(taken[1], checkpoint=1)) == [
        (REFUSED, Code.PAYLOAD_TOO_LARGE),
        ("recorded", None),
    ]


@pytest.mark.requirement("OPS-08")
async def test_an_erased_task_keeps_no_checkpoint(api: Fleet) -> None:
    incarnation = await api.register()
    task_id = await api.submit()
    taken = await api.assigned(incarnation, task_id)
    await api.report(incarnation, taken, "take")
    await tell(api, incarnation, of(taken, checkpoint={"secret": 1}))
    await api.report(incarnation, taken, "deliver", output=1)
    reply = await api.operator.post(f"/v1/tasks/{task_id}/erase", {"reason": "asked for"})
    assert reply.status_code == 200, reply.text
    assert (await view(api, task_id))["progress"] is None
