"""Ends what has lost its authority or its time, holds what every node has rejected, and keeps the
log's partitions ahead.

Housekeeping only: expiry is judged at every decision, so nothing becomes valid again while this
does not run. A loop without rules: what it finds becomes commands for a lane.
"""

import asyncio
import random
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import structlog

from tenure.contract.ids import AttemptId, CommandId, IncarnationId, NodeId, TaskId, TenantId
from tenure.contract.states import NodeState
from tenure.coordinator.authority import Authority
from tenure.coordinator.core.commands import (
    ChangeNode,
    CloseReview,
    Expire,
    HoldRejected,
    OpenReview,
    RevokeFromNode,
)
from tenure.coordinator.errors import Retryable
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError

log = structlog.get_logger()

ACTOR: Final = "sweeper"
BATCH: Final = 256
TICK_SECONDS: Final = 0.5
HOUSEKEEPING_SECONDS: Final = 30.0
PARTITIONS_AHEAD: Final = 2
FORGOTTEN_AT_ONCE: Final = 10_000
"""Buckets of starts that are full again, for each look after the house."""

_QUERIES: Final = named_queries.load("loops.sql")


class Sweeper:
    """Runs on every replica; guards decide which of them ends what.

    ``node_retired_seconds``: after a silence of so long a start of a node that holds nothing has
    gone.
    """

    def __init__(
        self, pool: Pool, authority: Authority, *, node_retired_seconds: float = 600.0
    ) -> None:
        self._pool = pool
        self._authority = authority
        self._node_retired_after = timedelta(seconds=node_retired_seconds)
        self.last_run_at: float | None = None
        self._housekeeping_at = 0.0
        self._rejected_after = UUID(int=0)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            swept = 0
            try:
                swept = await self.step()
                self.last_run_at = asyncio.get_running_loop().time()
            except (Retryable, PostgresError, *ConnectionLost) as error:
                log.warning("sweeper stalled", error=str(error) or type(error).__name__)
            if swept < BATCH:
                await asyncio.sleep(TICK_SECONDS * random.uniform(0.8, 1.2))

    async def step(self) -> int:
        """One look; how many attempts and tasks were ended."""
        records = await self._pool.fetch(_QUERIES["lost_tasks"], BATCH)
        commands = [
            Expire(
                command_id=CommandId(str(uuid4())),
                fingerprint=b"",
                tenant=TenantId(record["tenant"]),
                actor=ACTOR,
                task_id=TaskId(str(record["task_id"])),
            )
            for record in records
        ]
        outcomes = await self._authority.expire(commands) if commands else []
        await self._revoke()
        await self._review()
        await self._hold_rejected()
        now = asyncio.get_running_loop().time()
        if now >= self._housekeeping_at:
            await self._keep_house()
            self._housekeeping_at = now + HOUSEKEEPING_SECONDS * random.uniform(0.8, 1.2)
        return sum(outcome.reply is not None for outcome in outcomes)

    async def _revoke(self) -> None:
        """Do not wait for leases of which it is known that nobody answers for them."""
        records = await self._pool.fetch(_QUERIES["attempts_to_revoke"], BATCH)
        if records:
            await self._authority.revoke(
                [
                    RevokeFromNode(
                        command_id=CommandId(str(uuid4())),
                        fingerprint=b"",
                        tenant=TenantId(record["tenant"]),
                        actor=ACTOR,
                        task_id=TaskId(str(record["task_id"])),
                        attempt_id=AttemptId(str(record["attempt_id"])),
                        message=record["message"],
                    )
                    for record in records
                ]
            )

    async def _review(self) -> None:
        """Look into missing heartbeats, and stop looking when they are back."""
        silence = timedelta(microseconds=self._authority.policy.node_silence_microseconds)
        for record in await self._pool.fetch(_QUERIES["nodes_to_review"], silence, BATCH):
            about: dict[str, Any] = {
                "command_id": CommandId(str(uuid4())),
                "fingerprint": b"",
                "tenant": TenantId(record["tenant"]),
                "actor": ACTOR,
                "node_id": NodeId(record["node_id"]),
                "incarnation": IncarnationId(str(record["incarnation"])),
            }
            if record["under_review"]:
                await self._authority.review(CloseReview(**about, message=None))
            elif (await self._authority.review(OpenReview(**about))).reply is not None:
                log.warning("node under health review", node_id=about["node_id"])

    async def _hold_rejected(self) -> None:
        """Look at the next of the waiting tasks that nodes have rejected: in turn, since those that
        another node may still take stay among them."""
        records = await self._pool.fetch(_QUERIES["rejected_tasks"], self._rejected_after, BATCH)
        self._rejected_after = records[-1]["task_id"] if len(records) == BATCH else UUID(int=0)
        if records:
            await self._authority.hold_rejected(
                [
                    HoldRejected(
                        command_id=CommandId(str(uuid4())),
                        fingerprint=b"",
                        tenant=TenantId(record["tenant"]),
                        actor=ACTOR,
                        task_id=TaskId(str(record["task_id"])),
                    )
                    for record in records
                ]
            )

    async def _keep_house(self) -> None:
        await self._pool.execute("select tenure.ensure_log_partitions($1)", PARTITIONS_AHEAD)
        await self._pool.execute("select tenure.forget_full_buckets($1)", FORGOTTEN_AT_ONCE)
        while await self._retire_nodes() == BATCH:
            pass

    async def _retire_nodes(self) -> int:
        """Starts that nobody has heard of for long are gone: their queues may go too."""
        silent = await self._pool.fetch(
            _QUERIES["silent_incarnations"], self._node_retired_after, BATCH
        )
        outcomes = await asyncio.gather(*(self._retire(record) for record in silent))
        return sum(outcomes)

    async def _retire(self, record: Any) -> bool:
        command_id = str(uuid4())
        outcome = await self._authority.change_node(
            ChangeNode(
                command_id=CommandId(command_id),
                fingerprint=command_id.encode(),
                tenant=TenantId(record["tenant"]),
                actor=ACTOR,
                node_id=NodeId(record["node_id"]),
                incarnation=IncarnationId(str(record["incarnation"])),
                next_state=NodeState.GONE,
            )
        )
        return outcome.reply is not None
