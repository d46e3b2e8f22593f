"""What a declaration may say about the process that its handler runs in."""

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from tenure.contract.isolation import (
    MAX_TIME_LIMIT_SECONDS,
    Limits,
    OnAuthorityLoss,
    RunsIn,
)
from tenure.contract.tasktype import TaskType
from tenure.executor.errors import DeclarationError

_OURS: Final = frozenset({"PYTHONPATH", "TENURE_CHANNEL"})


def check_isolation(
    task_type: TaskType[Any, Any],
    handler: Callable[..., Any],
    where: str,
    *,
    runs_in: RunsIn,
    is_async: bool,
    time_limit_seconds: float | None,
    limits: Limits | None,
    on_authority_loss: OnAuthorityLoss,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Raises DeclarationError for what could not be kept."""
    if runs_in not in get_args(RunsIn):
        raise DeclarationError(
            f"runs_in={runs_in!r} of {where} is not known: it is 'executor' or 'process'."
        )
    if on_authority_loss not in get_args(OnAuthorityLoss):
        raise DeclarationError(
            f"on_authority_loss={on_authority_loss!r} of {where} is not known: it is 'cancel' or"
            " 'isolate'."
        )
    if time_limit_seconds is not None and not 0 < time_limit_seconds <= MAX_TIME_LIMIT_SECONDS:
        raise DeclarationError(
            f"time_limit_seconds={time_limit_seconds!r} of {where} is not in 0 …"
            f" {MAX_TIME_LIMIT_SECONDS}."
        )
    if runs_in == "executor":
        if limits is not None:
            raise DeclarationError(
                f"{where} has limits and runs in the executor, which cannot be held to them.",
                next_step="Declare it with runs_in='process'.",
            )
        if environment is not None:
            raise DeclarationError(
                f"{where} has an environment of its own and runs in the executor, in the"
                " executor's.",
                next_step="Declare it with runs_in='process'.",
            )
        if time_limit_seconds is not None and not is_async:
            raise DeclarationError(
                f"{where} has a time limit and runs in a thread, which cannot be ended.",
                next_step="Declare it with runs_in='process', or make it an async def.",
            )
        return
    if runs_in == "process":
        if is_async:
            raise DeclarationError(
                f"{where} runs in a process of its own and is an async def.",
                next_step="Make it a plain def.",
            )
        for what in (handler, task_type.input):
            _check_importable(what, where)
        if reserved := sorted(name for name in environment or {} if name in _OURS):
            raise DeclarationError(f"the environment of {where} cannot set {', '.join(reserved)}.")


def _check_importable(what: Any, where: str) -> None:
    name, module = getattr(what, "__qualname__", ""), getattr(what, "__module__", "__main__")
    if not name or "<locals>" in name or "[" in name or module == "__main__":
        raise DeclarationError(
            f"{where} runs in a process of its own, which cannot import"
            f" {name or type(what).__name__!r} of {module}.",
            next_step="Define it in a module, at its outermost level.",
        )
