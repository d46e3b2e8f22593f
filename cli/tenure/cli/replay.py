"""``tenure outbox replay …``: what was published once, once more to one queue."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import CommandError, UsageError, needs
from tenure.cli.instants import read_past
from tenure.cli.local.interrupts import Interrupts
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.replay import (
    DEFAULT_RATE,
    ReplayDetail,
    ReplayFilter,
    ReplayPreview,
    ReplayRequest,
    ReplayView,
)
from tenure.contract.states import ReplayState

if TYPE_CHECKING:
    from rich.progress import Progress

    from tenure.client import AsyncClient

LOOK_SECONDS: Final = 0.5
SAY_SECONDS: Final = 5.0
"""How often a line is printed where nobody looks at a terminal."""

app = App(name="replay", help="Publish rows of the log once more, to one queue.")

ReplayId = Annotated[str, Parameter(help="Of the replay: see `tenure outbox replay list`.")]
Reason = Annotated[str, Parameter(help="Why: kept with who said so and when.")]
Force = Annotated[
    bool, Parameter(negative="", help="Also what consumers may have forgotten to know.")
]


@Parameter(name="*")
@dataclass(frozen=True)
class Rows:
    """Which rows: all conditions together."""

    since: Annotated[
        str | None, Parameter(help="Recorded then or later: an instant, or 2h for 2 hours ago.")
    ] = None
    until: Annotated[str | None, Parameter(help="Recorded before.")] = None
    from_position: Annotated[int | None, Parameter(help="Of the log, included.")] = None
    to_position: Annotated[int | None, Parameter(help="Of the log, included.")] = None
    tenant: Annotated[str | None, Parameter(help="Of one tenant.")] = None
    task: Annotated[str | None, Parameter(help="Of one task and its attempts.")] = None
    entity: Annotated[
        str | None, Parameter(help="task, attempt or node; or one of them, like task:ID.")
    ] = None
    type: Annotated[
        tuple[str, ...], Parameter(help="Of any of these types, like task.delivered.")
    ] = ()
    destination: Annotated[
        str | None, Parameter(help="What went to this queue, a node's for example.")
    ] = None


@app.default
def replay(
    *,
    to: Annotated[str, Parameter(help="The queue. It has to exist.")],
    reason: Reason,
    rows: Rows = Rows(),
    rate: Annotated[int, Parameter(help="At most so many rows a second.")] = DEFAULT_RATE,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Count, show the first rows and stop.")
    ] = False,
    force: Force = False,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask first.")] = False,
    detach: Annotated[
        bool, Parameter(negative="", help="Do not wait for its end; it goes on by itself.")
    ] = False,
    output: Output = "table",
) -> None:
    """Publish rows of the log once more, to one queue: counted first, and watched until the end."""
    try:
        request = ReplayRequest(
            queue=to, reason=reason, filter=_filter(rows), rate=rate, force=force
        )
    except ValidationError as error:
        raise _usage(error) from error
    asyncio.run(_run(request, dry_run=dry_run, yes=yes, detach=detach, output=output))


@app.command(name="list")
def list_replays(
    *,
    state: Annotated[ReplayState | None, Parameter(help="Only those in this state.")] = None,
    limit: Annotated[int, Parameter(help="At most so many, the newest.")] = 50,
    output: Output = "table",
) -> None:
    """List replays, newest first."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.replays(state=state, limit=limit)

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    print_table(
        ["replay", "state", "queue", "published", "of about", "rate", "by", "started", "reason"],
        [
            (
                one.replay_id,
                _state(one),
                one.queue,
                one.replayed,
                one.expected,
                one.rate,
                one.created_by,
                ago(one.created_at),
                one.reason,
            )
            for one in found.replays
        ],
    )


@app.command
def show(replay_id: ReplayId, /, *, output: Output = "table") -> None:
    """Show one replay: how far it is, and who did what to it."""

    async def read(client: "AsyncClient") -> ReplayDetail:
        return await client.replay_detail(replay_id)

    _print(_asked(read), output)


@app.command
def watch(replay_id: ReplayId, /, *, output: Output = "table") -> None:
    """Show the progress of one replay until it ends or stands. Ctrl-C ends the watching only."""

    async def follow() -> None:
        async with open_client() as client:
            await _watch(client, (await client.replay_detail(replay_id)).replay, output)

    asyncio.run(follow())


