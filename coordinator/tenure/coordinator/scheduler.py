"""Gives waiting tasks to nodes. A loop without rules: what it finds becomes commands for a lane.

Any number of replicas may run it: the commit's guards decide which allocation of a task holds.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import structlog
from uuid_utils.compat import uuid7

from tenure.contract.ids import AttemptId, CommandId, LeaseId, TenantId
from tenure.contract.states import AttemptState, EntityType, TaskState
from tenure.coordinator.authority import Authority
from tenure.coordinator.core.commands import Allocate
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.core.ranking import plan, rooms
from tenure.coordinator.core.rows import IncarnationRow, TaskRow, TenantRow
from tenure.coordinator.core.snapshot import Snapshot
from tenure.coordinator.errors import Retryable
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError
from tenure.coordinator.store.rows import (
    incarnation_row,
    judged_task_row,
    tenant_row,
    to_microseconds,
)

log = structlog.get_logger()

ACTOR: Final = "scheduler"
BATCH: Final = 256
TICK_SECONDS: Final = 0.25
"""How soon this replica notices what other replicas committed, and tasks whose time has come."""

_KEEPING_ITS_PLACE: Final = frozenset(
    {AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING}
)

_QUERIES: Final = named_queries.load("loops.sql")


class Scheduler:
    """Wakes at its replica's own commits, and every tick."""

    def __init__(self, pool: Pool, authority: Authority) -> None:
        self._pool = pool
        self._authority = authority
        self._due = asyncio.Event()
        self._far = False  # whether the next look reads more tasks than there are free slots
        self._had_room: frozenset[str] = frozenset()
        """Nodes that had more room at the last look than all tasks that waited for them needed."""
        self.last_run_at: float | None = None
        authority.on_commit(self._wake)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                allocated = await self.step()
                self.last_run_at = asyncio.get_running_loop().time()
            except (Retryable, PostgresError, *ConnectionLost) as error:
                log.warning("scheduler stalled", error=str(error) or type(error).__name__)
                allocated = 0
                await asyncio.sleep(random.uniform(0.1, 1.0))
            if allocated < BATCH:
                await self._wait()

    async def step(self) -> int:
        """One look at the waiting tasks; how many allocations were applied."""
        self._due.clear()
        self._had_room = frozenset()
        async with self._pool.acquire() as connection:
            silence = timedelta(microseconds=self._authority.policy.node_silence_microseconds)
            node_records = await connection.fetch(_QUERIES["free_nodes"], silence)
            nodes = [row for row in map(incarnation_row, node_records) if row is not None]
            if not nodes:
                return 0
            tenants = {row.tenant: row for row in map(tenant_row, node_records) if row is not None}
            kinds = rooms(nodes)
            free = sum(node.slots - node.slots_used for node in nodes)
            limit = BATCH if self._far else min(BATCH, free)
            task_records = await connection.fetch(
                _QUERIES["waiting_tasks"],
                [kind.tenant for kind in kinds],
                [kind.type for kind in kinds],
                [kind.cpu_millis for kind in kinds],
                [kind.memory_bytes for kind in kinds],
                limit,
            )
        self._far = False
        unlimited = frozenset(
            node.incarnation
            for node in nodes
            if node.cpu_millis is None and node.memory_bytes is None
        )
        if not task_records:
            self._had_room = unlimited
            return 0
        if task_records[0]["epoch"] is None:
            return 0
        tasks = [row for row in map(judged_task_row, task_records) if row is not None]
        now = to_microseconds(task_records[0]["clock"])
        allocated = await self._allocate(tasks, nodes, tenants, task_records[0]["epoch"], now)
        if allocated < len(tasks) == limit < BATCH:
            # Some that were read found no place: others behind them may.
            self._far = True
            self._due.set()
        if allocated == len(tasks) < limit:
            self._had_room = unlimited
        return allocated

    async def _allocate(
        self,
        tasks: Sequence[TaskRow],
        nodes: Sequence[IncarnationRow],
        tenants: Mapping[TenantId, TenantRow],
        epoch: int,
        now: int,
    ) -> int:
        task_by_id = {task.task_id: task for task in tasks}
        node_by_id = {node.incarnation: node for node in nodes}
        commands: list[Allocate] = []
        snapshots: list[tuple[Snapshot, int]] = []
        for task_id, incarnation in plan(tasks, nodes, tenants, now):
            task, node = task_by_id[task_id], node_by_id[incarnation]
            attempt_id = str(uuid7())
            commands.append(
                Allocate(
                    command_id=CommandId(attempt_id),
                    fingerprint=b"",
                    tenant=task.tenant,
                    actor=ACTOR,
                    task_id=task_id,
                    incarnation=incarnation,
                    attempt_id=AttemptId(attempt_id),
                    lease_id=LeaseId(str(uuid7())),
                )
            )
            snapshot = Snapshot(
                epoch=epoch, task=task, tenant=tenants.get(task.tenant), incarnation=node
            )
            snapshots.append((snapshot, now))
        if not commands:
            return 0
        outcomes = await self._authority.allocate(commands, snapshots)
        return sum(outcome.reply is not None for outcome in outcomes)

    def _wake(self, events: Sequence[Happened]) -> None:
        if any(map(self._may_place, events)):
            self._due.set()

    def _may_place(self, event: Happened) -> bool:
        """Whether something can be given to a node that could not before. The tick finds what this
        overlooks."""
        if event.entity_type is EntityType.TASK:
            return event.next_state == TaskState.OPEN
        if event.entity_type is EntityType.ATTEMPT and event.next_state == AttemptState.DELIVERED:
            return event.incarnation not in self._had_room
        return event.next_state not in _KEEPING_ITS_PLACE

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(TICK_SECONDS * random.uniform(0.8, 1.2)):
                await self._due.wait()
        except TimeoutError:
            pass
