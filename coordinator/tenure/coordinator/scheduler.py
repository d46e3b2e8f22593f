"""Gives waiting tasks to nodes. A loop without rules: what it finds becomes commands for a lane.

Any number of replicas may run it: the commit's guards decide which allocation of a task holds.
"""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import structlog
from pydantic_core import from_json, to_json
from uuid_utils.compat import uuid7

from tenure.contract.ids import AttemptId, CommandId, LeaseId, TaskId, TenantId
from tenure.contract.states import AttemptState, EntityType, TaskState
from tenure.coordinator.authority import Authority
from tenure.coordinator.core.commands import Allocate
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.core.limits import Allowances
from tenure.coordinator.core.paging import Cursor, Kind, Page, is_short, pages, read_on
from tenure.coordinator.core.ranking import Placement, plan, rooms
from tenure.coordinator.core.rows import IncarnationRow, TaskRow, TenantRow
from tenure.coordinator.core.snapshot import Snapshot
from tenure.coordinator.errors import Retryable
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.limits import counted
from tenure.coordinator.store.postgres import ConnectionLost, Pool, PostgresError
from tenure.coordinator.store.profiles import Profiles
from tenure.coordinator.store.rows import (
    incarnation_row,
    tenant_row,
    to_datetime,
    to_microseconds,
)

log = structlog.get_logger()

ACTOR: Final = "scheduler"
BATCH: Final = 256
RIPEN: Final = 1000
"""How many tasks at most are noticed at once when their time has come."""
TICK_SECONDS: Final = 0.25
"""How soon this replica notices what other replicas committed, and tasks whose time has come."""
PAGES_AT_ONCE: Final = 8
"""Of tasks that fit nowhere: then others have their turn until the next tick."""
REST_SECONDS: Final = 2.0
"""Before tasks that fit nowhere are read through again."""
SHORTEST_TICK_SECONDS: Final = 0.01
"""Starts that are due in less time than this are given out together, as far as a burst permits."""

_KEEPING_ITS_PLACE: Final = frozenset(
    {AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING}
)

FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
"""Before every place in the queue."""

_QUERIES: Final = named_queries.load("loops.sql")