@app.command
def pause(replay_id: ReplayId, /, *, reason: Reason, output: Output = "table") -> None:
    """Let a replay stand where it is."""

    async def say(client: "AsyncClient") -> ReplayDetail:
        return await client.pause_replay(replay_id, reason=reason)

    _print(_asked(say), output)


@app.command
def resume(
    replay_id: ReplayId, /, *, reason: Reason, force: Force = False, output: Output = "table"
) -> None:
    """Let a paused replay go on from where it stands."""

    async def say(client: "AsyncClient") -> ReplayDetail:
        return await client.resume_replay(replay_id, reason=reason, force=force)

    _print(_asked(say), output)


@app.command
def cancel(replay_id: ReplayId, /, *, reason: Reason, output: Output = "table") -> None:
    """End a replay for good; what was published stays published."""

    async def say(client: "AsyncClient") -> ReplayDetail:
        return await client.cancel_replay(replay_id, reason=reason)

    _print(_asked(say), output)


_OPTIONS: Final = {
    "task_id": "--task", "entity_id": "--entity", "entity_type": "--entity", "types": "--type",
    "queue": "--to",
}  # fmt: skip


def _filter(rows: Rows) -> ReplayFilter:
    """Raises UsageError and ValidationError."""
    entity_type, _, entity_id = (rows.entity or "").partition(":")
    return ReplayFilter(
        since=None if rows.since is None else read_past(rows.since, "--since"),
        until=None if rows.until is None else read_past(rows.until, "--until"),
        from_position=rows.from_position,
        to_position=rows.to_position,
        tenant=rows.tenant,
        task_id=rows.task,
        entity_type=entity_type or None,
        entity_id=entity_id or None,
        types=tuple(one if one.startswith("tenure.") else f"tenure.{one}" for one in rows.type),
        destination=rows.destination,
    )


def _usage(error: ValidationError) -> UsageError:
    first = error.errors()[0]
    where = str(first["loc"][0]) if first["loc"] else ""
    if where in ("task_id", "entity_id"):
        return UsageError(f"{_OPTIONS[where]}: {first['input']!r} is no id.")
    said = first["msg"].removeprefix("Value error, ").replace("`", "")
    option = _OPTIONS.get(where, f"--{where.replace('_', '-')}")
    return UsageError(f"{option}: {said}." if where else f"{said}.")


async def _run(
    request: ReplayRequest, *, dry_run: bool, yes: bool, detach: bool, output: Output
) -> None:
    async with open_client() as client:
        asked = await client.replay(request.model_copy(update={"dry_run": True}))
        preview = asked.preview
        if output == "table":
            _print_preview(preview, request)
        if dry_run:
            if output == "json":
                print_json(preview)
            return
        if preview.exact and not preview.rows:
            raise CommandError("no row matches; nothing was started.", code="nothing_matches")
        if not yes and (request.force or not preview.behind_dedupe_retention):
            _confirm(preview, request)
        begun = (await client.replay(request)).replay
        if begun is None:
            raise CommandError("the coordinator started nothing.", code="not_started")
        if not detach:
            await _watch(client, begun, output)
        elif output == "json":
            print_json(begun)
        else:
            print(f"{begun.replay_id}: started; see `tenure outbox replay watch`.")


def _print_preview(preview: ReplayPreview, request: ReplayRequest) -> None:
    about = "" if preview.exact else "about "
    print_fields(
        [
            ("rows", f"{about}{preview.rows:,}"),
            ("positions", f"{preview.from_position} to {preview.to_position}"),
            ("log begins", preview.log_recorded_from),
            ("to", request.queue),
            ("at most", f"{request.rate:,} rows a second"),
            ("consumers remember since", preview.remembered_since),
        ]
    )
    if preview.sample:
        print()
        print_table(
            ["position", "recorded", "tenant", "type", "entity", "event"],
            [
                (one.position, one.recorded_at, one.tenant, one.type, one.entity_id, one.event_id)
                for one in preview.sample
            ],
        )


