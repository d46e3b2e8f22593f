"""A request that waited in vain says how things are now, not how they were when it began."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tenure.contract.states import Phase, TaskState
from tenure.contract.tasks import TaskResult
from tenure.coordinator.api.applications import Applications, WaitQuery
from tenure.coordinator.api.endpoint import Call
from tenure.coordinator.store.views import Ended, ResultAt
from tenure.coordinator.waiters import Waiters

TASK = "01890a5d-ac96-774b-bcce-b302099a8057"


class Reads:
    """A task that is further at each look."""

    def __init__(self, *phases: Phase) -> None:
        self.phases = list(phases)

    async def result(self, tenant: str, task_id: str) -> ResultAt:
        result: dict[str, Any] = dict.fromkeys(TaskResult.model_fields)
        phase = self.phases.pop(0)
        result |= {"task_id": task_id, "state": TaskState.OPEN, "phase": phase, "erased": False}
        return ResultAt(TaskResult.model_validate(result), head=1, enqueued=None)


class Request:
    """A client that stays."""

    async def receive(self) -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError("not reached")


async def nothing_ends(position: int) -> Ended:
    return Ended(position, position, ())


async def test_a_wait_that_is_over_answers_with_the_state_of_that_moment() -> None:
    applications = Applications(
        admission=cast(Any, None),
        reads=cast(Any, Reads(Phase.WAITING, Phase.RUNNING)),
        waiters=Waiters(nothing_ends, interval_seconds=1.0, max_waiters=1),
        payload_limit_bytes=1,
    )
    call = SimpleNamespace(
        path=lambda name: TASK,
        query=lambda model: WaitQuery(wait=0.001),
        identity=SimpleNamespace(tenant="default"),
        request=SimpleNamespace(receive=Request().receive),
    )
    answer = await applications.result(cast(Call, call))
    assert cast(TaskResult, answer.model).phase is Phase.RUNNING
