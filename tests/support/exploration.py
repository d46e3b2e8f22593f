"""Every interleaving of a small world, on the real decisions.

A situation is what the authority has stored, what executors were granted and never forget, and what
coordinators have decided but not committed. From each, every command that anybody could send is
loaded and decided, and what was accepted is committed at once, or kept by a coordinator that is
slow, paused or cut off while anything else happens, and committed later.

Executors are not modelled: any report about any attempt that was ever granted may come at any time,
again, in any order, or never. So every loss, repetition and reordering of messages is among these
histories, and every executor, also one that ran on long after its lease.

Two situations are the same when nothing that a decision or a guard can see tells them apart: times
count from now, versions and sequences not at all, since every step is judged by itself.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tenure.contract.codes import Code
from tenure.contract.ids import (
    GENERATION_LIMIT,
    EventId,
    FencingToken,
)
from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
)
from tenure.coordinator.core import decide as deciding
from tenure.coordinator.core.commands import NOT_STORED, AnyCommand, AttemptCommand, TakeIn
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    Decision,
    HistoryLost,
    ItemOutcome,
    Refused,
)
from tenure.coordinator.core.rows import PauseRow, TenantRow
from tenure.coordinator.core.snapshot import Minted
from tenure.coordinator.model.commit import commit, versions_hold
from tenure.coordinator.model.rows import Rows, load
from tests.support.invariants import judge_rows, judge_step
from tests.support.oracle import SILENCE, Broken, authorized, check, clock_for, has_effect
from tests.support.scenes import TICK, Grant, Scene

CLOCK_TICKS = 3
"""How far a clock goes that steps back."""
MINTED = Minted((EventId("first"), EventId("second")), 0.5)


@dataclass(frozen=True, slots=True)
class Decided:
    """What a coordinator has decided, and not committed yet."""

    command: AnyCommand
    accepted: Accepted


@dataclass(frozen=True, slots=True)
class Situation:
    """One point of one history."""

    rows: Rows
    granted: tuple[Grant, ...] = ()
    in_flight: tuple[Decided, ...] = ()
    backup: Rows | None = None
    behind: bool = False  # restored, and nobody has noticed
    restores: int = 0
    promotions: int = 0


Key: TypeAlias = tuple[Any, ...]


@dataclass
class Findings:
    """What was seen on the way."""

    situations: int = 0
    decisions: int = 0
    commits: int = 0
    refused: Counter[tuple[str, Code]] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[ItemOutcome] = field(default_factory=Counter)
    moves: set[tuple[str, str, str]] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)
    evidence: set[str] = field(default_factory=set)

    def add(self, other: "Findings") -> None:
        """Count what ``other`` has found as well."""
        self.situations += other.situations
        self.decisions += other.decisions
        self.commits += other.commits
        self.refused += other.refused
        self.accepted += other.accepted
        self.outcomes += other.outcomes
        self.moves |= other.moves
        self.reasons |= other.reasons
        self.evidence |= other.evidence


def explore(scene: Scene, *, limit: int | None = None) -> Findings:
    """Visit every situation of a scene; raises ``Broken`` with the history that leads to a broken
    invariant. ``limit``: give up after so many situations, which is an error."""
    explorer = _Explorer(scene)
    explorer.run(limit)
    return explorer.findings


class _Explorer:
    def __init__(self, scene: Scene) -> None:
        self.findings = Findings()
        self._scene = scene
        self._seen: dict[Key, tuple[Key | None, str]] = {}
        self._waiting: deque[tuple[Key, Situation]] = deque()

    def run(self, limit: int | None) -> None:
        first = Situation(self._scene.beginning())
        judge_rows(first.rows)
        self._reach(first, None, "the beginning")
        while self._waiting:
            key, situation = self._waiting.popleft()
            self.findings.situations += 1
            if limit is not None and self.findings.situations > limit:
                raise AssertionError(f"{self._scene.name}: more than {limit} situations")
            for name, following in self._steps(key, situation):
                self._reach(following, key, name)

    def _reach(self, situation: Situation, parent: Key | None, name: str) -> None:
        key = canonical(situation)
        if self._scene.clock_steps_back:
            key = (key, _instants(situation.rows))
        if key not in self._seen:
            self._seen[key] = (parent, name)
            self._waiting.append((key, situation))

    def _history(self, key: Key | None) -> str:
        names: list[str] = []
        while key is not None:
            key, name = self._seen[key]
            names.append(name)
        return "\n  ".join(reversed(names))

    def _steps(self, key: Key, situation: Situation) -> Iterator[tuple[str, Situation]]:
        name = ""
        try:
            for command in self._scene.commands(situation.rows, situation.granted):
                name = f"{type(command).__name__} {command.command_id}"
                yield from ((name, one) for one in self._decide(situation, command, name))
            for number, decided in enumerate(situation.in_flight):
                name = f"late commit of {decided.command.command_id}"
                others = situation.in_flight[:number] + situation.in_flight[number + 1 :]
                yield name, self._commit(replace(situation, in_flight=others), decided)
            name = "elsewhere"
            yield from self._elsewhere(situation)
        except Broken as broken:
            raise Broken(
                f"{broken}\nin the scene {self._scene.name!r}, after:\n  "
                f"{self._history(key)}\n  {name}"
            ) from None

    def _decide(self, situation: Situation, command: AnyCommand, name: str) -> Iterator[Situation]:
        rows = situation.rows
        if not rows.confirmed:
            return  # lanes answer without a decision
        snapshot = load(rows, command)
        policy = replace(self._scene.policy, version=rows.policy_version)
        decision = deciding.decide(command, snapshot, rows.now, MINTED, policy)
        self.findings.decisions += 1
        if not isinstance(decision, Accepted):
            self._judge_refusal(situation, command, decision)
            if isinstance(decision, HistoryLost):
                yield replace(situation, rows=replace(rows, confirmed=False), behind=False)
            return
        decided = Decided(command, decision)
        if situation.behind:
            return  # a lost history is noticed before anything is granted: see Scene
        yield self._commit(situation, decided, fresh=True)
        if len(situation.in_flight) < self._scene.in_flight:
            yield replace(situation, in_flight=(*situation.in_flight, decided))

    def _judge_refusal(self, situation: Situation, command: AnyCommand, decision: Decision) -> None:
        rows = situation.rows
        # What a row of the intake asks for may be decided already; the row is not.
        unstored = isinstance(command, (*NOT_STORED, TakeIn))
        stored = None if unstored else rows.commands.get(command.command_id)
        if isinstance(decision, Refused):
            self.findings.refused[type(command).__name__, decision.code] += 1
            same = stored is not None and stored.fingerprint == command.fingerprint
            check(not same, "STATE-01: a repetition is given the first answer")
            if isinstance(decision, HistoryLost):
                assert isinstance(command, AttemptCommand)
                check(
                    command.fencing_token > _highest(rows, command),
                    "LEASE-04: only a token from a later history proves that one is lost",
                )
        elif isinstance(decision, Answered) and stored is not None:
            check(
                stored.fingerprint == command.fingerprint,
                "STATE-01: one id does not stand for two things",
            )
            check(
                decision.reply == stored.reply, "STATE-01: a repetition is given the first answer"
            )
        if isinstance(command, AttemptCommand) and stored is None:
            check(
                isinstance(decision, Answered)
                or not (
                    authorized(rows, command, clock_for(rows, command))
                    and has_effect(rows, command)
                ),
                "LEASE-02: what is authorized and permitted is not refused",
            )

    def _commit(self, situation: Situation, decided: Decided, *, fresh: bool = False) -> Situation:
        before = situation.rows
        command, accepted = decided.command, decided.accepted
        outcome, after = commit(before, command, accepted)
        self.findings.commits += 1
        self.findings.outcomes[outcome] += 1
        if outcome is not ItemOutcome.APPLIED:
            check(not fresh, f"a decision on what is there is not applied: {outcome.name}")
            return situation
        self.findings.accepted[type(command).__name__] += 1
        tokens = {
            task_id: max(
                (one.fencing_token for one in situation.granted if one.task_id == task_id),
                default=FencingToken(0),
            )
            for task_id in before.tasks
        }
        judge_step(before, command, accepted, after, tokens)
        judge_rows(after)
        again, _ = commit(after, command, accepted)
        check(
            again is not ItemOutcome.APPLIED or not accepted.events,
            "STATE-01: what is committed twice, after an unknown outcome, is applied once",
        )
        self._note(accepted)
        granted = situation.granted + tuple(
            Grant(row.task_id, row.attempt_id, row.node_id, row.incarnation, row.fencing_token)
            for attempt_id, row in after.attempts.items()
            if attempt_id not in before.attempts
        )
        backup = situation.backup
        if self._scene.restores and backup is None and granted and not situation.restores:
            backup = after  # taken when the first attempt had been granted
        return self._settled(replace(situation, rows=after, granted=granted, backup=backup))

    def _settled(self, situation: Situation) -> Situation:
        """Without decisions in flight whose versions have passed: they will never be applied."""
        kept = tuple(
            one
            for one in situation.in_flight
            if versions_hold(situation.rows, one.command, one.accepted)
            and (
                isinstance(one.command, NOT_STORED)
                or one.command.command_id not in situation.rows.commands
            )
        )
        return situation if kept == situation.in_flight else replace(situation, in_flight=kept)

    def _note(self, accepted: Accepted) -> None:
        if accepted.reply.code is not None:
            self.findings.evidence.add(accepted.reply.code)
        for event in accepted.events:
            self.findings.moves.add(
                (event.entity_type.value, event.previous_state or "", event.next_state)
            )
            if event.reason is not None:
                self.findings.reasons.add(str(event.reason))

    def _elsewhere(self, situation: Situation) -> Iterator[tuple[str, Situation]]:
        """What happens without a command."""
        rows, scene = situation.rows, self._scene
        later = replace(rows, now=rows.now + TICK)
        if not scene.silences:
            later = replace(
                later,
                incarnations={
                    name: replace(node, last_seen_at=later.now)
                    for name, node in rows.incarnations.items()
                },
            )
        if not scene.clock_steps_back or later.now <= scene.starts_at + CLOCK_TICKS * TICK:
            yield "time passes", replace(situation, rows=later)
        if scene.silences:
            for name, node in rows.incarnations.items():
                if node.last_seen_at != rows.now:
                    heard = {**rows.incarnations, name: replace(node, last_seen_at=rows.now)}
                    yield (
                        f"{name} is heard of",
                        replace(situation, rows=replace(rows, incarnations=heard)),
                    )
        if scene.clock_steps_back and rows.now > scene.starts_at:
            yield (
                "the clock steps back",
                replace(situation, rows=replace(rows, now=rows.now - TICK)),
            )
        if scene.suspensions:
            for tenant_id, tenant in rows.tenants.items():
                if tenant.version < scene.suspensions:
                    other = replace(
                        tenant, version=tenant.version + 1, authorized=not tenant.authorized
                    )
                    changed = replace(rows, tenants={**rows.tenants, tenant_id: other})
                    yield "the tenant is suspended or not", replace(situation, rows=changed)
        if scene.pauses:
            for tenant_id, tenant in rows.tenants.items():
                if tenant.version <= scene.pauses:
                    other = replace(
                        tenant, version=tenant.version + 1, pauses=_pauses(scene, rows, tenant)
                    )
                    changed = replace(rows, tenants={**rows.tenants, tenant_id: other})
                    yield "the tenant is paused or resumed", replace(situation, rows=changed)
        if scene.limited_later:
            for tenant_id, tenant in rows.tenants.items():
                if tenant.version <= 2:
                    other = replace(
                        tenant,
                        version=tenant.version + 1,
                        limits=() if tenant.limits else scene.limits,
                    )
                    changed = replace(rows, tenants={**rows.tenants, tenant_id: other})
                    yield "a limit is stated or taken back", replace(situation, rows=changed)
        if rows.policy_version < scene.policies:
            yield (
                "a new policy",
                replace(situation, rows=replace(rows, policy_version=rows.policy_version + 1)),
            )
        if situation.promotions < scene.promotions and rows.confirmed and not situation.behind:
            yield (
                "a standby is promoted",
                self._settled(
                    replace(
                        situation,
                        rows=replace(rows, epoch=rows.epoch + 1),
                        promotions=situation.promotions + 1,
                    )
                ),
            )
        if situation.restores < scene.restores and situation.backup is not None:
            restored = replace(situation.backup, now=rows.now, confirmed=True)
            lost = any(grant.attempt_id not in restored.attempts for grant in situation.granted)
            if lost:
                yield (
                    "a backup is restored",
                    replace(situation, rows=restored, behind=True, restores=situation.restores + 1),
                )
        if not rows.confirmed:
            highest = max(grant.fencing_token for grant in situation.granted) // GENERATION_LIMIT
            recovered = replace(rows, epoch=max(rows.epoch, highest) + 1, confirmed=True)
            yield (
                "the authority is recovered",
                self._settled(replace(situation, rows=recovered, backup=None)),
            )


def _pauses(scene: Scene, rows: Rows, tenant: TenantRow) -> tuple[PauseRow, ...]:
    """The other way round: paused for one tick, or resumed."""
    if tenant.pauses:
        return ()
    until = rows.now + TICK
    scope, name = scene.paused
    return (PauseRow(scope, tenant.tenant, name, until, "why", "operator", rows.now),)


def _highest(rows: Rows, command: AttemptCommand) -> int:
    task = rows.tasks.get(command.task_id)
    if task is None:
        return (rows.epoch + 1) * GENERATION_LIMIT - 1
    return rows.epoch * GENERATION_LIMIT + task.generation


def canonical(situation: Situation) -> Key:
    """What decisions and guards can see of a situation, and its executors."""
    rows = situation.rows
    return (
        rows.epoch,
        rows.confirmed,
        rows.policy_version,
        tuple(_task(row, rows.now) for _, row in sorted(rows.tasks.items())),
        tuple(
            (
                attempt_id,
                row.state,
                row.fencing_token,
                row.policy_version,
                -1 if row.state in TERMINAL_ATTEMPT_STATES else max(row.expires_at - rows.now, 0),
                max(row.decided_at - rows.now, 0),
            )
            for attempt_id, row in sorted(rows.attempts.items())
        ),
        tuple(
            (
                name,
                row.state,
                row.under_review,
                row.slots_used,
                min(rows.now - row.last_seen_at, SILENCE),
            )
            for name, row in sorted(rows.incarnations.items())
        ),
        tuple(sorted((*key, row.code or "") for key, row in rows.receipts.items())),
        _repeatable(rows),
        tuple(sorted(rows.quarantined)),
        tuple(sorted(rows.intake.items())),
        tuple(
            (
                row.version,
                row.authorized,
                row.held_minor,
                row.spent_minor,
                tuple(max((one.until or 0) - rows.now, 0) for one in row.pauses),
                tuple(sorted((*p, max(at - rows.now, 0)) for p, at in row.full_at.items())),
            )
            for _, row in sorted(rows.tenants.items())
        ),
        tuple(grant.attempt_id for grant in situation.granted),
        tuple(_decided(one) for one in situation.in_flight),
        situation.backup is not None,
        situation.behind,
        situation.restores,
        situation.promotions,
    )


def _repeatable(rows: Rows) -> Key:
    """Commands whose repetition may differ from their absence. Whether a report about an attempt
    that has ended is answered or refused, nothing changes, a delivery apart."""
    ended = {
        attempt_id
        for attempt_id, row in rows.attempts.items()
        if row.state in TERMINAL_ATTEMPT_STATES
    }
    return tuple(
        sorted(
            command_id
            for command_id, stored in rows.commands.items()
            if stored.reply.receipt_id is not None
            or not any(command_id.endswith(attempt_id) for attempt_id in ended)
        )
    )


def _instants(rows: Rows) -> Key:
    """Where the clock may step back, what is over may be ahead again."""
    return (
        rows.now,
        tuple(row.decided_at for row in rows.tasks.values()),
        tuple((row.decided_at, row.expires_at) for row in rows.attempts.values()),
    )


def _task(row: Any, now: int) -> Key:
    ended = row.state in TERMINAL_TASK_STATES
    return (
        row.task_id,
        row.state,
        row.generation,
        row.current_attempt_id,
        row.failures,
        row.losses,
        row.effects,
        None if row.not_before is None or ended else max(row.not_before - now, 0),
        None if row.deadline is None or ended else max(row.deadline - now, -1),
        row.cancel_requested_at is not None,
        row.cancel_delivered_at is not None,
        row.rejected_by,
        max(row.decided_at - now, 0),
    )


def _decided(one: Decided) -> Key:
    reads = one.accepted.reads
    return (
        one.command.command_id,
        reads.lease_live,
        reads.lease_over,
        reads.deadline_passed,
        reads.not_before_passed,
        tuple(
            (type(write).__name__, getattr(write, "state", None), getattr(write, "code", None))
            for write in one.accepted.writes
        ),
    )
