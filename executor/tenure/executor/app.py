"""The program of an executor: task types, their handlers, and the resources they share."""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypeAlias, TypeVar, overload

from pydantic import BaseModel

from tenure.contract.isolation import Limits, OnAuthorityLoss
from tenure.contract.reports import Requirements, Resources
from tenure.contract.scope import Scope
from tenure.contract.states import Effects, Match
from tenure.contract.tasktype import TaskType
from tenure.executor.declare import (
    AsyncHandler,
    Command,
    EffectsName,
    Guards,
    HandlerDeclaration,
    MatchName,
    SyncHandler,
    TaskDecorator,
    declare,
)
from tenure.executor.errors import DeclarationError

InputT = TypeVar("InputT", bound=BaseModel)
OutputT = TypeVar("OutputT", bound=BaseModel)
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
LifespanT = TypeVar("LifespanT", bound=Lifespan)

DEFAULT_MAX_ATTEMPTS = 5


class Executor:
    """``app = Executor("hasher", version="1.0")``, run by ``tenure executor module:app``.

    ``name`` and ``version`` say which program a node runs; the node's own name is a setting.
    """

    def __init__(self, name: str, *, version: str) -> None:
        if not name or not version:
            raise DeclarationError("an executor needs a name and a version.")
        self.name = name
        self.version = version
        self._handlers: dict[str, HandlerDeclaration] = {}
        self._lifespan: Lifespan | None = None

    @property
    def handlers(self) -> Mapping[str, HandlerDeclaration]:
        """By name of the task type."""
        return self._handlers

    def refuse_empty(self) -> None:
        """Raises DeclarationError when there is no handler, and so nothing to run."""
        if not self.handlers:
            raise DeclarationError(
                f"executor {self.name!r} has no handlers.",
                next_step="Declare one with @app.task(...).",
            )

    def task(
        self,
        task_type: TaskType[InputT, OutputT],
        *,
        effects: Effects | EffectsName = Effects.IDEMPOTENT,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        resources: Resources | None = None,
        requirements: Requirements | None = None,
        match: Match | MatchName = Match.COMPATIBLE,
        cost_minor: int = 0,
        guards: Guards | None = None,
        runs_in: Literal["executor", "process"] = "executor",
        time_limit_seconds: float | None = None,
        limits: Limits | None = None,
        on_authority_loss: OnAuthorityLoss = "cancel",
        scope: Scope | None = None,
        concurrency: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> TaskDecorator[InputT, OutputT]:
        """Declare the handler of a task type: ``async def handler(input, context) -> output``.

        ``effects`` says what a lost attempt may have left behind (STATE-05): ``none``, ``guarded``
        (every effect goes through ``guards``), ``idempotent`` or ``unguarded``. ``max_attempts`` is
        the number of failures until the task stays failed; ``resources`` what one task takes
        besides its slot, ``requirements`` where it may run and what it must reach, ``cost_minor``
        what an attempt holds of the tenant's budget, in minor units. All of this is the workload
        profile, frozen in each task at its submission; with ``match="exact"`` only the very build
        that made the profile takes its tasks. ``guards`` gives the receivers whose fences are
        raised before the handler has control.

        A plain function runs in a thread. A thread cannot be ended from outside: at the end of
        authority it is left alone behind its guards, and its slot stays taken until it returns.
        With ``runs_in="process"`` it runs in a process of its own, one for each attempt, which is
        killed at the end of authority and of its time limit, and is held to ``resources`` and
        ``limits`` (LEASE-11); its ``context.resources`` is None, and its environment holds nothing
        of the executor's but ``environment``. ``time_limit_seconds`` cancels a coroutine and kills
        a process.

        ``on_authority_loss="isolate"`` lets a handler go on when its authority is over, for work
        that is too dear to throw away: no effect begins, and its output is kept as evidence that is
        never the active delivery. ``scope`` is what the lease permits to do, and to which objects;
        ``context.side_effect`` and the guards refuse anything else. None: anything.

        ``concurrency`` is how many tasks of the type a node of this executor runs at once, though
        it may have more slots; None: as many as slots. The coordinator knows and sends no more.

        Raises DeclarationError when the handler does not fit.
        """

        if not isinstance(task_type, TaskType):
            raise DeclarationError(
                f"{_name_of(task_type)} is no task type.", next_step="Write @app.task(TYPE, …)."
            )

        def add(handler: Callable[..., Any]) -> None:
            self._add(
                task_type,
                handler,
                effects=effects,
                max_attempts=max_attempts,
                resources=resources,
                requirements=requirements,
                match=match,
                cost_minor=cost_minor,
                guards=guards,
                runs_in=runs_in,
                time_limit_seconds=time_limit_seconds,
                limits=limits,
                on_authority_loss=on_authority_loss,
                scope=scope,
                concurrency=concurrency,
                environment=environment,
            )

        @overload
        def decorate(
            handler: AsyncHandler[InputT, OutputT], /
        ) -> AsyncHandler[InputT, OutputT]: ...
        @overload
        def decorate(handler: SyncHandler[InputT, OutputT], /) -> SyncHandler[InputT, OutputT]: ...
        def decorate(handler: Callable[..., Any], /) -> Callable[..., Any]:
            add(handler)
            return handler

        return decorate

    def command(
        self,
        task_type: TaskType[InputT, OutputT],
        program: str,
        *arguments: str,
        digest: str,
        environment: Mapping[str, str] | None = None,
        effects: Effects | EffectsName = Effects.IDEMPOTENT,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        resources: Resources | None = None,
        requirements: Requirements | None = None,
        match: Match | MatchName = Match.COMPATIBLE,
        cost_minor: int = 0,
        time_limit_seconds: float | None = None,
        limits: Limits | None = None,
        on_authority_loss: OnAuthorityLoss = "cancel",
        scope: Scope | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Declare that a program does the work of a task type.

        ``program`` is an absolute path, ``digest`` the SHA-256 of that file in hexadecimal, which
        is verified before each start. The program gets the input as JSON on its standard input and
        writes the output as JSON on its standard output; where the output model is a
        ``CommandResult``, whatever it writes and its exit status are the output. It finds the
        fencing token and the end of the lease in its environment, which holds nothing else of the
        executor's but ``environment``. Everything else as with ``task`` and ``runs_in="process"``.

        Raises DeclarationError for what does not fit.
        """
        if not program.startswith("/"):
            raise DeclarationError(f"{program!r} is no absolute path of a program.")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise DeclarationError(
                f"digest={digest!r} is no SHA-256 in hexadecimal.",
                next_step=f"Take what `sha256sum {program}` prints.",
            )
        self._add(
            task_type,
            self.command,
            effects=effects,
            max_attempts=max_attempts,
            resources=resources,
            requirements=requirements,
            match=match,
            cost_minor=cost_minor,
            guards=None,
            runs_in="command",
            time_limit_seconds=time_limit_seconds,
            limits=limits,
            on_authority_loss=on_authority_loss,
            scope=scope,
            concurrency=concurrency,
            command=Command(program, digest, arguments, tuple(sorted((environment or {}).items()))),
        )

    def _add(
        self, task_type: TaskType[Any, Any], handler: Callable[..., Any], **options: Any
    ) -> None:
        if not isinstance(task_type, TaskType):
            raise DeclarationError(
                f"{_name_of(task_type)} is no task type.", next_step="Write @app.task(TYPE, …)."
            )
        if task_type.name in self._handlers:
            raise DeclarationError(f"task type {task_type.name!r} has two handlers.")
        self._handlers[task_type.name] = declare(task_type, handler, **options)

    def lifespan(self, function: LifespanT) -> LifespanT:
        """Declare what opens and closes the resources that handlers share.

        ``function`` is an ``@asynccontextmanager`` that yields any object; handlers find it as
        ``context.resources``. It is entered before the node registers.
        """
        if self._lifespan is not None:
            raise DeclarationError("an executor has one lifespan, this is a second.")
        self._lifespan = function
        return function

    def open_resources(self) -> AbstractAsyncContextManager[Any]:
        """The lifespan, entered by the runtime; yields None where none was declared."""
        return _no_resources() if self._lifespan is None else self._lifespan()


def _name_of(value: object) -> str:
    return getattr(value, "__name__", None) or repr(value)


@asynccontextmanager
async def _no_resources() -> AsyncIterator[None]:
    yield None
