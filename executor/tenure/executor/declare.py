"""Declarations of handlers, checked when their module is imported."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    get_type_hints,
    overload,
)

from pydantic import BaseModel

from tenure.contract.isolation import Limits, OnAuthorityLoss, RunsIn
from tenure.contract.reports import (
    MAX_COST_MINOR,
    MAX_SLOTS,
    Requirements,
    Resources,
    TaskTypeDeclaration,
)
from tenure.contract.scope import UNLIMITED, Scope
from tenure.contract.states import Effects, Match
from tenure.contract.tasktype import TaskType
from tenure.executor.context import Context
from tenure.executor.errors import DeclarationError
from tenure.executor.guards import Guard
from tenure.executor.isolation.declaring import check_isolation

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)

AsyncHandler: TypeAlias = Callable[[InputT, Context[Any]], Awaitable[OutputT]]
SyncHandler: TypeAlias = Callable[[InputT, Context[Any]], OutputT]
MatchName: TypeAlias = Literal["compatible", "exact"]
EffectsName: TypeAlias = Literal["none", "guarded", "idempotent", "unguarded"]
Guards: TypeAlias = Callable[[Any], Sequence[Guard]]
"""From the lifespan's resources to the receivers whose fences are raised before the handler."""


NO_LIMITS: Final = Limits()


class TaskDecorator(Protocol, Generic[InputT, OutputT]):
    """What ``@app.task(...)`` is: gives the handler back as it was."""

    @overload
    def __call__(
        self, handler: AsyncHandler[InputT, OutputT], /
    ) -> AsyncHandler[InputT, OutputT]: ...
    @overload
    def __call__(
        self, handler: SyncHandler[InputT, OutputT], /
    ) -> SyncHandler[InputT, OutputT]: ...


class CommandResult(BaseModel):
    """The output of a command whose exit status is part of the result. Texts are what it wrote, as
    UTF-8; of its standard error the end."""

    exit_status: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Command:
    """A program: an absolute path, the SHA-256 of the file, and what it is started with."""

    program: str
    digest: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class HandlerDeclaration:
    """One task type that this executor runs."""

    task_type: TaskType[Any, Any]
    handler: Callable[[Any, Context[Any]], Any]
    is_async: bool
    effects: Effects
    max_attempts: int
    resources: Resources
    requirements: Requirements
    match: Match
    cost_minor: int
    guards: Guards | None
    runs_in: RunsIn = "executor"
    time_limit_seconds: float | None = None
    limits: Limits = NO_LIMITS
    on_authority_loss: OnAuthorityLoss = "cancel"
    command: Command | None = None
    scope: Scope = UNLIMITED
    concurrency: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold secrets

    def to_wire(self) -> TaskTypeDeclaration:
        """As sent with the registration."""
        return TaskTypeDeclaration(
            name=self.task_type.name,
            effects=self.effects,
            max_attempts=self.max_attempts,
            resources=self.resources,
            requirements=self.requirements,
            match=self.match,
            cost_minor=self.cost_minor,
            runs_in=self.runs_in,
            time_limit_seconds=self.time_limit_seconds,
            limits=self.limits,
            on_authority_loss=self.on_authority_loss,
            scope=self.scope,
            program_digest=None if self.command is None else self.command.digest,
            input_schema=self.task_type.input.model_json_schema(),
            output_schema=self.task_type.output.model_json_schema(),
        )


def declare(
    task_type: TaskType[Any, Any],
    handler: Callable[[Any, Context[Any]], Any],
    *,
    effects: Effects | EffectsName,
    max_attempts: int,
    resources: Resources | None,
    requirements: Requirements | None,
    match: Match | MatchName,
    cost_minor: int,
    guards: Guards | None,
    runs_in: RunsIn = "executor",
    time_limit_seconds: float | None = None,
    limits: Limits | None = None,
    on_authority_loss: OnAuthorityLoss = "cancel",
    command: Command | None = None,
    scope: Scope | None = None,
    concurrency: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> HandlerDeclaration:
    """A checked declaration. Raises DeclarationError that says what to change."""
    where = f"the handler of task type {task_type.name!r}"
    try:
        declared_effects = Effects(effects)
    except ValueError:
        known = ", ".join(repr(each.value) for each in Effects)
        raise DeclarationError(
            f"effects={effects!r} of {where} is not known: it is one of {known}."
        ) from None
    if declared_effects is Effects.GUARDED and guards is None:
        raise DeclarationError(
            f"{where} declares effects='guarded' and names no guard.",
            next_step="Pass guards=lambda resources: [resources.…]: the receivers it writes to.",
        )
    if not 1 <= max_attempts <= 1000:
        raise DeclarationError(f"max_attempts={max_attempts} of {where} is not in 1 … 1000.")
    try:
        declared_match = Match(match)
    except ValueError:
        raise DeclarationError(
            f"match={match!r} of {where} is not known: it is 'compatible' or 'exact'."
        ) from None
    if not 0 <= cost_minor <= MAX_COST_MINOR:
        raise DeclarationError(f"cost_minor={cost_minor} of {where} is not in 0 … 10**15.")
    if concurrency is not None and not 1 <= concurrency <= MAX_SLOTS:
        raise DeclarationError(f"concurrency={concurrency} of {where} is not in 1 … {MAX_SLOTS}.")
    if command is None:
        _check_signature(task_type, handler, where)
    is_async = _is_async(handler)
    check_isolation(
        task_type, handler, where, runs_in=runs_in, is_async=is_async,
        time_limit_seconds=time_limit_seconds, limits=limits, on_authority_loss=on_authority_loss,
        environment=environment,
    )  # fmt: skip
    return HandlerDeclaration(
        task_type=task_type,
        handler=handler,
        is_async=is_async,
        effects=declared_effects,
        max_attempts=max_attempts,
        resources=resources or Resources(),
        requirements=requirements or Requirements(),
        match=declared_match,
        cost_minor=cost_minor,
        guards=guards,
        runs_in=runs_in,
        time_limit_seconds=time_limit_seconds,
        limits=limits or NO_LIMITS,
        on_authority_loss=on_authority_loss,
        command=command,
        scope=scope or UNLIMITED,
        concurrency=concurrency,
        environment=dict(environment or {}),
    )


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - asks what kind of call it is, not whether
    )


def _check_signature(
    task_type: TaskType[Any, Any], handler: Callable[..., Any], where: str
) -> None:
    if not callable(handler):
        raise DeclarationError(f"{where} is no function.")
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise DeclarationError(f"{where} yields; it must return one {task_type.output.__name__}.")
    try:
        inspect.signature(handler).bind(object(), object())
    except TypeError:
        raise DeclarationError(
            f"{where} does not take two arguments.",
            next_step=f"Write it as handler(input: {task_type.input.__name__}, context: Context).",
        ) from None
    try:
        hints = get_type_hints(handler)
    except (NameError, TypeError):
        return  # names that exist for the type checker only: it has judged them
    parameters = list(inspect.signature(handler).parameters.values())
    accepted = hints.get(parameters[0].name)
    if isinstance(accepted, type) and not issubclass(task_type.input, accepted):
        raise DeclarationError(
            f"{where} takes {accepted.__name__}, the task type's input is"
            f" {task_type.input.__name__}."
        )
    returned = hints.get("return")
    if returned is type(None) or (
        isinstance(returned, type)
        and not issubclass(returned, task_type.output)
        and not issubclass(returned, Awaitable)
    ):
        raise DeclarationError(
            f"{where} returns {'None' if returned is type(None) else returned.__name__},"
            f" the task type's output is {task_type.output.__name__}."
        )
