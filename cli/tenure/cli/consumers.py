"""``tenure consumer …``."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from tenure.cli.applications import load_consumer
from tenure.cli.exits import UsageError, needs
from tenure.cli.output import Output, ago, print_json, print_table
from tenure.cli.processes import work_of_others
from tenure.cli.settings import Config, completed, given

if TYPE_CHECKING:
    from tenure.executor.consumer import EventConsumer
    from tenure.executor.event_inbox import Kept

app = App(name="consumer", help="Run a consumer of events; see what it keeps.")

Named = Annotated[
    str, Parameter(name="MODULE:NAME", help="Where the consumer is, like billing:consumer.")
]
Ids = Annotated[str, Parameter(help="Ids of parked events; none: all that are parked.")]


@app.command
def run(application: Named, /, *, config: Config = None) -> None:
    """Run a consumer of events until SIGTERM or Ctrl-C; settings come from TENURE_* in the
    environment or a configuration file.

    Where none of TENURE_URL, TENURE_TOKEN and TENURE_BROKER_URL is set, it joins the local stack
    that runs in the working directory. The first signal drains: nothing new is taken, what was
    begun goes on. A second one hurries.
    """
    with needs("executor"):
        from tenure.executor.consumer_runner import run as run_consumer
        from tenure.executor.consumer_settings import load_settings
        from tenure.executor.errors import LifespanFailed

    found = load_consumer(application)
    found.refuse_empty()
    values, _ = completed("consumer", given(config=config))
    try:
        work_of_others(run_consumer(found, load_settings(**values)))
    except LifespanFailed as error:
        traceback.print_exception(error.__cause__)  # the way to the line that failed
        raise


@app.command
def kept(application: Named, /, *, output: Output = "table") -> None:
    """List events that wait in a consumer's inbox: parked ones, and those behind them."""

    async def read(consumer: "EventConsumer") -> list["Kept"]:
        return await consumer.inbox.kept(consumer.name)

    found = _with_inbox(application, read)
    if output == "json":
        print_json(
            [
                {
                    "event_id": one.event_id,
                    "entity_type": one.stream.entity_type,
                    "entity_id": one.stream.entity_id,
                    "epoch": one.position.epoch,
                    "sequence": one.position.sequence,
                    "state": one.state.value,
                    "attempts": one.attempts,
                    "reason": one.reason,
                    "body": one.body,
                }
                for one in found
            ]
        )
        return
    print_table(
        ["event", "stream", "sequence", "state", "attempts", "reason", "received"],
        [
            (
                one.event_id,
                " ".join(one.stream),
                one.position.sequence,
                one.state.value,
                one.attempts,
                one.reason,
                ago(datetime.fromtimestamp(one.received_at, UTC)),
            )
            for one in found
        ],
    )


@app.command
def retry(application: Named, /, *events: Ids, output: Output = "table") -> None:
    """Let parked events be handled again by the consumer that runs, and what waits behind them."""

    async def change(consumer: "EventConsumer", event_id: str) -> bool:
        return await consumer.inbox.release(consumer.name, event_id)

    _settle(application, events, change, "handled again", output)


@app.command
def skip(
    application: Named,
    /,
    *events: Ids,
    reason: Annotated[str, Parameter(help="Why, for those who look at it later.")],
    output: Output = "table",
) -> None:
    """Decide that parked events are not needed. What waits behind them goes on."""
    if not reason:
        raise UsageError("--reason: say why.")
    if not events:
        raise UsageError("name the events that are not needed.")

    async def change(consumer: "EventConsumer", event_id: str) -> bool:
        return await consumer.inbox.skip(consumer.name, event_id, reason, time.time())

    _settle(application, events, change, "skipped", output)


def _settle(
    application: str,
    events: tuple[str, ...],
    change: Callable[["EventConsumer", str], Awaitable[bool]],
    done: str,
    output: str,
) -> None:
    async def settle(consumer: "EventConsumer") -> dict[str, bool]:
        meant = events or tuple(
            one.event_id
            for one in await consumer.inbox.kept(consumer.name)
            if one.state.value == "parked"
        )
        return {event_id: await change(consumer, event_id) for event_id in meant}

    found = _with_inbox(application, settle)
    if output == "json":
        print_json(found)
        return
    for event_id, changed in found.items():
        print(f"{event_id}: {done if changed else 'is not parked'}")
    if not found:
        print("nothing is parked")


def _with_inbox(application: str, act: Callable[["EventConsumer"], Awaitable[Any]]) -> Any:
    """What ``act`` comes to, with the consumer's inbox open."""
    with needs("executor"):
        consumer = load_consumer(application)

    async def acted() -> Any:
        await consumer.inbox.open(1)
        try:
            return await act(consumer)
        finally:
            await consumer.inbox.close()

    return asyncio.run(acted())
