"""Handlers that are watched: whether they had control, and what they ended with."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tenure.contract.ids import AttemptId
from tenure.executor.context import Context
from tenure.executor.declare import HandlerDeclaration


@dataclass(slots=True)
class Run:
    """A handler that had control. ``ended``: it has it no more."""

    raised: BaseException | None = None
    ended: bool = False


class Recording:
    """What was seen of the handlers of one fleet, by attempt."""

    def __init__(self) -> None:
        self.runs: dict[AttemptId, Run] = {}

    def watched(self, handlers: Mapping[str, HandlerDeclaration]) -> dict[str, HandlerDeclaration]:
        """The same handlers, watched. What runs in a process of its own is left as it is: another
        process imports it by name."""
        return {
            name: declaration
            if declaration.runs_in != "executor"
            else replace(declaration, handler=self._watched(declaration))
            for name, declaration in handlers.items()
        }

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
