"""``make trial-broker-cluster``: three brokers, the leader of the queues killed, then the majority.

Tasks are submitted all the time. A subscription's consumer must in the end have got every event of
the log at least once and each stream in order; while two of three brokers are gone nothing is
published, and nothing is refused to applications. The last line of the output is JSON.
"""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
from aio_pika.abc import AbstractIncomingMessage

from tenure.cli.local.binaries import RabbitmqBinaries
from tenure.cli.local.rabbitmq import PrivateRabbitmq
from tenure.contract.codec import decode_event
from tenure.contract.events import Event
from tests.support.coordinator import Fleet, fleet
from tests.support.isolation import BrokerSpace, DatabaseServer
from tests.support.relays import relaying
from tests.support.services import local_postgres, session_directory
from tests.support.waiting import eventually
from tests.trials import ending

NODES = 3
TASKS_EACH = 100
SETTINGS = {
    "cluster_formation.peer_discovery_backend": "classic_config",
    **{f"cluster_formation.classic_config.nodes.{n}": f"n{n}@localhost" for n in (1, 2, 3)},
    "cluster_formation.randomized_startup_delay_range.min": "0",
    "cluster_formation.randomized_startup_delay_range.max": "1",
}


class Member(PrivateRabbitmq):
    """One broker of the cluster. All share the name server of the first, its cookie and login."""

    def __init__(self, folder: Path, number: int, first: "Member | None") -> None:
        super().__init__(folder, settings=SETTINGS)
        self.number = number
        self._first = self if first is None else first

    def share(self) -> None:
        """Have the first one's secrets, before this one starts."""
        for name in ("password", "cookie"):
            self._state.acquire()
            self._state.write(self._state.path / name, self._first._state.secret(name))

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {
            "RABBITMQ_NODENAME": f"n{self.number}@localhost",
            "ERL_EPMD_PORT": str(self._first._port_of("epmd")),
        }

    async def _names_serve(self, binaries: RabbitmqBinaries) -> bool:
        return self._first is not self or await super()._names_serve(binaries)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[list[Member]]:
    """Three brokers that know of each other."""
    members: list[Member] = []
    for number in range(1, NODES + 1):
        member = Member(folder / f"n{number}", number, members[0] if members else None)
        members.append(member)
    try:
        async with asyncio.TaskGroup() as starting:
            starting.create_task(members[0].start())
            await asyncio.sleep(1)
            for member in members[1:]:
                member.share()
                starting.create_task(member.start())
        yield members
    finally:
        for member in members:
            member.kill()
        for member in reversed(members):
            await member.stop()


class Witness:
    """What came out of the subscription's queue, over whichever broker lives."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def consume(self, members: list[Member], queue: str) -> None:
        """Until cancelled."""
        while True:
            for member in members:
                try:
                    async with await aio_pika.connect(member.url(), timeout=5) as connection:
                        channel = await connection.channel()
                        await channel.set_qos(100)
                        found = await channel.declare_queue(queue, passive=True, timeout=5)
                        await found.consume(self._take, timeout=5)
                        await connection.closed()
                except (aio_pika.exceptions.AMQPError, OSError, RuntimeError, TimeoutError):
                    await asyncio.sleep(0.2)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        self.events.append(decode_event(message.body))
        await message.ack()

    def faults(self, logged: list[tuple[str, int]]) -> list[str]:
        """What is wrong with what came, against the log."""
        seen = {event.event_id for event in self.events}
        faults = [f"event {event_id} never came" for event_id, _ in logged if event_id not in seen]
        last: dict[str, int] = {}
        first_time: set[str] = set()
        for event in self.events:
            if event.event_id in first_time:
                continue
            first_time.add(event.event_id)
            if event.sequence != last.get(event.entity_id, 0) + 1:
                faults.append(f"stream {event.entity_id} came out of order")
            last[event.entity_id] = event.sequence
        return faults


async def burst(api: Fleet) -> float:
    """Tasks, each ended at once; the longest that an application waited, in seconds."""
    longest = 0.0
    for _ in range(TASKS_EACH):
        began = time.monotonic()
        task_id = await api.submit()
        await api.operator.post(f"/v1/tasks/{task_id}/cancel", {})
        longest = max(longest, time.monotonic() - began)
    return longest


async def published(owner: asyncpg.Connection) -> float:
    """Wait until the relay has published everything; how long that took, in seconds."""
    began = time.monotonic()

    async def all_passed() -> bool:
        return not await owner.fetchval(
            "select exists (select from tenure.relay_shards s join tenure.log l"
            " on l.shard = s.shard and l.position > s.position)"
        )

    await eventually(all_passed)
    return round(time.monotonic() - began, 1)


async def run(folder: Path) -> dict[str, Any]:
    """One run; its figures, with ``faults``."""
    figures: dict[str, Any] = {}
    async with local_postgres(folder) as postgres, cluster(folder) as members:
        server = DatabaseServer(postgres.url())
        await server.prepare()
        database = await server.create_migrated(f"trial_{secrets.token_hex(4)}")
        owner = await asyncpg.connect(database.admin_url)
        space = BrokerSpace(members[1].url(), "trial")
        leader = BrokerSpace(members[0].url(), "trial")
        async with fleet(database, leader) as api:  # what it declares has its leader on the first
            await api.operator.post("/v1/profiles", {"task_types": [{"name": "sha256"}]})
            reply = await api.operator.post(
                "/v1/subscriptions", {"name": "witness", "events": ["task"]}
            )
            queue = reply.json()["subscription"]["queue"]
        witness = Witness()
        async with (
            fleet(database, space) as api,
            relaying(database.relay_url, space.url, space.name_prefix),
        ):
            consuming = asyncio.create_task(witness.consume(members[1:] + members[:1], queue))
            figures["longest_wait_seconds"] = await burst(api)
            figures["published_after_seconds"] = await published(owner)
            members[0].kill()
            figures["longest_wait_without_leader_seconds"] = await burst(api)
            figures["published_without_leader_after_seconds"] = await published(owner)
            members[2].kill()
            figures["longest_wait_without_majority_seconds"] = await burst(api)
            await asyncio.sleep(5)
            figures["came_before_majority_was_back"] = len(witness.events)
            await members[2].start()
            figures["published_with_majority_after_seconds"] = await published(owner)
            await members[0].start()
            await burst(api)
            figures["published_by_all_after_seconds"] = await published(owner)
            rows = await owner.fetch(
                "select event_id::text as event_id, sequence from tenure.log"
                " where entity_type = 'task' and not copy order by position"
            )
            logged = [(row["event_id"], row["sequence"]) for row in rows]
            deadline = time.monotonic() + 60
            await eventually(lambda: not witness.faults(logged) or time.monotonic() >= deadline)
            consuming.cancel()
        await owner.close()
        figures |= {
            "events": len(logged),
            "came": len(witness.events),
            "faults": witness.faults(logged)[:5],
        }
    return figures


async def main(folder: Path) -> int:
    """Run once, and say so."""
    figures = await run(folder)
    print(json.dumps(figures))
    return 1 if figures["faults"] else 0


if __name__ == "__main__":
    with session_directory() as folder:
        sys.exit(ending.run(main(folder)))
