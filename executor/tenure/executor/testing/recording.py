"""Handlers that are watched, wherever they run: whether they had control, what they ended with."""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from tenure.contract.ids import AttemptId
from tenure.contract.isolation import Enforcement
from tenure.executor.app import Executor
from tenure.executor.context import Context
from tenure.executor.declare import HandlerDeclaration
from tenure.executor.isolation.sandbox import Record, Sandbox
from tenure.executor.lease import Lease
from tenure.executor.testing.fleet import OPENED_BY_THE_LIFESPAN


@dataclass(slots=True)
class Run:
    """A handler that had control. ``ended``: it has it no more. One in a process of its own
    ``began`` when the process did."""

    began: bool = True
    raised: BaseException | None = None
    ended: bool = False


class Recording:
    """What was seen of the handlers of one fleet, by attempt."""

    def __init__(self) -> None:
        self.runs: dict[AttemptId, Run] = {}

    def began(self, attempt_id: AttemptId) -> bool:
        """Whether a handler had control."""
        run = self.runs.get(attempt_id)
        return run is not None and run.began

    def raised(self, attempt_id: AttemptId) -> BaseException | None:
        """What a handler ended with."""
        run = self.runs.get(attempt_id)
        return None if run is None else run.raised

    def watched(self, handlers: Mapping[str, HandlerDeclaration]) -> dict[str, HandlerDeclaration]:
        """The same handlers, watched. What runs in a process of its own is left as it is, since
        that process imports it by name: the sandbox is watched."""
        return {
            name: declaration
            if declaration.runs_in != "executor"
            else replace(declaration, handler=self._watched(declaration))
            for name, declaration in handlers.items()
        }

    def sandbox(self, *args: Any, **options: Any) -> Sandbox:
        """A sandbox whose processes are watched."""
        return WatchedSandbox(self, *args, **options)

    def _watched(self, declaration: HandlerDeclaration) -> Any:
        handler = declaration.handler
        if declaration.is_async:

            @functools.wraps(handler)
            async def awaited(input: Any, context: Context[Any]) -> Any:
                run = self.runs[context.attempt_id] = Run()
                try:
                    return await handler(input, context)
                except BaseException as error:
                    run.raised = error
                    raise
                finally:
                    run.ended = True

            return awaited

        @functools.wraps(handler)
        def called(input: Any, context: Context[Any]) -> Any:
            run = self.runs[context.attempt_id] = Run()
            try:
                return handler(input, context)
            except BaseException as error:
                run.raised = error
                raise
            finally:
                run.ended = True

        return called


class WatchedSandbox(Sandbox):
    """Runs processes, and notes of each attempt what its process has told."""

    def __init__(self, recording: Recording, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._recording = recording

    async def run(
        self, declaration: HandlerDeclaration, input: BaseModel, context: Context[Any],
        lease: Lease, record: Record,
    ) -> object:  # fmt: skip
        """As it does."""
        run = self._recording.runs[context.attempt_id] = Run(began=False)

        def begun(enforced: Enforcement) -> None:
            run.began = True
            record(enforced)

        try:
            return await super().run(declaration, input, context, lease, begun)
        except BaseException as error:
            run.raised = error
            raise
        finally:
            run.ended = True


class WatchedExecutor(Executor):
    """An executor as it was declared, with watched handlers and the test's resources."""

    def __init__(self, app: Executor, recording: Recording, resources: Any) -> None:
        super().__init__(app.name, version=app.version)
        self._watched = recording.watched(app.handlers)
        self._opened = opened(app, resources)

    @property
    def handlers(self) -> Mapping[str, HandlerDeclaration]:
        """By name of the task type."""
        return self._watched

    def open_resources(self) -> AbstractAsyncContextManager[Any]:
        """What the test has given, or the lifespan."""
        return self._opened()


def opened(app: Executor, resources: Any) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """What a node enters: the lifespan, or what the test has given in its place."""
    if resources is OPENED_BY_THE_LIFESPAN:
        return app.open_resources

    @asynccontextmanager
    async def given() -> AsyncIterator[Any]:
        yield resources

    return given
