"""``tenure node …``."""

import asyncio
from typing import Any

from cyclopts import App

from tenure.cli.connection import open_client
from tenure.cli.output import Output, ago, print_json, print_table

app = App(name="node", help="See the executors' processes.")


@app.command(name="list")
def list_nodes(*, output: Output = "table") -> None:
    """List the nodes that the coordinator knows: one line for each start of an executor."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.nodes()

    nodes = asyncio.run(read())
    if output == "json":
        print_json(nodes)
        return
    print_table(
        ["node", "state", "software", "slots", "task types", "last seen", "incarnation"],
        [
            (
                node.node_id,
                node.state,
                node.software,
                f"{node.slots_used}/{node.slots}",
                node.task_types,
                ago(node.last_seen_at),
                node.incarnation,
            )
            for node in nodes.nodes
        ],
    )
