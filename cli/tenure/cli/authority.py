"""``tenure authority …`` and ``tenure recover``."""

import asyncio
import sys
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from tenure.cli.connection import open_client
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.operations import Recovery

app = App(name="authority", help="See who decides, and whether it may.")

ASK_AGAIN_SECONDS: Final = 5.0


@app.command
def show(*, output: Output = "table") -> None:
    """Show the authority: its epoch, the server it runs on, and whether it grants."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.authority()

    view = asyncio.run(read())
    if output == "json":
        print_json(view)
        return
    proof = view.lost_proof or {}
    print_fields(
        [
            ("authority", view.authority_id),
            ("state", view.state),
            ("epoch", view.stored_epoch),
            ("highest seen", view.highest_epoch_seen),
            ("opened on", f"system {view.system_identifier}, timeline {view.timeline}"),
            (
                "runs on",
                f"system {view.running_system_identifier}, timeline {view.running_timeline}",
            ),
            ("lost since", view.lost_at),
            ("proof", ", ".join(f"{name} {value}" for name, value in proof.items()) or None),
        ]
    )
    print()
    print_table(
        ["epoch", "opened", "cause", "by", "why"],
        [
            (epoch.epoch, ago(epoch.opened_at), epoch.cause, epoch.opened_by, epoch.reason)
            for epoch in view.epochs
        ],
    )


def recover(
    *,
    reason: Annotated[str, Parameter(help="Why, for those who read the history.")],
    above_epoch: Annotated[
        int | None,
        Parameter(
            help="The highest epoch opened on any copy, if you know it: nothing is waited for."
        ),
    ] = None,
    output: Output = "table",
) -> None:
    """Make this database, as it is, the authority from now on, under a new epoch.

    Stop everything that runs on another copy of it first. Waits, for ten minutes at most, until no
    other recovery can have opened the same epoch.
    """
    reply = asyncio.run(_recover(Recovery(reason=reason, above_epoch=above_epoch)))
    if output == "json":
        print_json(reply)
    else:
        print(f"epoch {reply.epoch} is open: the authority grants again")


async def _recover(recovery: Recovery) -> Any:
    said = False
    async with open_client() as client:
        while True:
            try:
                return await client.recover(recovery)
            except TenureError as error:
                if error.code != Code.RECOVERY_TOO_EARLY:
                    raise
                if not said:
                    print(f"waiting: {error.message}", file=sys.stderr)
                said = True
            await asyncio.sleep(ASK_AGAIN_SECONDS)
