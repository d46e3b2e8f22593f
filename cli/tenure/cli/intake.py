"""``tenure intake …``."""

import asyncio
import sys
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from tenure.cli.connection import open_client
from tenure.cli.output import Output, ago, print_json, print_table

app = App(name="intake", help="See what was enqueued.")


@app.command(name="list")
def list_intake(
    *,
    state: Annotated[
        Literal["waiting", "taken", "refused"] | None, Parameter(help="Only rows in this state.")
    ] = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 50,
    after: Annotated[int | None, Parameter(help="The last row of the page before.")] = None,
    output: Output = "table",
) -> None:
    """List what applications enqueued in transactions of their own, newest first.

    A refused row says why; see `tenure intake retry`.
    """

    async def read() -> Any:
        async with open_client() as client:
            return await client.intake(state=state, limit=limit, after=after)

    page = asyncio.run(read())
    if output == "json":
        print_json(page)
        return
    print_table(
        ["row", "task", "type", "state", "code", "message", "key", "by", "enqueued"],
        [
            (
                entry.intake_id,
                entry.task_id,
                entry.type,
                entry.state,
                entry.code,
                entry.message,
                entry.idempotency_key,
                entry.enqueued_by,
                ago(entry.created_at),
            )
            for entry in page.entries
        ],
    )
    if page.next is not None:
        print(f"There are more: --after {page.next}", file=sys.stderr)


@app.command
def retry(
    *,
    code: Annotated[str | None, Parameter(help="Only what was refused with this code.")] = None,
    type_name: Annotated[str | None, Parameter(name="--type", help="Only this type.")] = None,
    output: Output = "table",
) -> None:
    """Let refused rows be decided anew, once what they were refused for has been put right."""

    async def ask() -> Any:
        async with open_client() as client:
            return await client.retry_intake(code=code, type_name=type_name)

    reply = asyncio.run(ask())
    if output == "json":
        print_json(reply)
        return
    print(f"{reply.retried} rows are decided anew")
