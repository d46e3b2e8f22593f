"""``tenure outbox …``."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from tenure.cli import parked, replay
from tenure.cli.connection import open_client
from tenure.cli.output import Output, length, print_fields, print_json, print_table, size
from tenure.contract.tasks import OutboxStatus, ShardStatus

app = App(
    name="outbox", help="See how far publishing is; settle what it could not publish; repeat it."
)
app.command(parked.app)
app.command(parked.retry)
app.command(parked.skip)
app.command(replay.app)

WORST_SHOWN: Final = 5


@app.command
def status(
    *,
    all_shards: Annotated[
        bool, Parameter(name="--all", negative="", help="Every shard, and not only the worst.")
    ] = False,
    output: Output = "table",
) -> None:
    """Show how far publishing is behind the log, who has which shards, and how large the log is."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.outbox()

    outbox: OutboxStatus = asyncio.run(read())
    if output == "json":
        print_json(outbox)
        return
    behind = outbox.lag_rows > 0
    beyond = outbox.rows_beyond_partitions
    print_fields(
        [
            ("log ends at", outbox.head),
            ("not published yet", outbox.lag_rows),
            ("oldest of these", f"{outbox.oldest_unpublished_seconds:.1f} s" if behind else None),
            ("at position", outbox.needed_from if behind else None),
            ("parked", outbox.parked or None),
            ("size on disk", f"{size(outbox.bytes)}, {len(outbox.partitions)} partitions"),
            ("kept since", outbox.kept_since),
            ("to be kept for", length(outbox.keep_seconds)),
            ("beyond partitions", f"{beyond} rows: see docs/operations.md" if beyond else None),
        ]
    )
    print()
    _print_relays(outbox.shards)
    worst = sorted(outbox.shards, key=lambda shard: (-shard.lag_seconds, -shard.lag_rows))
    shown = worst if all_shards else [one for one in worst if one.lag_rows][:WORST_SHOWN]
    if shown:
        print()
        print_table(
            ["shard", "not published yet", "oldest of these", "cursor", "relay"],
            [
                (
                    shard.shard,
                    shard.lag_rows,
                    f"{shard.lag_seconds:.1f} s" if shard.lag_rows else None,
                    shard.position,
                    shard.owner,
                )
                for shard in shown
            ],
        )


def _print_relays(shards: Sequence[ShardStatus]) -> None:
    by_owner: dict[str, list[ShardStatus]] = {}
    for shard in shards:
        by_owner.setdefault(shard.owner or "nobody", []).append(shard)
    print_table(
        ["relay", "shards", "not published yet", "claimed until"],
        [
            (
                owner,
                len(owned),
                sum(shard.lag_rows for shard in owned),
                min((s.claimed_until for s in owned if s.claimed_until), default=None),
            )
            for owner, owned in sorted(by_owner.items())
        ],
    )