def _confirm(preview: ReplayPreview, request: ReplayRequest) -> None:
    """Raises UsageError where nobody can be asked, CommandError for a no."""
    about = "" if preview.exact else "about "
    if not sys.stdin.isatty():
        raise UsageError(
            f"{about}{preview.rows:,} rows match; nothing was started.",
            next_step="Add --yes to go on with them.",
        )
    question = f"publish {about}{preview.rows:,} rows once more, to {request.queue}? [y/N] "
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was started.", code="not_confirmed")


async def _watch(client: "AsyncClient", replay: ReplayView, output: Output) -> None:
    """Until it has ended or stands. Raises CommandError unless it is completed, and
    KeyboardInterrupt when the watching was interrupted."""
    show: Callable[[ReplayView], None]
    bar: Progress | None = None
    if output == "json":
        show = _line
    elif sys.stderr.isatty():
        bar = _progress()
        task = bar.add_task(replay.queue, total=replay.expected or None)

        def show(one: ReplayView) -> None:
            bar.update(task, completed=one.replayed + one.held_back, description=_state(one))
    else:
        show = _Lines()
    with Interrupts() as interrupts, bar or nullcontext():
        show(replay)
        while replay.state is ReplayState.RUNNING:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await interrupts.first.wait()
            except TimeoutError:
                pass
            else:
                print(
                    f"the replay goes on: `tenure outbox replay watch {replay.replay_id}`",
                    file=sys.stderr,
                )
                raise KeyboardInterrupt
            before, replay = replay, (await client.replay_detail(replay.replay_id)).replay
            if replay != before:
                show(replay)
    if output == "table":
        print(f"{replay.replay_id}: {_summary(replay)}")
    if replay.state is ReplayState.PAUSED:
        raise CommandError(
            f"the replay stands: {replay.pause_code}: {replay.pause_detail}.",
            next_step=f"See to it, then `tenure outbox replay resume {replay.replay_id}`.",
            code="replay_paused",
        )
    if replay.state is ReplayState.CANCELLED:
        raise CommandError("the replay was cancelled.", code="replay_cancelled")


def _line(one: ReplayView) -> None:
    print(json.dumps(one.model_dump(mode="json")), flush=True)


class _Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._said = -SAY_SECONDS

    def __call__(self, one: ReplayView) -> None:
        if time.monotonic() - self._said >= SAY_SECONDS:
            self._said = time.monotonic()
            print(f"{one.replay_id}: {_summary(one)}", file=sys.stderr, flush=True)


def _progress() -> "Progress":
    with needs("cli"):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _asked(ask: Callable[["AsyncClient"], Awaitable[ReplayDetail]]) -> ReplayDetail:
    async def run() -> ReplayDetail:
        async with open_client() as client:
            return await ask(client)

    return asyncio.run(run())


def _print(found: ReplayDetail, output: Output) -> None:
    if output == "json":
        print_json(found)
        return
    one = found.replay
    print_fields(
        [
            ("replay", one.replay_id),
            ("state", _state(one)),
            ("why", one.pause_detail),
            ("queue", one.queue),
            ("rows", _conditions(one.filter)),
            ("positions", f"{one.from_position} to {one.to_position}"),
            ("done up to", one.position),
            ("published", _summary(one)),
            ("at most", f"{one.rate:,} rows a second"),
            ("forced", "yes" if one.forced else None),
            ("relay", one.relay),
            ("reason", one.reason),
        ]
    )
    print()
    print_table(
        ["when", "what", "by", "reason"],
        [(each.at, each.change, each.actor, each.reason) for each in found.history],
    )


def _state(one: ReplayView) -> str:
    if one.state is ReplayState.PAUSED:
        return f"paused: {one.pause_code}"
    if one.waits_for_live:
        return "running: waits for what is not published so far"
    return one.state.value


def _summary(one: ReplayView) -> str:
    about = "" if one.expected_exactly else "about "
    said = f"{_state(one)}, {one.replayed:,} of {about}{one.expected:,} rows"
    if one.held_back:
        said += f", {one.held_back:,} left out: their streams are held"
    return said


def _conditions(asked: ReplayFilter) -> str:
    given = asked.model_dump(mode="json", exclude_defaults=True)
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "all events"
