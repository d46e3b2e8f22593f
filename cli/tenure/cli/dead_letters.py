"""``tenure dead-letter …``."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.dead_letters import DeadLetterDetail, DeadLetterState, Settling

if TYPE_CHECKING:
    from tenure.client import AsyncClient

app = App(name="dead-letter", help="See what queues gave up, and send it again.")

Ids = Annotated[int, Parameter(help="Numbers that `tenure dead-letter list` shows.")]
WaitingOf = Annotated[
    str | None, Parameter(name="--queue", help="Instead of numbers: all of this queue that wait.")
]
Reason = Annotated[str, Parameter(help="Why, for those who look at it later.")]
_PAGE = 200


@app.command(name="list")
def list_dead_letters(
    *,
    state: Annotated[DeadLetterState | None, Parameter(help="Only those in this state.")] = None,
    queue: Annotated[str | None, Parameter(help="Only those of this queue.")] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    after: Annotated[int | None, Parameter(help="The last one of the page before.")] = None,
    output: Output = "table",
) -> None:
    """List messages that queues gave up, newest first."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.dead_letters(state=state, queue=queue, limit=limit, after=after)

    page = asyncio.run(read())
    if output == "json":
        print_json(page)
        return
    print_table(
        ["number", "state", "event", "type", "task", "queue", "reason", "times", "last"],
        [
            (
                one.dead_letter_id,
                one.state.value,
                one.event_id,
                one.event_type,
                one.task_id,
                one.queue,
                one.reason,
                one.times,
                ago(one.last_at),
            )
            for one in page.dead_letters
        ],
    )
    if page.next is not None:
        print(f"There are more: --after {page.next}", file=sys.stderr)


@app.command
def show(number: int, /, *, output: Output = "table") -> None:
    """Show one message that a queue gave up, with its body."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.dead_letter(number)

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    print_fields([(name.replace("_", " "), value) for name, value in found])


@app.command
def redrive(
    *numbers: Ids, queue: WaitingOf = None, reason: Reason, output: Output = "table"
) -> None:
    """Send messages to their queues again, the same bytes under the same event id."""
    _settle("redrive", numbers, queue, reason, output)


@app.command
def discard(
    *numbers: Ids, queue: WaitingOf = None, reason: Reason, output: Output = "table"
) -> None:
    """Decide that messages are not needed. They stay in the list."""
    _settle("discard", numbers, queue, reason, output)


def _settle(
    verb: str, numbers: tuple[int, ...], queue: str | None, reason: str, output: str
) -> None:
    if bool(numbers) == (queue is not None):
        raise UsageError("name either numbers or --queue.")
    try:
        settling = Settling(reason=reason)
    except ValidationError as error:
        raise UsageError("--reason: say why.") from error

    async def settle() -> list[DeadLetterDetail]:
        async with open_client() as client:
            send = client.redrive if verb == "redrive" else client.discard
            found = [number async for number in _meant(client, numbers, queue)]
            done = []
            for number in found:
                done.append(await send(number, settling))
                if output != "json":
                    print(f"{number}: {done[-1].state.value}")
            return done

    done = asyncio.run(settle())
    if output == "json":
        print_json([one.model_dump(mode="json") for one in done])
    elif not done:
        print("nothing waits there")


async def _meant(
    client: "AsyncClient", numbers: tuple[int, ...], queue: str | None
) -> AsyncIterator[int]:
    """The numbers given, or those of a queue that wait."""
    for number in numbers:
        yield number
    after: int | None = None
    while queue is not None:
        page = await client.dead_letters(
            state=DeadLetterState.WAITING, queue=queue, limit=_PAGE, after=after
        )
        for one in page.dead_letters:
            yield one.dead_letter_id
        if page.next is None:
            return
        after = page.next
