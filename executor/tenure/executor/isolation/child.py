"""The process of a handler: ``python -m tenure.executor.isolation.child``.

Reads one request from its channel, calls the handler, writes one answer. When the channel closes
under it the executor is gone, and this process ends with everything that it has started.
"""

import asyncio
import errno
import importlib
import json
import os
import queue
import signal
import socket
import threading
import traceback
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_json

from tenure.contract.codec import check_value
from tenure.contract.codes import Reason
from tenure.contract.errors import InvalidPayload
from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.contract.scope import Scope
from tenure.executor.app import Executor
from tenure.executor.context import Context
from tenure.executor.errors import (
    AuthorityError,
    AuthorityOver,
    CheckpointRefused,
    Fail,
    OutOfScope,
    Retry,
    StaleToken,
)
from tenure.executor.handlers import call
from tenure.executor.isolation.shared import Cell, SharedLease
from tenure.executor.lease import Lease
from tenure.executor.progress import as_said, checkpoint_value
from tenure.executor.side_effects import SideEffect, SideEffects
from tenure.executor.user_text import storable, text_of

_POLL_SECONDS: Final = 0.05
_TRACEBACK_CHARACTERS: Final = 20_000
_MESSAGE_CHARACTERS: Final = 20_000


class ProcessContext(Context[Any]):
    """As in the executor. ``resources`` is what this process has opened itself, if anything."""

    def __init__(self, parts: "Parts", request: dict[str, Any], resources: object = None) -> None:
        cell, lease = parts.cell, parts.lease
        super().__init__(
            lease=cast(Lease, lease),
            task_type=request["task_type"],
            resources=resources,
            ordinal=request["ordinal"],
            scope=Scope.model_validate(request["scope"]),
            input=request["scope_fields"],
            narrowed=None
            if request["narrowed"] is None
            else Scope.model_validate(request["narrowed"]),
            traceparent=request["traceparent"],
            last_checkpoint=request["last_checkpoint"],
            recorder=parts.channel,
        )
        self._cell = cell
        self._effects = SideEffects(parts.channel.tell_effect)
        threading.Thread(target=self._listen, name="tenure-stop", daemon=True).start()

    def _listen(self) -> None:
        while not self._cell.read()[3]:
            threading.Event().wait(_POLL_SECONDS)
        self.ask_to_end()


class Channel:
    """What is said to the executor while the handler runs; each checkpoint is answered."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()

    def request(self) -> dict[str, Any]:
        """What to do; from then on answers are taken in, until the executor is gone."""
        request: dict[str, Any] = json.loads(self._file.readline())
        threading.Thread(target=self._listen, name="tenure-channel", daemon=True).start()
        return request

    def say(self, line: bytes) -> None:
        """One line. From any thread."""
        with self._lock:
            self._connection.sendall(line + b"\n")

    def note(self, lease: Lease, fraction: float | None, message: str | None) -> None:
        """The work is so far."""
        fraction, message = as_said(fraction, message)
        self.say(to_json({"kind": "progress", "fraction": fraction, "message": message}))

    def tell_effect(self, effect: SideEffect) -> None:
        """One begins, or has ended. The executor is told before anything can have happened."""
        said = {"name": effect.name, "id": effect.id, "state": effect.state}
        self.say(to_json({"kind": "effect", **said}))

    async def save(self, lease: Lease, data: Any) -> None:
        """Save a checkpoint. Raises as the executor's does."""
        await asyncio.to_thread(self.save_from_thread, lease, data)

    def save_from_thread(self, lease: Lease, data: Any) -> None:
        """The same, and wait."""
        with self._saving:
            self.say(to_json({"kind": "checkpoint", "data": checkpoint_value(data)}))
            answer = self._answers.get()
        match answer["kind"]:
            case "authority_over":
                raise AuthorityOver(answer["message"])
            case "refused":
                raise CheckpointRefused(answer["message"])

    def _listen(self) -> None:
        for line in self._file:
            self._answers.put(json.loads(line))
        os.killpg(0, signal.SIGKILL)  # the executor is gone


