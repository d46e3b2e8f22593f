"""Runs handlers and commands in processes of their own.

A handler's process is asked by one line of JSON and answers by one; a command gets the input on its
standard input and gives the output on its standard output. Both end with their attempt, whatever
they do: see ``process``.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import structlog
from pydantic import BaseModel
from pydantic_core import from_json, to_json

from tenure.contract.codes import Reason
from tenure.contract.errors import TenureError
from tenure.contract.isolation import Enforcement
from tenure.executor.context import Context
from tenure.executor.declare import CommandResult, HandlerDeclaration
from tenure.executor.errors import AuthorityOver, Fail, OutOfScope, Retry, RunEnded, StaleToken
from tenure.executor.isolation.cgroup import Cgroup
from tenure.executor.isolation.deadlines import Deadlines
from tenure.executor.isolation.place import Place
from tenure.executor.isolation.process import Child, running
from tenure.executor.isolation.shared import Cell, shared_now
from tenure.executor.lease import Lease
from tenure.executor.user_text import faults_of

SAID_CHARACTERS: Final = 1500
"""Of what a command said on its standard error, kept with the failure."""
_SLACK_BYTES: Final = 65_536
_MAX_SCOPE_CHARACTERS: Final = 100_000  # Linux takes 128 KiB in one variable

log = structlog.get_logger("tenure.executor")

Record = Callable[[Enforcement], None]


class Sandbox:
    """One for the process."""

    def __init__(
        self, place: Place, *, output_limit_bytes: int, application: str | None = None
    ) -> None:
        """``application``: where another process finds the executor, ``module:name``; None where
        it cannot."""
        self._place = place
        self._application = application
        self._output_limit_bytes = output_limit_bytes
        self._deadlines = Deadlines()

    def clear(self) -> None:
        """End what earlier executors left in the folder of control groups when they were killed."""
        if self._place.cgroup is None:
            return
        try:
            left = Cgroup.clear(self._place.cgroup)
        except OSError as error:
            log.warning("control groups cannot be used", error=str(error))
            return
        if left:
            log.warning("ended what an executor left that was killed", control_groups=left)

    @property
    def can_run_alone(self) -> bool:
        """Whether a handler that is declared to run in the executor can run elsewhere."""
        return self._application is not None

    async def run(
        self, declaration: HandlerDeclaration, input: BaseModel, context: Context[Any],
        lease: Lease, record: Record,
    ) -> object:  # fmt: skip
        """The output. ``record`` is told what was enforced, as soon as it is.

        Raises what the handler raised, RunEnded, and AuthorityOver.
        """
        try:
            if declaration.command is not None:
                return await self._command(declaration, input, context, lease, record)
            return await self._handler(declaration, input, context, lease, record)
        except RunEnded:
            if declaration.on_authority_loss == "cancel":
                context.check_authority()  # it was ended for that, where it is over
            raise

    async def _handler(
        self, declaration: HandlerDeclaration, input: BaseModel, context: Context[Any],
        lease: Lease, record: Record,
    ) -> object:  # fmt: skip
        apart = declaration.runs_in == "process"
        environment = {
            "PYTHONPATH": ":".join(each for each in sys.path if each),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if apart:
            environment = {**declaration.environment, **environment}
        else:  # the application's own handler with its own resources, and no secret of ours
            kept = {name: text for name, text in os.environ.items() if _is_the_applications(name)}
            environment = {**kept, **environment}
        ours, theirs = socket.socketpair()
        cell = Cell.new()
        with (
            contextlib.closing(cell),
            contextlib.closing(theirs),
            lease.followed(lambda changed: _copy(changed, cell)),
            context.told_to_end(cell.ask_to_stop),
        ):
            reader, writer = await asyncio.open_connection(
                sock=ours, limit=self._output_limit_bytes + _SLACK_BYTES
            )
            try:
                async with running(
                    declaration,
                    self._place,
                    self._deadlines,
                    name=context.attempt_id,
                    argv=(sys.executable, "-m", "tenure.executor.isolation.child"),
                    environment={
                        **environment,
                        "TENURE_CHANNEL": f"{theirs.fileno()},{cell.descriptor}",
                    },
                    may_act=lease.may_act,
                    keep=(theirs.fileno(), cell.descriptor),
                    apart=apart,
                    hang_up=writer.close,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=None,
                    stderr=None,
                ) as child:
                    theirs.close()
                    record(child.enforced)
                    line = b""
                    try:
                        writer.write(self._request(declaration, input, context, lease) + b"\n")
                        line = await _last_line(reader, writer, context)
                    except ConnectionError:
                        pass  # it has ended
                    except ValueError as error:
                        raise RunEnded(
                            Reason.OUTPUT_INVALID,
                            f"the output is longer than {self._output_limit_bytes} bytes",
                        ) from error
                    if not line:
                        await child.exited.wait()
                        raise child.ended(child.enforced)
                    return _answer(declaration, line)
            finally:
                writer.close()

    def _request(
        self,
        declaration: HandlerDeclaration,
        input: BaseModel,
        context: Context[Any],
        lease: Lease,
    ) -> bytes:
        task_type = declaration.task_type
        apart = declaration.runs_in == "process"
        return to_json(
            {
                "application": None if apart else self._application,
                "handler": reference(declaration.handler) if apart else None,
                "input_type": reference(task_type.input) if apart else None,
                "input": input,
                "task_type": task_type.name,
                "task_id": context.task_id,
                "attempt_id": context.attempt_id,
                "fencing_token": context.fencing_token,
                "tolerance_seconds": lease.tolerance_seconds,
                "ordinal": context.ordinal,
                "scope": context.scope.granted,
                "narrowed": context.scope.narrowed,
                # Of the input as it was submitted: a model may write it otherwise.
                "scope_fields": context.scope.fields,
                "traceparent": context.traceparent,
                "last_checkpoint": context.last_checkpoint,
            }
        )

    async def _command(
        self, declaration: HandlerDeclaration, input: BaseModel, context: Context[Any],
        lease: Lease, record: Record,
    ) -> object:  # fmt: skip
        command = declaration.command
        assert command is not None
        async with running(
            declaration,
            self._place,
            self._deadlines,
            name=context.attempt_id,
            argv=(command.program, *command.arguments),
            environment={**_said_to_commands(context), **dict(command.environment)},
            may_act=lease.may_act,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_SLACK_BYTES,
        ) as child:
            record(child.enforced)
            output, errors, _ = await asyncio.gather(
                _read(child.process.stdout, self._output_limit_bytes),
                _read_end(child.process.stderr),
                _feed(child.process.stdin, to_json(input)),
            )
            await child.exited.wait()
            return self._result(declaration, child, output, errors)

    def _result(
        self, declaration: HandlerDeclaration, child: Child, output: bytes, errors: bytes
    ) -> object:
        said = errors.decode("utf-8", "replace")
        last_words = f": {said.strip()[-SAID_CHARACTERS:]}" if said.strip() else ""
        code = child.process.returncode
        if code is None or code < 0 or child.overran():
            ended = child.ended(child.enforced)
            raise RunEnded(ended.reason, f"{ended.message}{last_words}")
        declared = declaration.task_type.output
        if issubclass(declared, CommandResult):
            text = output.decode("utf-8", "replace")
            return declared(exit_status=code, stdout=text, stderr=said)
        if code != 0:
            message = f"the program ended with exit status {code}{last_words}"
            raise RunEnded(Reason.COMMAND_FAILED, message)
        try:
            return declared.model_validate(from_json(output))
        except ValueError as error:
            raise RunEnded(
                Reason.OUTPUT_INVALID,
                f"what it wrote is no {declared.__name__}: {faults_of(error)}",
            ) from error


def _copy(lease: Lease, cell: Cell) -> None:
    now = shared_now()
    cell.write(
        now=now,
        remaining_seconds=lease.remaining_seconds(),
        expires_at=lease.expires_at,
        ended=lease.ended is not None,
    )


async def _last_line(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: Context[Any]
) -> bytes:
    """The answer; until it comes, what the handler says of its progress is passed on."""
    while line := await reader.readline():
        said: dict[str, Any] = json.loads(line)
        if said["kind"] == "progress":
            context.progress(said["fraction"], said["message"])
        elif said["kind"] == "effect":
            context.note_effect(said["name"], said["id"], said["state"])
        elif said["kind"] == "checkpoint":
            writer.write(to_json(await _saved(context, said["data"])) + b"\n")
        else:
            return line
    return b""


async def _saved(context: Context[Any], data: Any) -> dict[str, str]:
    try:
        await context.checkpoint(data)
    except AuthorityOver as error:
        return {"kind": "authority_over", "message": error.message}
    except TenureError as error:
        return {"kind": "refused", "message": error.message}
    return {"kind": "saved"}


def _is_the_applications(name: str) -> bool:
    return not name.startswith("TENURE_")


def reference(what: Any) -> str:
    """How another process finds it."""
    return f"{what.__module__}:{what.__qualname__}"


def _answer(declaration: HandlerDeclaration, line: bytes) -> object:
    said: dict[str, Any] = json.loads(line)
    match said.pop("kind"):
        case "output":
            try:
                return declaration.task_type.output.model_validate_json(to_json(said["output"]))
            except ValueError as error:
                raise RunEnded(
                    Reason.OUTPUT_INVALID, f"the output does not fit: {faults_of(error)}"
                ) from error
        case "fail":
            raise Fail(said["reason"], said["message"])
        case "retry":
            raise Retry(said["message"], after=said["after_seconds"])
        case "stopped":
            return None  # it looked, and went home
        case "out_of_scope":
            raise OutOfScope(said["message"])
        case "authority_over":
            if said["seen_token"] is not None:
                raise StaleToken(said["message"], seen_token=said["seen_token"])
            raise AuthorityOver(said["message"])
        case _:
            raise RunEnded(Reason(said["reason"]), said["message"], traceback=said["traceback"])


def _said_to_commands(context: Context[Any]) -> dict[str, str]:
    """Token and deadline, for programs that pass them on to what they write to."""
    said = {
        "TENURE_TASK_ID": context.task_id,
        "TENURE_ATTEMPT_ID": context.attempt_id,
        "TENURE_FENCING_TOKEN": str(context.fencing_token),
        "TENURE_IDEMPOTENCY_KEY": context.idempotency_key,
        "TENURE_LEASE_EXPIRES_AT": context.expires_at.isoformat(),
    }
    scope = context.scope.to_json()
    if scope is not None:
        # What no environment can hold is said to be so: a receiver that looks refuses it.
        said["TENURE_SCOPE"] = scope if len(scope) <= _MAX_SCOPE_CHARACTERS else "too long"
    if context.ordinal is not None:
        said["TENURE_ATTEMPT"] = str(context.ordinal)
    if context.traceparent is not None:
        said["TRACEPARENT"] = context.traceparent  # by that name OpenTelemetry's tools find it
    return said


async def _read(stream: asyncio.StreamReader | None, limit: int) -> bytes:
    assert stream is not None
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(_SLACK_BYTES):
        size += len(part)
        if size > limit:
            raise RunEnded(Reason.OUTPUT_INVALID, f"it wrote more than {limit} bytes of output")
        parts.append(part)
    return b"".join(parts)


async def _read_end(stream: asyncio.StreamReader | None) -> bytes:
    """All of it is taken, and the end kept: a program that complains must not block."""
    assert stream is not None
    kept = b""
    while part := await stream.read(_SLACK_BYTES):
        kept = (kept + part)[-_SLACK_BYTES:]
    return kept


async def _feed(stream: asyncio.StreamWriter | None, text: bytes) -> None:
    assert stream is not None
    # It reads what it likes. uvloop raises RuntimeError once the process has ended.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        stream.write(text)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
