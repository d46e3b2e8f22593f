"""The books of a run: what was promised, what was committed, what arrived, what was done.

Each is kept by somebody else: the ledger by who submits, the committed log read by its owner, the
arrivals by a consumer at the broker, the writes by a trigger downstream. ``faults`` compares them.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from tenure.contract import codec


@dataclass
class Ledger:
    """Kept by the submitter: which task each of its keys was answered with."""

    tasks: dict[str, str] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)

    def answered(self, key: str, task_id: str) -> None:
        """A submission was answered, perhaps not for the first time."""
        before = self.tasks.setdefault(key, task_id)
        if before != task_id:
            self.contradictions.append(f"key {key} was answered with {before} and {task_id}")


@dataclass(frozen=True)
class Committed:
    """One row of the log."""

    event_id: str
    stream: str
    epoch: int
    sequence: int
    task_id: str
    body: bytes


@dataclass(frozen=True)
class Arrival:
    """One message, in the order in which the consumer saw it."""

    event_id: str
    body: bytes


@dataclass(frozen=True)
class Write:
    """One write that the downstream took, in its order."""

    task_id: str
    operation: str
    fencing_token: int


async def read_log(owner: asyncpg.Connection, exchange: str) -> list[Committed]:
    """What was committed for an exchange, by position; read past the relay and its cursors."""
    rows = await owner.fetch(
        "select event_id, entity_type, entity_id, epoch, sequence, order_key, body"
        ' from tenure.log where exchange = $1 order by "position"',
        exchange,
    )
    return [
        Committed(
            str(row["event_id"]),
            f"{row['entity_type']}/{row['entity_id']}",
            row["epoch"],
            row["sequence"],
            str(row["order_key"]),
            row["body"],
        )
        for row in rows
    ]


def faults(
    *,
    committed: Sequence[Committed] = (),
    arrivals: Sequence[Arrival] | None = None,
    ledger: Ledger | None = None,
    writes: Sequence[Write] = (),
    effects: Sequence[str] | None = None,
) -> list[str]:
    """Everything that is wrong, in words; empty when the books agree.

    What is None was not kept. ``effects``: tasks of which each must have been written, each of its
    operations exactly once.
    """
    return [
        *_log_faults(committed),
        *(_arrival_faults(committed, arrivals) if arrivals is not None else ()),
        *(_ledger_faults(ledger, committed) if ledger is not None else ()),
        *_write_faults(writes, effects),
    ]


def _log_faults(committed: Sequence[Committed]) -> list[str]:
    """EVENT-02: each stream counts 1, 2, 3 … in the order of the log."""
    streams: dict[str, list[int]] = defaultdict(list)
    for row in committed:
        streams[row.stream].append(row.sequence)
    return [
        f"the log of {stream} counts {found}"
        for stream, found in streams.items()
        if found != list(range(1, len(found) + 1))
    ]


def _arrival_faults(committed: Sequence[Committed], arrivals: Sequence[Arrival]) -> list[str]:
    """RELAY-01, RELAY-03: everything at least once, copies alike, first sights in order."""
    known = {row.event_id: row for row in committed}
    seen: set[str] = set()
    highest: dict[str, tuple[int, int]] = {}
    found: list[str] = []
    for arrival in arrivals:
        row = known.get(arrival.event_id)
        if row is None:
            found.append(f"event {arrival.event_id} arrived and was never committed")
            continue
        if arrival.body != row.body:
            found.append(f"event {arrival.event_id} arrived with other bytes")
        if arrival.event_id in seen:
            continue
        seen.add(arrival.event_id)
        event = codec.decode_event(arrival.body)
        place = (event.epoch, event.sequence)
        if place <= highest.get(row.stream, (0, 0)):
            found.append(f"{row.stream} showed {place} after {highest[row.stream]}")
        highest[row.stream] = max(place, highest.get(row.stream, (0, 0)))
    found += [f"event {event_id} never arrived" for event_id in known if event_id not in seen]
    return found


def _ledger_faults(ledger: Ledger, committed: Sequence[Committed]) -> list[str]:
    """OPS-01: what was answered is in the log, and nothing else is."""
    recorded = {row.task_id for row in committed if row.stream.startswith("task/")}
    promised = set(ledger.tasks.values())
    return [
        *ledger.contradictions,
        *(f"task {task} was promised and not recorded" for task in sorted(promised - recorded)),
        *(f"task {task} was recorded and never asked for" for task in sorted(recorded - promised)),
    ]


def _write_faults(writes: Sequence[Write], effects: Sequence[str] | None) -> list[str]:
    """LEASE-02, LEASE-10: once each, and never under a token lower than one before."""
    found: list[str] = []
    highest: dict[str, int] = {}
    for write in writes:
        before = highest.get(write.task_id, 0)
        if write.fencing_token < before:
            found.append(
                f"task {write.task_id} was written under {write.fencing_token} after {before}"
            )
        highest[write.task_id] = max(before, write.fencing_token)
    for (task, operation), count in Counter((w.task_id, w.operation) for w in writes).items():
        if count > 1:
            found.append(f"{operation} of task {task} was written {count} times")
    if effects is not None:
        found += [f"task {task} was never written" for task in effects if task not in highest]
        found += [f"task {task} was written unasked" for task in highest if task not in effects]
    return found
