"""When a quorum queue of a single broker outlives a kill.

RabbitMQ (seen with 3.10.8) answers the declaration of a quorum queue, and confirms messages in it,
up to a second before the file that maps the queue's name to its log is written. A broker killed in
that second comes back with the queue but without its log and without a leader: a passive
declaration succeeds, publishes are never confirmed, consumers hang. Tests that kill a broker wait
for the file first; the product has to live with both.
"""

import asyncio

from tenure.cli.local.rabbitmq import PrivateRabbitmq


async def queue_is_on_disk(server: PrivateRabbitmq, queue: str, *, vhost: str = "tenure") -> None:
    """Return once a kill no longer loses this quorum queue. Raises TimeoutError."""
    wanted = f"{vhost}_{queue}".encode()
    async with asyncio.timeout(100):
        while True:
            files = (server.directory / "mnesia").glob("*/quorum/*/names.dets")
            if any(wanted in path.read_bytes() for path in files):
                return
            await asyncio.sleep(0.02)
