"""The endpoints of what operators say about single tasks."""

from tenure.contract.codes import Code
from tenure.contract.scheduling import ProfileMove
from tenure.contract.tasks import (
    Erasure,
    ErasureRequest,
    HoldRequest,
    InterventionReply,
    ReceiptList,
    RetryReply,
)
from tenure.coordinator.api.applications import NEVER_TAKEN_IN
from tenure.coordinator.api.endpoint import READERS, Endpoint
from tenure.coordinator.api.executors import Nothing
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.interventions import Interventions
from tenure.coordinator.identities import Role

_OPERATORS = frozenset({Role.OPERATOR})
_REFUSALS = (Code.NOT_FOUND, Code.WRONG_STATE, *NEVER_TAKEN_IN)


def intervention_endpoints(tasks: Interventions, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints under ``/v1/tasks/{task_id}``."""
    return (
        Endpoint(
            "GET",
            "/v1/tasks/{task_id}/receipts",
            "list_receipts",
            "Read every delivery submission of a task, active or kept as evidence",
            READERS,
            tasks.receipts,
            ReceiptList,
            codes=(Code.NOT_FOUND, *NEVER_TAKEN_IN),
        ),
        Endpoint(
            "POST",
            "/v1/tasks/{task_id}/erase",
            "erase",
            "Erase the input, outputs and messages of an ended task; its record stays",
            _OPERATORS,
            tasks.erase,
            Erasure,
            body=ErasureRequest,
            gate=gate,
            codes=_REFUSALS,
        ),
        Endpoint(
            "POST",
            "/v1/tasks/{task_id}/hold",
            "hold",
            "Hold a task: it begins nothing until it is released",
            _OPERATORS,
            tasks.hold,
            InterventionReply,
            body=HoldRequest,
            gate=gate,
            codes=_REFUSALS,
        ),
        Endpoint(
            "POST",
            "/v1/tasks/{task_id}/profile",
            "move_profile",
            "Move a waiting task to another profile of its type",
            _OPERATORS,
            tasks.move_profile,
            InterventionReply,
            body=ProfileMove,
            gate=gate,
            codes=_REFUSALS,
        ),
        Endpoint(
            "POST",
            "/v1/tasks/{task_id}/release",
            "release",
            "Release a held task: it waits for a node again",
            _OPERATORS,
            tasks.release,
            InterventionReply,
            body=Nothing,
            gate=gate,
            codes=_REFUSALS,
        ),
        Endpoint(
            "POST",
            "/v1/tasks/{task_id}/retry",
            "retry",
            "Try a task again now; one that has ended without a delivery as a new task",
            _OPERATORS,
            tasks.retry,
            RetryReply,
            body=Nothing,
            gate=gate,
            codes=_REFUSALS,
        ),
    )
