"""For programs that do the work: declare handlers, run them under leases and fencing tokens."""

from tenure.contract.isolation import Limits
from tenure.contract.reports import Requirements, Resources
from tenure.contract.scope import Scope
from tenure.contract.tasktype import TaskType
from tenure.executor.app import Executor
from tenure.executor.context import Context
from tenure.executor.declare import CommandResult
from tenure.executor.errors import AuthorityOver, Fail, OutOfScope, Retry, StaleToken

__all__ = [
    "AuthorityOver",
    "CommandResult",
    "Context",
    "Executor",
    "Fail",
    "Limits",
    "OutOfScope",
    "Requirements",
    "Resources",
    "Retry",
    "Scope",
    "StaleToken",
    "TaskType",
]