class Scheduler:
    """Wakes at its replica's own commits, and every tick."""

    def __init__(self, pool: Pool, authority: Authority) -> None:
        self._pool = pool
        self._authority = authority
        self._due = asyncio.Event()
        self._profiles = Profiles()
        self._behind: dict[Kind, Cursor] = {}
        """Where the next look reads on in the queue of a kind."""
        self._rests_until = 0.0  # on the loop's clock
        self._passed = 0  # pages, one after the other
        self._far = False  # whether the next look reads more tasks than there are free slots
        self._had_room: frozenset[str] = frozenset()
        """Nodes that had more room at the last look than all tasks that waited for them needed."""
        self._limited = False
        self._next_start_seconds: float | None = None
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
            node_records = await connection.fetch(_QUERIES["free_nodes"], silence, RIPEN)
            nodes = [row for row in map(incarnation_row, node_records) if row is not None]
            if not nodes:
                return 0
            unlimited = frozenset(
                node.incarnation
                for node in nodes
                if node.cpu_millis is None
                and node.memory_bytes is None
                and all(run.concurrency is None for run in node.profiles)
            )
            around = from_json(node_records[0]["around"])
            if around["ripened"]:
                self._due.set()  # they are seen from the next look on
            tenants = {row.tenant: row for row in map(tenant_row, node_records) if row is not None}
            tenants = await counted(connection, tenants)
            kinds = await self._profiles.kinds(connection, around["kinds"])
            now = to_microseconds(node_records[0]["clock"])
            places = rooms(kinds, nodes, tenants, now)
            self._note_limits(tenants, now)
            if not kinds and not around["ripened"]:
                self._had_room = unlimited
            if not places:
                return 0
            free = sum(node.slots - node.slots_used for node in nodes)
            limit = BATCH if self._far else min(BATCH, free)
            asked = pages(places, self._behind, limit, BATCH)
            task_records = await connection.fetch(_QUERIES["waiting_tasks"], *_arguments(asked))
            if any(place.paces_keys for place in places):
                keys = {record["concurrency_key"] for record in task_records} - {None}
                tenants = await counted(connection, tenants, keys)
        self._far = False
        if not task_records or task_records[0]["epoch"] is None:
            self._behind = {}
            return 0
        read: list[tuple[Page, list[TaskRow]]] = [(page, []) for page in asked]
        for record in task_records:
            read[record["page"] - 1][1].append(self._profiles.judged(record))
        # The first page may have grown into the one behind it.
        tasks = list({task.task_id: task for _, found in read for task in found}.values())
        now = to_microseconds(task_records[0]["clock"])
        placements = plan(tasks, nodes, tenants, around["used"], now, BATCH)
        self._note_limits(tenants, now)
        placed = {one.task_id for one in placements}
        if len(placed) < min(free, BATCH):
            self._look_further(read, placed, limit)
        if not placements:
            return 0
        epoch = task_records[0]["epoch"]
        snapshots = self._snapshots(placements, tasks, nodes, tenants, epoch, now)
        tenant_of = {task.task_id: task.tenant for task in tasks}
        commands = [self._command(one, tenant_of[one.task_id]) for one in placements]
        outcomes = await self._authority.allocate(commands, snapshots)
        allocated = sum(outcome.reply is not None for outcome in outcomes)
        if allocated == len(tasks) < limit and not self._limited:
            self._had_room = unlimited
        return allocated

    def _look_further(
        self,
        read: Sequence[tuple[Page, Sequence[TaskRow]]],
        placed: Collection[TaskId],
        limit: int,
    ) -> None:
        """Some that were read found no place though there is room: others behind them may.

        After the whole queue was read in vain there is a rest, unless something happens here.
        """
        clock = asyncio.get_running_loop().time()
        if clock < self._rests_until:
            return
        if is_short(read, placed) and (limit < BATCH or (placed and self._limited)):
            self._far = True  # among more of them, or without those whose limit is reached now
            self._due.set()
        before, self._behind = self._behind, read_on(read, placed, self._behind, BATCH)
        self._passed = self._passed + 1 if self._behind != before else 0
        if self._behind and self._passed % PAGES_AT_ONCE:
            self._due.set()
        if before and not self._behind and not placed:
            self._rests_until = clock + REST_SECONDS

    def _note_limits(self, tenants: Mapping[TenantId, TenantRow], now: int) -> None:
        """Whether any limits are stated, and when the next start is due by them."""
        self._limited = any(row.limits for row in tenants.values())
        start = Allowances(tenants, now).next_start() if self._limited else None
        self._next_start_seconds = None if start is None else (start - now) / 1_000_000

    @staticmethod
    def _snapshots(
        placements: Sequence[Placement],
        tasks: Sequence[TaskRow],
        nodes: Sequence[IncarnationRow],
        tenants: Mapping[TenantId, TenantRow],
        epoch: int,
        now: int,
    ) -> list[tuple[Snapshot, int]]:
        """What each placement was planned from."""
        task_by_id = {task.task_id: task for task in tasks}
        node_by_id = {node.incarnation: node for node in nodes}
        found = []
        for placement in placements:
            task = task_by_id[placement.task_id]
            node = node_by_id[placement.incarnation]
            tenant = tenants.get(task.tenant)
            found.append((Snapshot(epoch=epoch, task=task, tenant=tenant, incarnation=node), now))
        return found

    @staticmethod
    def _command(placement: Placement, tenant: TenantId) -> Allocate:
        attempt_id = str(uuid7())
        return Allocate(
            command_id=CommandId(attempt_id),
            fingerprint=b"",
            tenant=tenant,
            actor=ACTOR,
            task_id=placement.task_id,
            incarnation=placement.incarnation,
            attempt_id=AttemptId(attempt_id),
            lease_id=LeaseId(str(uuid7())),
            placement=placement,
        )

    def _wake(self, events: Sequence[Happened]) -> None:
        if any(map(self._may_place, events)):
            self._rests_until = 0.0
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
            tick = TICK_SECONDS * random.uniform(0.8, 1.2)
            if self._next_start_seconds is not None:
                tick = max(SHORTEST_TICK_SECONDS, min(tick, self._next_start_seconds))
            async with asyncio.timeout(tick):
                await self._due.wait()
        except TimeoutError:
            pass


def _arguments(asked: Sequence[Page]) -> tuple[list[Any], ...]:
    """Of the query, a page for each place of the arrays."""
    rooms = [page.room for page in asked]
    return (
        [room.tenant for room in rooms],
        [bytes.fromhex(room.profile_digest) for room in rooms],
        [room.cpu_millis for room in rooms],
        [room.memory_bytes for room in rooms],
        [page.limit for page in asked],
        [_members(room.closed_keys) for room in rooms],
        [room.paces_keys for room in rooms],
        [FIRST if page.after is None else to_datetime(page.after[0]) for page in asked],
        [UUID(int=0) if page.after is None else page.after[1] for page in asked],
    )


def _members(keys: frozenset[str]) -> str | None:
    """As an object of the database, in which a member is found without reading the others."""
    return to_json(dict.fromkeys(keys)).decode() if keys else None