@dataclass(frozen=True, slots=True)
class Parts:
    """What belongs to the attempt in this process."""

    cell: Cell
    lease: SharedLease
    channel: Channel


def main() -> None:
    """One request, one answer."""
    descriptor, memory = (int(each) for each in os.environ.pop("TENURE_CHANNEL").split(","))
    with socket.socket(fileno=descriptor) as connection:
        channel = Channel(connection)
        request = channel.request()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is told by its context, then killed
        cell = Cell(memory)
        lease = SharedLease(
            cell,
            task_id=TaskId(request["task_id"]),
            attempt_id=AttemptId(request["attempt_id"]),
            fencing_token=FencingToken(request["fencing_token"]),
            tolerance_seconds=request["tolerance_seconds"],
        )
        channel.say(_run(request, Parts(cell, lease, channel)))


def _run(request: dict[str, Any], parts: Parts) -> bytes:
    """The answer, whatever happens in the handler."""
    try:
        if request["application"] is None:
            output = _found(request["handler"])(
                _input(_found(request["input_type"]), request), ProcessContext(parts, request)
            )
        else:
            output = asyncio.run(_run_alone(_found(request["application"]), request, parts))
        return _given(output)
    except Fail as error:
        return _answer("fail", reason=error.reason, message=error.message)
    except Retry as error:
        return _answer("retry", message=error.message, after_seconds=error.after_seconds)
    except OutOfScope as error:
        return _answer("out_of_scope", message=error.message)
    except AuthorityError as error:
        seen = error.seen_token if isinstance(error, StaleToken) else None
        return _answer("authority_over", message=error.message, seen_token=seen)
    except asyncio.CancelledError:
        return _answer("stopped")
    except MemoryError:
        return _failed(Reason.RESOURCE_LIMIT, "it needed more memory than its reservation")
    except OSError as error:
        limited = error.errno in (errno.EFBIG, errno.EMFILE)  # its limits of files
        reason = Reason.RESOURCE_LIMIT if limited else Reason.HANDLER_FAILED
        return _failed(reason, f"{type(error).__name__}: {text_of(error)}")
    except BaseException as error:  # noqa: BLE001 - the executor tells the coordinator
        return _failed(Reason.HANDLER_FAILED, f"{type(error).__name__}: {text_of(error)}")


def _given(output: object) -> bytes:
    """An output, or what is wrong with it: NaN would be written as null, and lost silently."""
    try:
        check_value(output.model_dump() if isinstance(output, BaseModel) else output, "the output")
        return to_json({"kind": "output", "output": output})
    except (InvalidPayload, PydanticSerializationError) as error:
        return _failed(Reason.OUTPUT_INVALID, text_of(error))


def _answer(kind: str, **said: Any) -> bytes:
    """Words of the handler's as they can be told: any of them may hold what is no text."""
    for name in ("reason", "message"):
        if name in said:
            said[name] = storable(said[name], _MESSAGE_CHARACTERS)
    return to_json({"kind": kind, **said})


async def _run_alone(app: Executor, request: dict[str, Any], parts: Parts) -> object:
    """A handler that is declared to run in the executor, with resources of its own. The fences of
    its guards were raised by the executor."""
    declaration = app.handlers[request["task_type"]]
    async with app.open_resources() as resources:
        context = ProcessContext(parts, request, resources)
        handler = asyncio.ensure_future(
            call(declaration, _input(declaration.task_type.input, request), context)
        )
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            loop.call_soon_threadsafe(handler.cancel)

        with context.told_to_end(cancel):
            return await handler


def _input(model: type[BaseModel], request: dict[str, Any]) -> BaseModel:
    return model.model_validate_json(to_json(request["input"]))


def _failed(reason: Reason, message: str) -> bytes:
    told = storable(traceback.format_exc()[-_TRACEBACK_CHARACTERS:], _TRACEBACK_CHARACTERS)
    return _answer("failed", reason=reason, message=message, traceback=told)


def _found(reference: str) -> Any:
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    main()
