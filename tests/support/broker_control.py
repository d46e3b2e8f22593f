"""rabbitmqctl on a private broker: for what only an operator at its machine can do to it."""

import asyncio

from tenure.cli.local.binaries import find_rabbitmq
from tenure.cli.local.rabbitmq import PrivateRabbitmq


async def rabbitmqctl(broker: PrivateRabbitmq, *arguments: str) -> None:
    """Run one command; it has to succeed."""
    process = await asyncio.create_subprocess_exec(
        find_rabbitmq().server.with_name("rabbitmqctl"),
        "--quiet",
        *arguments,
        env={
            **broker._environment(),
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        },
        cwd=broker.directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode(errors="replace")
