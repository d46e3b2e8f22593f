"""The process of a handler: ``python -m tenure.executor.isolation.child``.

Reads one request from its channel, calls the handler, writes one answer. When the channel closes
under it the executor is gone, and this process ends with everything that it has started.
"""

import asyncio
import errno
import importlib
import json
import os
import signal
import socket
import threading
import traceback
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic_core import to_json

from tenure.contract.codes import Reason
from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.contract.scope import Scope
from tenure.executor.app import Executor
from tenure.executor.context import Context
from tenure.executor.errors import AuthorityError, Fail, OutOfScope, Retry, StaleToken
from tenure.executor.handlers import call
from tenure.executor.isolation.shared import Cell, SharedLease
from tenure.executor.lease import Lease

_POLL_SECONDS: Final = 0.05
_TRACEBACK_CHARACTERS: Final = 20_000


class ProcessContext(Context[Any]):
    """As in the executor. ``resources`` is what this process has opened itself, if anything."""

    def __init__(
        self, cell: Cell, lease: SharedLease, request: dict[str, Any], resources: object = None
    ) -> None:
        super().__init__(
            lease=cast(Lease, lease),
            task_type=request["task_type"],
            resources=resources,
            ordinal=request["ordinal"],
            scope=Scope.model_validate(request["scope"]),
            input=request["input"],
        )
        self._cell = cell
        threading.Thread(target=self._listen, name="tenure-stop", daemon=True).start()

    def _listen(self) -> None:
        while not self._cell.read()[3]:
            threading.Event().wait(_POLL_SECONDS)
        self.ask_to_end()


def main() -> None:
    """One request, one answer."""
    channel, memory = (int(each) for each in os.environ.pop("TENURE_CHANNEL").split(","))
    with socket.socket(fileno=channel) as connection:
        file = connection.makefile("rb")
        request: dict[str, Any] = json.loads(file.readline())
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is told by its context, then killed
        cell = Cell(memory)
        lease = SharedLease(
            cell,
            task_id=TaskId(request["task_id"]),
            attempt_id=AttemptId(request["attempt_id"]),
            fencing_token=FencingToken(request["fencing_token"]),
            tolerance_seconds=request["tolerance_seconds"],
        )
        connection.sendall(_run(request, cell, lease) + b"\n")


def _run(request: dict[str, Any], cell: Cell, lease: SharedLease) -> bytes:
    """The answer, whatever happens in the handler."""
    try:
        if request["application"] is None:
            output = _found(request["handler"])(
                _input(_found(request["input_type"]), request), ProcessContext(cell, lease, request)
            )
        else:
            output = asyncio.run(_run_alone(_found(request["application"]), request, cell, lease))
        return to_json({"kind": "output", "output": output})
    except Fail as error:
        return to_json({"kind": "fail", "reason": error.reason, "message": error.message})
    except Retry as error:
        return to_json(
            {"kind": "retry", "message": error.message, "after_seconds": error.after_seconds}
        )
    except OutOfScope as error:
        return to_json({"kind": "out_of_scope", "message": error.message})
    except AuthorityError as error:
        seen = error.seen_token if isinstance(error, StaleToken) else None
        return to_json({"kind": "authority_over", "message": error.message, "seen_token": seen})
    except asyncio.CancelledError:
        return to_json({"kind": "stopped"})
    except MemoryError:
        return _failed(Reason.RESOURCE_LIMIT, "it needed more memory than its reservation")
    except OSError as error:
        limited = error.errno in (errno.EFBIG, errno.EMFILE)  # its limits of files
        reason = Reason.RESOURCE_LIMIT if limited else Reason.HANDLER_FAILED
        return _failed(reason, f"{type(error).__name__}: {error}")
    except BaseException as error:  # noqa: BLE001 - the executor tells the coordinator
        return _failed(Reason.HANDLER_FAILED, f"{type(error).__name__}: {error}")


async def _run_alone(
    app: Executor, request: dict[str, Any], cell: Cell, lease: SharedLease
) -> object:
    """A handler that is declared to run in the executor, with resources of its own. The fences of
    its guards were raised by the executor."""
    declaration = app.handlers[request["task_type"]]
    async with app.open_resources() as resources:
        context = ProcessContext(cell, lease, request, resources)
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
    return to_json(
        {
            "kind": "failed",
            "reason": reason,
            "message": message,
            "traceback": traceback.format_exc()[-_TRACEBACK_CHARACTERS:],
        }
    )


def _found(reference: str) -> Any:
    module, _, name = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _end_with(connection: socket.socket) -> None:
    """The executor says nothing more on the channel: what comes is its end."""
    if not connection.recv(1):
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
