"""``tenure submit`` and ``tenure task …``."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter
from pydantic import ValidationError

from tenure.cli import verbs
from tenure.cli.arguments import read_json_argument
from tenure.cli.connection import open_client
from tenure.cli.exits import CommandError, UsageError
from tenure.cli.instants import read_instant, read_past
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.cli.progress import held_to, progress_of
from tenure.cli.why import TaskIdWord, sentence
from tenure.contract.ids import FencingToken, generation_of
from tenure.contract.operations import RevocationRequest
from tenure.contract.reports import Resources
from tenure.contract.scope import Scope
from tenure.contract.states import TERMINAL_ATTEMPT_STATES, Phase, TaskState
from tenure.contract.tasks import ReceiptView, TaskView

if TYPE_CHECKING:
    from tenure.client import AsyncClient

app = App(name="task", help="See, cancel, hold, release, revoke, retry and erase tasks.")
for verb in (verbs.cancel, verbs.hold, verbs.release, verbs.retry, verbs.erase):
    app.command(verb)
app.command(verbs.move_profile, name="move-profile")

PATIENCE_SECONDS: Final = 5.0
"""Who waits for longer is told what the task is doing."""
UNDER_WAY: Final = frozenset({Phase.WAITING, Phase.ASSIGNED, Phase.TAKEN, Phase.RUNNING})


def submit(
    type_name: Annotated[
        str, Parameter(name="TYPE", help="Task type, as an executor declares it.")
    ],
    json: Annotated[
        str, Parameter(name="JSON", help="The input: JSON text, @FILE, or - for standard input.")
    ],
    /,
    *,
    wait: Annotated[
        bool, Parameter(negative="", help="Wait for the end and print the output.")
    ] = False,
    timeout: Annotated[
        float | None, Parameter(help="With --wait: give up waiting after so many seconds.")
    ] = None,
    key: Annotated[
        str | None, Parameter(help="Idempotency key: the same key gives the same task.")
    ] = None,
    priority: Annotated[int, Parameter(help="-100 to 100, higher first.")] = 0,
    not_before: Annotated[
        str | None, Parameter(help="Start no earlier: an instant, or a length like 10m.")
    ] = None,
    deadline: Annotated[
        str | None, Parameter(help="End it unstarted after that: an instant, or a length like 1h.")
    ] = None,
    cpu: Annotated[
        str | None, Parameter(help="Cores it takes, like 2 or 500m; none: as the type declares.")
    ] = None,
    memory: Annotated[str | None, Parameter(help="Memory it takes, like 2Gi or 512M.")] = None,
    concurrency_key: Annotated[
        str | None, Parameter(help="What it counts with under limits, like a customer.")
    ] = None,
    scope_operation: Annotated[
        list[str] | None,
        Parameter(negative="", help="Narrow its leases to this operation, a pattern; repeat it."),
    ] = None,
    scope_object: Annotated[
        list[str] | None,
        Parameter(negative="", help="Narrow its leases to this object, a pattern; repeat it."),
    ] = None,
    explain: Annotated[
        bool, Parameter(negative="", help="Only say which nodes could take it; make no task.")
    ] = False,
    output: Output = "table",
) -> None:
    """Make a task and print its id; with --wait, print its output.

    When this returns, the task is recorded and will be worked on.
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout needs --wait.")
    value = read_json_argument(json)
    settings: dict[str, Any] = {"idempotency_key": key, "priority": priority}
    if not_before is not None:
        settings["not_before"] = read_instant(not_before, "--not-before")
    if deadline is not None:
        settings["deadline"] = read_instant(deadline, "--deadline")
    if cpu is not None or memory is not None:
        settings["resources"] = _resources(cpu or "0", memory or "0")
    if concurrency_key is not None:
        settings["concurrency_key"] = concurrency_key
    if scope_operation or scope_object:
        settings["scope"] = _scope(scope_operation, scope_object)
    if explain:
        if wait or key is not None:
            raise UsageError("--explain makes no task: leave out --wait and --key.")
        del settings["idempotency_key"]
        _explain(type_name, value, settings, output)
        return
    asyncio.run(_submit(type_name, value, settings, wait, timeout, output == "json"))


def _explain(type_name: str, value: Any, settings: dict[str, Any], output: Output) -> None:
    from tenure.cli.why import print_explanation, sentence

    async def ask() -> Any:
        async with open_client() as client:
            return await client.explain(type_name, value, **settings)

    found = asyncio.run(ask())
    if output == "json":
        print_json(found)
        return
    stands = sentence(found.explanation, found.type)
    print(f"{found.type}, number {found.position} of what waits: {stands}")
    print_explanation(found.explanation)


