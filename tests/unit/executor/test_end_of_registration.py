"""An executor that is ended while it registers says goodbye all the same."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from tenure.executor import Context, Executor, TaskType
from tenure.executor.config import load_settings
from tenure.executor.runner import run_until
from tenure.executor.stopping import Stopping
from tests.support.coordinator_stand_in import StandIn, coordinator_stand_in


class Nothing(BaseModel):
    """Input and output."""


app = Executor("late", version="1")


@app.task(TaskType("nothing", input=Nothing, output=Nothing), effects="none")
async def nothing(input: Nothing, context: Context[None]) -> Nothing:
    return input


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with coordinator_stand_in() as made:
        yield made


@pytest.mark.requirement("OPS-03")
async def test_a_registration_that_arrives_during_the_drain_is_taken_back(
    stand_in: StandIn, tmp_path: Path
) -> None:
    arrived, may_answer = threading.Event(), threading.Event()

    def answer(method: str, path: str, body: bytes) -> Response:
        if path.endswith("/drain"):
            return Response(status_code=204)
        arrived.set()
        may_answer.wait(60)
        asked = json.loads(body)
        return JSONResponse(
            {
                "node_id": asked["node_id"],
                "incarnation": asked["incarnation"],
                "queue": "",
                "events_exchange": "",
                "lease": {
                    "duration_seconds": 30,
                    "renewal_interval_seconds": 10,
                    "clock_tolerance_seconds": 1,
                    "policy_version": 1,
                },
            }
        )

    stand_in.answer = answer
    settings = load_settings(
        url=stand_in.url, token="t" * 16, no_broker=True, state_dir=tmp_path, node="late"
    )
    stopping = Stopping(0.0)
    running = asyncio.create_task(run_until(app, settings, stopping))
    assert await asyncio.to_thread(arrived.wait, 60)
    stopping.ask()
    await asyncio.sleep(0)
    may_answer.set()
    await running
    registration, goodbye = stand_in.requests
    said = json.loads(goodbye[2])
    assert said["gone"] is True
    assert said["incarnation"] == json.loads(registration[2])["incarnation"]
