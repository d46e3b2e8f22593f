"""Commands that make the authority record every kind of event."""

from datetime import timedelta
from uuid import uuid4

from tenure.contract.codes import Reason
from tenure.contract.ids import CommandId, IncarnationId, NodeId
from tenure.contract.states import Effects, NodeState
from tenure.coordinator.core.commands import (
    ChangeNode,
    ConfirmCancel,
    Fail,
    Quarantine,
    ReceiveCancel,
    Reject,
)
from tests.support.authority import TENANT, Bench


async def everything_that_can_happen(bench: Bench) -> None:
    """Every kind of event, by the commands that cause them."""
    await bench.register("node-2", slots=100, types=["sha256"])
    await bench.register("node-3", types=["unguarded"], effects=Effects.UNGUARDED)
    await bench.deliver(await bench.running())
    failing = await bench.running()
    await bench.report(
        Fail, failing, reason=Reason.HANDLER_FAILED, message="it broke", retryable=True
    )
    await bench.report(
        Fail, await bench.running(), reason="no such file", message="", retryable=False
    )
    rejected = await bench.assigned(await bench.submit())
    await bench.report(Reject, rejected, reason=Reason.UNKNOWN_TYPE, message="")
    cancelled = await bench.running()
    await bench.cancel(cancelled.task_id)
    await bench.report(ReceiveCancel, cancelled)
    await bench.report(ConfirmCancel, cancelled)
    lost = await bench.running()
    await bench.end_lease(lost)
    await bench.expire(lost.task_id)
    held = await bench.running(type="unguarded")
    await bench.end_lease(held)
    await bench.expire(held.task_id)
    await bench.release(held.task_id)
    await bench.hold(held.task_id)
    late = await bench.submit(type="unguarded")
    await bench.owner.execute(
        "update tenure.tasks set deadline = clock_timestamp() - $2::interval where task_id = $1",
        late,
        timedelta(milliseconds=1),
    )
    await bench.expire(late)
    node = await bench.register("node-4", types=["other"])
    await _change(bench, "node-4", node, NodeState.DRAINING)
    quarantine = Quarantine(
        CommandId(str(uuid4())), b"", TENANT, "operator", NodeId("node-4"), "its key has leaked"
    )
    assert (await bench.authority.quarantine(quarantine)).reply is not None
    await _change(bench, "node-4", node, NodeState.GONE)
    trace = "00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01"
    await bench.submit(traceparent=trace)


async def _change(bench: Bench, node_id: str, node: IncarnationId, state: NodeState) -> None:
    command_id = CommandId(str(uuid4()))
    outcome = await bench.authority.change_node(
        ChangeNode(command_id, state.encode(), TENANT, "executor", NodeId(node_id), node, state)
    )
    assert outcome.refused is None, outcome
