"""The authority as the rest of the coordinator sees it: its lanes over one database."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic_ns
from typing import Any, Final, cast

import structlog

from tenure.contract.codes import Code
from tenure.contract.faultpoints import NO_FAULTS, FaultPoints
from tenure.contract.ids import IncarnationId
from tenure.contract.topology import DEFAULT_PREFIX
from tenure.coordinator.clock import ClockWatch, Reading
from tenure.coordinator.core.commands import (
    Allocate,
    AnyCommand,
    AttemptCommand,
    Cancel,
    ChangeNode,
    CloseReview,
    Expire,
    HoldRejected,
    Intervention,
    OpenReview,
    Quarantine,
    RefuseIntake,
    Register,
    Renew,
    Revoke,
    RevokeFromNode,
    Submit,
    TakeIn,
)
from tenure.coordinator.core.decisions import Accepted, Happened, Outcome, Refused
from tenure.coordinator.core.snapshot import LeasePolicy, Snapshot
from tenure.coordinator.lanes import Lane, Observer
from tenure.coordinator.policies import Policies
from tenure.coordinator.standby import StandbyWatch
from tenure.coordinator.store import authority as store
from tenure.coordinator.store.commit import Committed, commit
from tenure.coordinator.store.load import (
    Loaded,
    load_allocations,
    load_attempts,
    load_intake,
    load_nodes,
    load_submissions,
)
from tenure.coordinator.store.postgres import Asked, Pool, answering

log = structlog.get_logger()

ACTOR: Final = "coordinator"

HISTORY_LOST: Final = Refused(
    Code.AUTHORITY_HISTORY_LOST,
    "the database has lost history: somebody presented what only a later state can have granted",
)
UNCONFIRMED: Final = Refused(
    Code.AUTHORITY_UNCONFIRMED,
    "the running database server is not the one this authority was opened on",
)


class Authority:
    """Implements ``Admission``. Renewals have a lane and a pool of their own, so that they never
    queue behind bulk work."""

    def __init__(
        self,
        pool: Pool,
        renewal_pool: Pool,
        observer: Observer,
        *,
        policy: LeasePolicy | None = None,
        prefix: str = DEFAULT_PREFIX,
        faults: FaultPoints = NO_FAULTS,
    ) -> None:
        self._pool = pool
        self.clock = ClockWatch()
        self.standby = StandbyWatch(pool)
        self.policies = Policies(pool, policy or LeasePolicy())
        self._prefix = prefix
        self._observer = observer
        self._faults = faults
        self._callbacks: list[Callable[[Sequence[Happened]], None]] = []
        self._submissions = self._lane("submissions", pool, load_submissions)
        self._intake = self._lane("intake", pool, load_intake)
        self._reports = self._lane("reports", pool, load_attempts)
        self._renewals = self._lane("renewals", renewal_pool, load_attempts)
        self._allocations = self._lane("allocations", pool, load_allocations)
        self._nodes = self._lane("nodes", pool, load_nodes)

    @property
    def policy(self) -> LeasePolicy:
        """The terms in force, as this replica knows them."""
        return self.policies.in_force

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes, for their metrics."""
        return (
            self._submissions,
            self._intake,
            self._reports,
            self._renewals,
            self._allocations,
            self._nodes,
        )

    async def run(self) -> None:
        """Work until ``close``; returns when every command has its answer."""
        watching = asyncio.create_task(self.standby.run(), name="standby watch")
        try:
            async with asyncio.TaskGroup() as group:
                for lane in self.lanes:
                    group.create_task(lane.run(), name=f"lane {lane.name}")
        finally:
            watching.cancel()

    def close(self) -> None:
        """Take nothing new."""
        for lane in self.lanes:
            lane.close()

    async def submit(self, commands: Sequence[Submit]) -> list[Outcome]:
        """Record tasks."""
        return await self._submissions.submit(commands)

    async def take_in(self, commands: Sequence[TakeIn | RefuseIntake]) -> list[Outcome]:
        """Decide rows of the intake."""
        return await self._intake.submit(commands)

    async def report(self, commands: Sequence[AttemptCommand]) -> list[Outcome]:
        """What executors say about attempts."""
        return await self._reports.submit(cast("Sequence[AnyCommand]", commands))

    async def renew(self, commands: Sequence[Renew], seen: IncarnationId) -> list[Outcome]:
        """Extend leases, and record that the incarnation was heard of."""
        return await self._renewals.submit(commands, seen=seen)

    async def cancel(self, command: Cancel) -> Outcome:
        """End a task, or ask its attempt to."""
        return (await self._reports.submit([command]))[0]

    async def intervene(self, commands: Sequence[Intervention]) -> list[Outcome]:
        """What operators say about tasks."""
        return await self._reports.submit(commands)

    async def revoke(self, commands: Sequence[Revoke | RevokeFromNode]) -> list[Outcome]:
        """Take the authority of attempts away before its time."""
        return await self._reports.submit(commands)

    async def review(self, command: OpenReview | CloseReview) -> Outcome:
        """Open or close the health review of an incarnation."""
        return (await self._nodes.submit([command]))[0]

    async def quarantine(self, command: Quarantine) -> Outcome:
        """Take a node out of service, or let it back."""
        return (await self._nodes.submit([command]))[0]

    async def hold_rejected(self, commands: Sequence[HoldRejected]) -> list[Outcome]:
        """Hold tasks that every node has rejected which could take them."""
        return await self._allocations.submit(commands)

    async def register(self, command: Register) -> Outcome:
        """Make an incarnation its node's current one."""
        return (await self._nodes.submit([command]))[0]

    async def change_node(self, command: ChangeNode) -> Outcome:
        """Drain an incarnation, or record that it is gone."""
        return (await self._nodes.submit([command]))[0]

    async def allocate(
        self, commands: Sequence[Allocate], snapshots: Sequence[tuple[Snapshot, int]]
    ) -> list[Outcome]:
        """Give waiting tasks to nodes; the scheduler has just loaded what they are decided from."""
        return await self._allocations.submit(commands, snapshots=snapshots)

    async def expire(self, commands: Sequence[Expire]) -> list[Outcome]:
        """End what has lost its authority or its time."""
        return await self._reports.submit(commands)

    def on_commit(self, callback: Callable[[Sequence[Happened]], None]) -> None:
        """Call ``callback`` after each commit with its events. It must neither wait nor raise."""
        self._callbacks.append(callback)

    async def refresh_policy(self) -> None:
        """Read the policy in force. Raises what the driver raises."""
        await self.policies.refresh()

    async def why_unconfirmed(self) -> Refused:
        """Why nothing is applied at present. Raises what the driver raises."""
        found = await store.standing(self._pool)
        if found.lost_since is not None:
            return HISTORY_LOST
        return UNCONFIRMED

    async def present(self, commands: Sequence[AttemptCommand]) -> list[bool]:
        """For each command whether its token proves that history was lost: that is recorded, and
        from then on nothing is granted (LEASE-04). Raises what the driver raises."""
        proven = await store.present_tokens(
            self._pool,
            [
                store.PresentedToken(
                    command.tenant,
                    command.task_id,
                    command.fencing_token,
                    f"{command.actor} ({command.node_id})",
                )
                for command in commands
            ],
        )
        for command, proves in zip(commands, proven, strict=True):
            if proves:
                log.error(
                    "history was lost: nothing is granted until somebody recovers the authority",
                    code=Code.AUTHORITY_HISTORY_LOST,
                    task_id=command.task_id,
                    fencing_token=command.fencing_token,
                    by=command.actor,
                )
        return proven

    async def standing(self) -> store.Standing:
        """How the authority stands. Opens the next epoch first when the server was promoted and the
        policy says to go on. Raises what the driver raises."""
        sent = monotonic_ns() // 1000
        found = await store.standing(self._pool)
        step = self.clock.observe(Reading(sent, found.clock, monotonic_ns() // 1000))
        if step < 0:
            log.error("the database's clock was set back", seconds=-step / 1_000_000)
        elif step > 0:
            log.warning("the database's clock leapt forward", seconds=step / 1_000_000)
        if found.epoch is None and found.lost_since is None:
            epoch = await store.open_epoch_after_promotion(self._pool, ACTOR)
            if epoch is not None:
                log.warning(
                    "the database server was promoted: a new epoch was opened",
                    epoch=epoch,
                    before=found.stored_epoch,
                )
            found = await store.standing(self._pool)
        return found

    def _committed(self, events: Sequence[Happened]) -> None:
        for callback in self._callbacks:
            callback(events)

    def _lane(
        self, name: str, pool: Pool, load: Callable[[Asked, Sequence[Any]], Awaitable[Loaded]]
    ) -> Lane:
        async def commit_items(
            items: Sequence[tuple[AnyCommand, Accepted]], seen: Sequence[IncarnationId]
        ) -> Committed:
            try:
                async with answering(pool) as connection:
                    with self.standby.attended(connection):
                        return await commit(connection, items, seen=seen, prefix=self._prefix)
            except TimeoutError:
                await self.standby.look()
                raise

        async def load_items(commands: Sequence[Any]) -> Loaded:
            async with answering(pool) as connection:
                return await load(connection, commands)

        return Lane(
            name,
            load_items,
            commit_items,
            lambda: self.policy,
            self._observer,
            self._committed,
            self._faults,
            consulted=self,
            refusal=self.standby.refusal,
        )