async def _submit(
    type_name: str,
    value: Any,
    settings: dict[str, Any],
    wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    from tenure.client.handles import not_delivered

    async with open_client() as client:
        handle = await client.submit_json(type_name, value, **settings)
        if not wait:
            if as_json:
                print_json({"task_id": handle.task_id, "replayed": handle.replayed})
            else:
                print(handle.task_id)
            return
        print(f"task {handle.task_id}", file=sys.stderr)
        ending = asyncio.create_task(handle.outcome(timeout=timeout))
        try:
            await asyncio.wait({ending}, timeout=PATIENCE_SECONDS)
            if not ending.done():
                await _say_what_it_does(client, handle.task_id)
            result = await ending
        except asyncio.CancelledError:
            print(
                f"task {handle.task_id} goes on: see `tenure task show {handle.task_id}`,"
                f" or end it with `tenure task cancel {handle.task_id}`",
                file=sys.stderr,
            )
            raise
        if as_json:
            print_json(result)
        elif result.state is TaskState.DELIVERED:
            print_json(result.output)
        if result.state is not TaskState.DELIVERED:
            raise not_delivered(result)


async def _say_what_it_does(client: "AsyncClient", task_id: str) -> None:
    """A sign of life for who waits; one that cannot be had is no reason to end the waiting."""
    from tenure.client.errors import ClientError

    with suppress(ClientError):
        view = await client.task(task_id).view()
        reason = await _why_waiting(client, view)
        if view.phase in UNDER_WAY:
            # A task that waits keeps the node of its last attempt: it is on none.
            placed = view.node_id and view.phase is not Phase.WAITING
            rest = f" on {view.node_id}" if placed else reason and f": {reason}"
            print(f"it is {view.phase.value}{rest}", file=sys.stderr)


@app.command
def show(task_id: TaskIdWord, /, *, output: Output = "table") -> None:
    """Show one task with its attempts, receipts and timeline."""
    view, reason = asyncio.run(_view(task_id))
    if output == "json":
        print_json(view)
    else:
        _print_view(view, reason)


async def _view(task_id: str) -> tuple[TaskView, str]:
    """The task, and why it waits."""
    async with open_client() as client:
        view = await client.task(task_id).view()
        return view, await _why_waiting(client, view)


async def _why_waiting(client: "AsyncClient", view: TaskView) -> str:
    """What the scheduler says about it; empty for a task that does not wait, or when it cannot be
    asked: that is no reason to show nothing else."""
    from tenure.client.errors import ClientError

    if view.phase is not Phase.WAITING:
        return ""
    try:
        found = await client.task(view.task_id).why()
    except ClientError:
        return ""
    return f"{sentence(found.explanation, view.type)}; see `tenure why {view.task_id}`"


@app.command(name="list")
def list_tasks(
    *,
    state: Annotated[TaskState | None, Parameter(help="Only tasks in this state.")] = None,
    phase: Annotated[Phase | None, Parameter(help="Only tasks in this phase.")] = None,
    type_name: Annotated[str | None, Parameter(name="--type", help="Only this type.")] = None,
    older_than: Annotated[
        str | None, Parameter(help="Only tasks created so long ago (90s, 2h, 1d), or before then.")
    ] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    after: Annotated[str | None, Parameter(help="The last task of the page before.")] = None,
    output: Output = "table",
) -> None:
    """List tasks, newest first."""
    created_before = None if older_than is None else read_past(older_than, "--older-than")

    async def read() -> Any:
        async with open_client() as client:
            return await client.tasks(
                state=state and state.value,
                phase=phase and phase.value,
                type_name=type_name,
                created_before=created_before,
                limit=limit,
                after=after,
            )

    page = asyncio.run(read())
    if output == "json":
        print_json(page)
        return
    print_table(
        ["task", "type", "phase", "reason", "attempts", "node", "created"],
        [
            (
                task.task_id,
                task.type,
                task.phase.value,
                task.reason,
                task.attempts,
                task.node_id,
                ago(task.created_at),
            )
            for task in page.tasks
        ],
    )
    if page.next is not None:
        print(f"There are more: --after {page.next}", file=sys.stderr)


@app.command
def renewals(task_id: TaskIdWord, /, *, output: Output = "table") -> None:
    """List the renewals of a task's leases, newest first."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.renewals(task_id)

    known = asyncio.run(read())
    if output == "json":
        print_json(known)
        return
    print_table(
        ["at", "by", "lease until", "before", "attempt"],
        [
            (one.at, one.renewed_by, one.new_expires_at, one.prior_expires_at, one.attempt_id)
            for one in known.renewals
        ],
    )


@app.command
def revoke(
    task_id: TaskIdWord,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why, for those who read the task's story.")],
    attempt: Annotated[
        str | None, Parameter(help="Only this attempt; absent: the one that is current.")
    ] = None,
    output: Output = "table",
) -> None:
    """Take the authority of a task's attempt away before its time. The task gets another attempt.

    The node hears of it with its next renewal, and ends the work.
    """

    async def ask() -> Any:
        async with open_client() as client:
            attempt_id = attempt or _open_attempt(await client.task(task_id).view())
            return await client.revoke(
                task_id, RevocationRequest(attempt_id=attempt_id, reason=reason)
            )

    reply = asyncio.run(ask())
    if output == "json":
        print_json(reply)
    elif reply.outcome == "already_ended":
        print(f"attempt {reply.attempt_id} had ended already: {reply.attempt_state.value}")
    else:
        print(
            f"attempt {reply.attempt_id} is {reply.attempt_state.value}, task"
            f" {reply.task_id} {reply.task_state.value}; receivers accept its token until"
            f" {reply.writable_until}, or its successor's first touch"
        )


def _open_attempt(view: TaskView) -> str:
    """The attempt that has the authority now. Raises CommandError."""
    for one in reversed(view.attempt_list):
        if one.state not in TERMINAL_ATTEMPT_STATES:
            return one.attempt_id
    raise CommandError(
        f"No attempt of task {view.task_id} has authority now.",
        next_step="`tenure task show` tells what became of its attempts.",
        code="no_open_attempt",
    )


@app.command
def receipts(task_id: TaskIdWord, /, *, output: Output = "table") -> None:
    """List every delivery submission of a task: the active one, and what was kept as evidence.

    With -o json each has its content.
    """

    async def read() -> Any:
        async with open_client() as client:
            return await client.task(task_id).receipts()

    listed = asyncio.run(read())
    if output == "json":
        print_json(listed)
    else:
        _print_receipts(listed.receipts)


def _print_receipts(listed: Sequence[ReceiptView]) -> None:
    print_table(
        [
            "receipt", "attempt", "latest then", "node", "fencing token", "active", "why not", "at",
            "state version", "content", "held to",
        ],
        [
            (
                receipt.receipt_id,
                generation_of(FencingToken(receipt.fencing_token)),
                receipt.generation,
                receipt.node_id,
                receipt.fencing_token,
                receipt.admitted,
                receipt.code,
                receipt.admitted_at,
                receipt.state_version,
                receipt.content_digest[:12],
                held_to(receipt.enforced),
            )
            for receipt in listed
        ],
    )  # fmt: skip


def _seconds(length: float | None) -> str | None:
    return None if length is None else f"{length:.1f} s"


def _resources(cpu: str, memory: str) -> Resources:
    """Raises UsageError for what is no quantity."""
    try:
        return Resources.of(cpu=cpu, memory=memory)
    except ValueError as error:
        raise UsageError(f"{error}.") from error


def _scope(operations: list[str] | None, objects: list[str] | None) -> Scope:
    """Raises UsageError for what is no pattern."""
    patterns = {"operations": operations, "objects": objects}
    try:
        return Scope.model_validate({name: each for name, each in patterns.items() if each})
    except ValidationError as error:
        raise UsageError(f"{error.errors()[0]['msg']}.") from error


def _said_of(scope: Scope) -> str:
    return f"{', '.join(scope.operations)} on {', '.join(scope.objects)}"


def _print_view(view: TaskView, because: str) -> None:
    print_fields(
        [
            ("task", view.task_id),
            ("type", view.type),
            ("phase", view.phase.value),
            ("because", because),
            ("reason", view.reason),
            ("message", view.message),
            ("tenant", view.tenant),
            ("created", view.created_at),
            ("not before", view.not_before),
            ("deadline", view.deadline),
            ("cancel requested", view.cancel_requested_at),
            ("cancel delivered", view.cancel_delivered_at),
            ("cancel confirmed", view.cancel_confirmed_at),
            ("retry of", view.retry_of),
            ("retried by", view.retried_by),
            ("ended", view.ended_at),
            ("priority", view.priority or None),
            ("concurrency key", view.concurrency_key),
            ("scope", None if view.scope is None else _said_of(view.scope)),
            ("effects", view.effects),
            ("profile", view.profile_digest),
            ("failures", f"{view.failures} of at most {view.max_attempts}"),
            ("losses", view.losses or None),
            ("progress", progress_of(view.progress)),
        ]
    )
    if view.attempt_list:
        print()
        print_table(
            [
                "attempt",
                "state",
                "reason",
                "message",
                "node",
                "fencing token",
                "lease until",
                "retry after",
            ],
            [
                (
                    attempt.ordinal,
                    attempt.state.value,
                    attempt.reason,
                    attempt.message,
                    attempt.node_id,
                    attempt.fencing_token,
                    attempt.expires_at,
                    _seconds(attempt.retry_delay_seconds),
                )
                for attempt in view.attempt_list
            ],
        )
    if view.receipts:
        print()
        _print_receipts(view.receipts)
    if view.timeline:
        print()
        print_table(
            ["time", "what", "from", "to", "reason", "by"],
            [
                (
                    entry.recorded_at,
                    entry.entity_type,
                    entry.previous_state,
                    entry.next_state,
                    entry.reason,
                    entry.actor,
                )
                for entry in view.timeline
            ],
        )
    for name, value in (("input", view.input), ("output", view.output)):
        if value is not None:
            print(f"\n{name}:")
            print_json(value)
