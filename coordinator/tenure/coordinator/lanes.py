"""Lanes: commands queue up, and what has queued up while a batch was in flight is the next batch.

Each batch is load → decide → commit. No timer: an idle lane adds no delay, a busy one grows its
batches. An item whose guards did not hold is loaded and decided again; a commit whose outcome is
unknown is repeated with the same command ids, which is safe by design. A decided command belongs to
no request any more: a caller that goes away cancels only what still waits.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog
from uuid_utils import uuid4

from tenure.contract.codes import Code
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, FaultPoints
from tenure.contract.ids import EventId, IncarnationId
from tenure.coordinator.core.commands import (
    AnyCommand,
    AttemptCommand,
)
from tenure.coordinator.core.decide import EVENTS_PER_COMMAND, decide
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    Happened,
    HistoryLost,
    ItemOutcome,
    Outcome,
    Refused,
    Reply,
)
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot
from tenure.coordinator.errors import Overloaded, Unavailable
from tenure.coordinator.lane_entries import Caller, Entry, command_of, row_key
from tenure.coordinator.store.commit import MAX_ITEMS, Committed
from tenure.coordinator.store.load import NOTHING_GIVEN, Loaded
from tenure.coordinator.store.postgres import (
    ConnectionLost,
    PostgresError,
    TryAgain,
    blames_an_item,
)

log = structlog.get_logger()

DEADLINE_SECONDS: Final = 12.0
"""How long a command is tried before its caller is told to repeat it."""
MAX_QUEUED: Final = 20_000
_PAUSE_CAP_SECONDS: Final = 1.0
_LARGEST_EXPONENT: Final = 10


class Observer(Protocol):
    """Told about what a lane does, for the metrics. Must neither wait nor raise."""

    def batch_committed(self, lane: str, items: int, applied: int) -> None:
        """A commit came back."""

    def refused(self, lane: str, code: str) -> None:
        """A command was refused."""

    def evidence_kept(self, code: str) -> None:
        """A delivery was recorded that is not active."""

    def stalled(self, lane: str, error: str) -> None:
        """A batch failed and will be tried again."""


class Consulted(Protocol):
    """What a lane asks when the database says no. Every method raises what the driver raises."""

    async def refresh_policy(self) -> None:
        """Another policy may be in force."""

    async def why_unconfirmed(self) -> Refused:
        """The authority applies nothing at present."""

    async def present(self, commands: Sequence[AttemptCommand]) -> list[bool]:
        """For each command whether its token proves that history was lost; records it."""


LoadFunction = Callable[[Sequence[AnyCommand]], Awaitable[Loaded]]
CommitFunction = Callable[
    [Sequence[tuple[AnyCommand, Accepted]], Sequence[IncarnationId]], Awaitable[Committed]
]


class Lane:
    """One queue of commands about tasks, attempts or nodes, and the loop that empties it."""

    def __init__(
        self,
        name: str,
        load: LoadFunction,
        commit: CommitFunction,
        policy: Callable[[], LeasePolicy],
        observer: Observer,
        on_commit: Callable[[Sequence[Happened]], None],
        faults: FaultPoints = NO_FAULTS,
        *,
        consulted: Consulted | None = None,
        refusal: Callable[[], Unavailable | None] = lambda: None,
    ) -> None:
        """``refusal``: what everybody is told at present instead of anything being decided."""
        self.name = name
        self._load = load
        self._commit = commit
        self._policy = policy
        self._consulted = consulted
        self._refusal = refusal
        self._observer = observer
        self._on_commit = on_commit
        self._faults = faults
        self._queue: deque[Entry] = deque()
        self._filled = asyncio.Event()
        self._closing = False
        self._batch_limit = MAX_ITEMS

    @property
    def queued(self) -> int:
        """Commands that wait, the batch in flight not counted."""
        return len(self._queue)

    async def run(self) -> None:
        """Empty the queue until ``close``; returns when the last answer has been given."""
        batch: list[Entry] = []
        failures = 0
        try:
            while self._queue or not self._closing:
                if not self._queue:
                    self._filled.clear()
                    await self._filled.wait()
                    continue
                batch = self._take_batch()
                if self._turn_away(batch):
                    continue
                if batch and await self._process(batch):
                    failures = 0
                    self._batch_limit = min(MAX_ITEMS, self._batch_limit * 2)
                elif batch:
                    failures = min(failures + 1, _LARGEST_EXPONENT)
                    pause = min(_PAUSE_CAP_SECONDS, 0.01 * 2**failures)
                    await asyncio.sleep(random.uniform(0, pause))
        finally:
            # Cancelled, or worse: nobody is left waiting for an answer that cannot come.
            self._closing = True
            for entry in (*batch, *self._queue):
                self._give_up(entry, "this replica stopped before the outcome was known.")

    def close(self) -> None:
        """Take nothing new; ``run`` returns once everything queued has its answer."""
        self._closing = True
        self._filled.set()

    async def submit(
        self,
        commands: Iterable[AnyCommand],
        *,
        snapshots: Sequence[tuple[Snapshot, int]] | None = None,
        seen: IncarnationId | None = None,
    ) -> list[Outcome]:
        """Outcomes in the order of the commands.

        Raises Overloaded when too much is queued, Unavailable when the deadline passed: nothing is
        known to have changed then, and repeating the same commands is safe.
        """
        if self._closing:
            raise Unavailable("this replica is stopping.")
        caller, entries = self._entries(list(commands), snapshots, seen)
        if len(self._queue) + len(entries) > MAX_QUEUED:
            raise Overloaded(f"{len(self._queue)} commands wait already.")
        self._queue.extend(entries)
        self._filled.set()
        await caller.all_answered
        outcomes: list[Outcome] = []
        for entry in entries:
            if isinstance(entry.answer, Unavailable):
                raise entry.answer
            if entry.command is not None and entry.answer is not None:
                outcomes.append(entry.answer)
        return outcomes

    def _entries(
        self,
        commands: Sequence[AnyCommand],
        snapshots: Sequence[tuple[Snapshot, int]] | None,
        seen: IncarnationId | None,
    ) -> tuple[Caller, list[Entry]]:
        deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        caller = Caller(len(commands) + (seen is not None))
        entries = [Entry(c, deadline, caller) for c in commands]
        if snapshots is not None:
            for entry, snapshot in zip(entries, snapshots, strict=True):
                entry.snapshot = snapshot
        if seen is not None:
            entries.append(Entry(None, deadline, caller, seen=seen))
        return caller, entries

    def _take_batch(self) -> list[Entry]:
        """The next entries, at most one for each task or node, the order of each kept."""
        now = asyncio.get_running_loop().time()
        batch: list[Entry] = []
        left: deque[Entry] = deque()
        keys: set[str] = set()
        while self._queue and len(batch) < self._batch_limit:
            entry = self._queue.popleft()
            if entry.done:
                continue
            if entry.deadline < now:
                self._give_up(entry, "the database did not answer before the deadline.")
                continue
            key = row_key(entry)
            if key is not None and key in keys:
                left.append(entry)
                continue
            if key is not None:
                keys.add(key)
            batch.append(entry)
        self._queue.extendleft(reversed(left))
        return batch

    def _turn_away(self, batch: list[Entry]) -> bool:
        """Whether nothing is decided at present; then all in ``batch`` are told so."""
        if self._refusal() is None:
            return False
        for entry in batch:
            refusal = self._refusal()
            assert refusal is not None
            entry.settle(refusal)
        return True

    async def _process(self, batch: list[Entry]) -> bool:
        """One round over ``batch``; what is left goes back to the head of the queue.

        Returns whether the database answered.
        """
        try:
            again = await self._round(batch)
        except TryAgain as error:
            self._batch_limit = max(1, len(batch) // 2)
            self._postpone(batch, error)
            if len(batch) == 1:
                self._set_aside(batch[0])
            return False
        except ConnectionLost as error:
            return self._postpone(batch, error)
        except Exception as error:  # noqa: BLE001 - one command must not end the lane of all
            if isinstance(error, PostgresError) and not blames_an_item(error):
                return self._postpone(batch, error)
            # Nothing was applied: a call is all or nothing on errors. Find the item that caused it.
            if len(batch) == 1:
                self._refuse_internally(batch[0], error)
                return True
            middle = len(batch) // 2
            return await self._process(batch[:middle]) & await self._process(batch[middle:])
        self._queue.extendleft(reversed(again))
        return True

    async def _round(self, batch: list[Entry]) -> list[Entry]:
        items = await self._decide(batch)
        seen = sorted({entry.seen for entry in batch if entry.seen is not None})
        if not items and not seen:
            return []
        await self._faults.reach(FaultPoint.BEFORE_COMMIT, self.name)
        committed = await self._commit(
            [(command_of(entry), accepted) for entry, accepted in items], seen
        )
        await self._faults.reach(FaultPoint.AFTER_COMMIT, self.name)
        self._observer.batch_committed(
            self.name, len(items), committed.outcomes.count(ItemOutcome.APPLIED)
        )
        for entry in batch:
            if entry.command is None:
                entry.settle(Outcome(committed.now, committed.now))
        again: list[Entry] = []
        happened: list[Happened] = []
        unconfirmed: list[Entry] = []
        policy_in_doubt = False
        for (entry, accepted), outcome, at in zip(
            items, committed.outcomes, committed.decided, strict=True
        ):
            if outcome is ItemOutcome.APPLIED:
                if accepted.reply.outcome == "recorded":
                    self._observer.evidence_kept(str(accepted.reply.code))
                happened.extend(accepted.events)
                self._answer(entry, committed.now, at, accepted.reply)
            elif outcome is ItemOutcome.AUTHORITY_UNCONFIRMED:
                unconfirmed.append(entry)
            else:
                again.append(entry)
                policy_in_doubt |= accepted.reads.policy_version is not None
        if happened:
            self._on_commit(happened)
        # Items that were applied have their answers: the batch can be repeated when this fails.
        await self._refuse_unconfirmed(unconfirmed, committed.now)
        if policy_in_doubt and self._consulted is not None:
            await self._consulted.refresh_policy()
        return again

    async def _decide(self, batch: list[Entry]) -> list[tuple[Entry, Accepted]]:
        """Decide every entry; answers what needs no commit."""
        await self._load_missing(batch)
        policy = self._policy()
        decided: list[tuple[Entry, Accepted]] = []
        lost: list[tuple[Entry, HistoryLost, int]] = []
        for entry in batch:
            if entry.command is None or entry.snapshot is None or entry.done:
                continue
            (snapshot, now), entry.snapshot = entry.snapshot, None
            entry.task_type = None if snapshot.task is None else snapshot.task.type
            decision = decide(entry.command, snapshot, now, _mint(), policy)
            match decision:
                case Accepted():
                    decided.append((entry, decision))
                case Answered():
                    at = now if decision.at is None else decision.at
                    self._answer(entry, now, at, decision.reply, replayed=True)
                case HistoryLost():
                    lost.append((entry, decision, now))
                case Refused():
                    self._refuse(entry, now, decision)
        await self._present(lost)
        return decided

    async def _present(self, lost: Sequence[tuple[Entry, HistoryLost, int]]) -> None:
        """Record what proves that history was lost; what proves nothing is only a wrong token."""
        if not lost or self._consulted is None:
            return
        proven = await self._consulted.present(_presenting([entry for entry, _, _ in lost]))
        for (entry, decision, now), proves in zip(lost, proven, strict=True):
            self._refuse(entry, now, decision if proves else _NEVER_GRANTED)

    async def _load_missing(self, batch: list[Entry]) -> None:
        """Give every entry with a command a snapshot; refuse all when the authority is in doubt."""
        missing = [
            entry
            for entry in batch
            if entry.command is not None and entry.snapshot is None and not entry.done
        ]
        if not missing:
            return
        loaded = await self._load([command_of(entry) for entry in missing])
        if not loaded.confirmed:
            await self._refuse_unconfirmed(missing, loaded.now)
            return
        for number, (entry, snapshot) in enumerate(zip(missing, loaded.snapshots, strict=True)):
            entry.snapshot = (snapshot, loaded.now)
            if loaded.inputs:
                entry.given = loaded.inputs[number]

    async def _refuse_unconfirmed(self, entries: Sequence[Entry], now: int) -> None:
        """Nothing is applied. What the callers present is kept for the recovery all the same."""
        if not entries:
            return
        refused = _UNCONFIRMED
        if self._consulted is not None:
            presenting = _presenting(entries)
            if presenting:
                await self._consulted.present(presenting)
            refused = await self._consulted.why_unconfirmed()
        for entry in entries:
            self._refuse(entry, now, refused)

    def _answer(
        self, entry: Entry, now: int, at: int, reply: Reply, *, replayed: bool = False
    ) -> None:
        given = entry.given or NOTHING_GIVEN
        entry.settle(
            Outcome(
                max(now, at),
                at,
                reply=reply,
                replayed=replayed,
                input_text=given.input_text,
                scope_text=given.scope_text,
                narrowed_text=given.narrowed_text,
                traceparent=given.traceparent,
                checkpoint_text=given.checkpoint_text,
                task_type=entry.task_type,
            )
        )

    def _refuse(self, entry: Entry, now: int, refused: Refused) -> None:
        self._observer.refused(self.name, refused.code)
        if isinstance(entry.command, AttemptCommand):
            log.info(
                "report refused",
                kind=type(entry.command).__name__,
                code=refused.code,
                tenant=entry.command.tenant,
                task_id=entry.command.task_id,
                attempt_id=entry.command.attempt_id,
                node_id=entry.command.node_id,
                fencing_token=entry.command.fencing_token,
            )
        entry.settle(Outcome(now, now, refused=refused))

    def _refuse_internally(self, entry: Entry, error: Exception) -> None:
        log.error(
            "command failed",
            lane=self.name,
            command=type(entry.command).__name__,
            error=str(error) or type(error).__name__,
            sqlstate=error.sqlstate if isinstance(error, PostgresError) else None,
            exc_info=None if isinstance(error, PostgresError) else error,
        )
        if entry.command is None:
            self._give_up(entry, "the database refused the statement.")
        else:
            self._refuse(entry, 0, Refused(Code.INTERNAL_REFUSED, "this command cannot be applied"))

    def _give_up(self, entry: Entry, why: str) -> None:
        entry.settle(Unavailable(why))

    def _postpone(self, batch: list[Entry], error: BaseException) -> bool:
        self._queue.extendleft(reversed(batch))
        self._observer.stalled(self.name, type(error).__name__)
        return False

    def _set_aside(self, entry: Entry) -> None:
        """Behind everything that waits, with what waits behind it for the same row: somebody holds
        that row, and nobody else's commands shall wait for it."""
        key = row_key(entry)
        if key is None:
            return
        rest = [other for other in self._queue if row_key(other) != key]
        same = [other for other in self._queue if row_key(other) == key]
        self._queue = deque((*rest, *same))


def _mint() -> Minted:
    return Minted(tuple(EventId(str(uuid4())) for _ in range(EVENTS_PER_COMMAND)), random.random())


def _presenting(entries: Sequence[Entry]) -> list[AttemptCommand]:
    return [entry.command for entry in entries if isinstance(entry.command, AttemptCommand)]


_NEVER_GRANTED: Final = Refused(
    Code.STALE_TOKEN, "no authority can have granted this fencing token by now"
)
_UNCONFIRMED: Final = Refused(
    Code.AUTHORITY_UNCONFIRMED,
    "the running database server is not the one this authority was opened on",
)
