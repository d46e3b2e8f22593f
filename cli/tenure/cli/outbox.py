"""``tenure outbox …``."""

import asyncio
from typing import Any

from cyclopts import App

from tenure.cli.connection import open_client
from tenure.cli.output import Output, print_fields, print_json, print_table

app = App(name="outbox", help="See how far publishing is.")


@app.command
def status(*, output: Output = "table") -> None:
    """Show how far publishing is behind the log, and which relay has which shards."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.outbox()

    outbox = asyncio.run(read())
    if output == "json":
        print_json(outbox)
        return
    print_fields(
        [
            ("log ends at", outbox.head),
            ("not published yet", outbox.lag_rows),
            ("oldest of these", f"{outbox.oldest_unpublished_seconds:.1f} s"),
        ]
    )
    by_owner: dict[str, list[Any]] = {}
    for shard in outbox.shards:
        by_owner.setdefault(shard.owner or "nobody", []).append(shard)
    print()
    print_table(
        ["relay", "shards", "not published yet", "claimed until"],
        [
            (
                owner,
                len(shards),
                sum(shard.lag_rows for shard in shards),
                min((s.claimed_until for s in shards if s.claimed_until), default=None),
            )
            for owner, shards in sorted(by_owner.items())
        ],
    )
