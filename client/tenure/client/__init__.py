"""For applications: submit tasks and wait for their results."""

from tenure.client.async_client import AsyncClient
from tenure.client.errors import (
    BatchRefused,
    ClientError,
    EnqueueRefused,
    NotDelivered,
    Refused,
    ResultTimeout,
    TaskCancelled,
    TaskExpired,
    TaskFailed,
    TaskHeld,
    Unreachable,
    UnreadableReply,
)
from tenure.client.handles import AsyncTaskHandle, TaskHandle
from tenure.client.intake import enqueue
from tenure.client.settings import NotConfigured
from tenure.client.sync_client import Client
from tenure.contract.scope import Scope
from tenure.contract.tasktype import TaskType

__all__ = [
    "AsyncClient",
    "AsyncTaskHandle",
    "BatchRefused",
    "Client",
    "ClientError",
    "EnqueueRefused",
    "NotConfigured",
    "NotDelivered",
    "Refused",
    "ResultTimeout",
    "Scope",
    "TaskCancelled",
    "TaskExpired",
    "TaskFailed",
    "TaskHandle",
    "TaskHeld",
    "TaskType",
    "Unreachable",
    "UnreadableReply",
    "enqueue",
]
