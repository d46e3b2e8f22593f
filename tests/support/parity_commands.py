"""Commands for a history that is lived twice: of what there is in the model at the moment."""

import hashlib
from itertools import count
from typing import Any, Final

from tenure.contract.codes import Code
from tenure.contract.ids import (
    AttemptId,
    CommandId,
    IncarnationId,
    LeaseId,
    NodeId,
    TaskId,
)
from tenure.contract.states import AttemptState, Effects, NodeState, TaskState
from tenure.coordinator.core import commands
from tenure.coordinator.core.commands import AnyCommand, TaskTypeDeclared
from tenure.coordinator.core.rows import AttemptRow, ResourceAmounts, TaskRow
from tests.support.parity import Twice
from tests.support.rows import declared
from tests.support.scenes import REPORTS

TYPE: Final = "work"
KEY: Final = "key"
"""What some tasks share, where limits are stated for it."""
NODES: Final = 2
WITH_CONTENT: Final = ("deliver", "fail", "reject")
ABOUT_TASKS: Final = (
    "cancel", "hold", "release", "try again", "move profile", "expire", "hold rejected",
)  # fmt: skip
ABOUT_ATTEMPTS: Final = ("revoke", "revoke from node", *REPORTS, *WITH_CONTENT)
ABOUT_NODES: Final = (
    "register", "drain", "gone", "quarantine", "let back", "open review", "close review",
)  # fmt: skip
ABOUT_CANCELLATIONS: Final = ("receive", "confirm")
_S, _A, _R = AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING
FITTING: Final = {
    "accept": (_S,), "take": (_S, _A), "reject": (_S,), "start": (_A,), "deliver": (_R,),
    "fail": (_A, _R), "renew": (_A, _R), "receive": (_A, _R), "confirm": (_A, _R),
}  # fmt: skip
"""In which states of its attempt a report has an effect."""
KINDS: Final = (
    "submit", "take in", "refuse", "allocate", *ABOUT_TASKS, *ABOUT_ATTEMPTS, *ABOUT_NODES,
)  # fmt: skip
OFTEN: Final = {
    "allocate": 14, "take": 4, "accept": 4, "reject": 4, "receive": 4, "submit": 4, "register": 4,
    "let back": 4, "start": 3, "confirm": 3, "cancel": 3, "open review": 3, "hold rejected": 3,
    "deliver": 2, "renew": 2, "close review": 2,
}  # fmt: skip
"""Asked so many times as often as others: without them little goes on."""


def declaration(variant: int) -> TaskTypeDeclared:
    """The type as one of two builds declares it."""
    resources = ResourceAmounts(cpu_millis=400 * variant, memory_bytes=variant)
    effects = Effects.UNGUARDED if variant == 2 else Effects.IDEMPOTENT
    return declared(TYPE, effects, 1 + variant, resources, cost_minor=3 * (variant > 0))


class Asker:
    """Makes commands. ``identity``: the same one is the same command again, or claims to be; None:
    a fresh one. ``content`` tells one from another of the same identity."""

    def __init__(self, twice: Twice) -> None:
        self._twice = twice
        self._fresh = count()

    def command(
        self, kind: str, task: int, node: int, identity: int | None, content: int
    ) -> AnyCommand | None:
        """None where there is nothing to speak of."""
        name = f"fresh {next(self._fresh)}"
        common: dict[str, Any] = {
            "command_id": CommandId(
                self._twice.id(name if identity is None else f"{kind} {identity}")
            ),
            "fingerprint": hashlib.sha256(f"{kind} {content}".encode()).digest(),
            "tenant": self._twice.tenant,
            "actor": "somebody",
        }
        if kind in ("submit", "take in", "refuse"):
            return self._submission(kind, common, name, content)
        if kind in ABOUT_NODES:
            return self._about_node(kind, common, node, name, content)
        if kind in ABOUT_ATTEMPTS:
            return self._about_attempt(kind, common, task, content)
        task_ids = [*self._twice.rows.tasks]
        if not task_ids:
            return None
        return self._about_task(kind, common, task_ids, task, node, name, content)

    def _submission(
        self, kind: str, common: dict[str, Any], name: str, content: int
    ) -> AnyCommand | None:
        fields: dict[str, Any] = common | {
            "task_id": TaskId(self._twice.id(f"task {name}")),
            "type": TYPE,
            "input_text": "{}",
            "priority": content,
            "not_before": None,
            "deadline": None,
            "resources": ResourceAmounts(100, 1) if content else None,
            "concurrency_key": (None, KEY, "other")[content],
        }
        if kind == "submit":
            return commands.Submit(**fields)
        rows = [*self._twice.rows.intake]
        if not rows:
            return None
        intake_id = rows[content % len(rows)]
        if kind == "take in":
            return commands.TakeIn(**fields, intake_id=intake_id)
        return commands.RefuseIntake(
            **common,
            task_id=fields["task_id"],
            intake_id=intake_id,
            code=Code.INVALID_FIELD,
            message="no",
        )

    def _about_node(
        self, kind: str, common: dict[str, Any], node: int, name: str, content: int
    ) -> AnyCommand | None:
        node_id = NodeId(f"node-{node}")
        current = self._twice.rows.nodes.get((self._twice.tenant, node_id))
        match kind:
            case "register":
                return commands.Register(
                    **common,
                    node_id=node_id,
                    incarnation=IncarnationId(self._twice.id(name)),
                    queue="q",
                    software="s",
                    protocol_version=1,
                    slots=1 + content,
                    cpu_millis=None if node else 1000,
                    memory_bytes=3,
                    task_types=(declaration(content),),
                    concurrency=((TYPE, 1),) if node else (),
                )
            case "quarantine" | "let back":
                reason = "why" if kind == "quarantine" else None
                return commands.Quarantine(**common, node_id=node_id, reason=reason)
            case "close review":
                message = "seen to" if content else None
                return commands.CloseReview(
                    **common, node_id=node_id, incarnation=current, message=message
                )
        if current is None:
            return None
        if kind == "open review":
            return commands.OpenReview(**common, node_id=node_id, incarnation=current)
        state = NodeState.DRAINING if kind == "drain" else NodeState.GONE
        return commands.ChangeNode(**common, node_id=node_id, incarnation=current, next_state=state)

    def _about_attempt(
        self, kind: str, common: dict[str, Any], number: int, content: int
    ) -> AnyCommand | None:
        attempt = self._attempt(kind, number)
        if attempt is None:
            return None
        about: dict[str, Any] = common | {
            "task_id": attempt.task_id,
            "attempt_id": attempt.attempt_id,
        }
        match kind:
            case "revoke":
                return commands.Revoke(**about, message="why")
            case "revoke from node":
                return commands.RevokeFromNode(**about, message="why" if content else None)
        about |= {
            "node_id": attempt.node_id,
            "incarnation": attempt.incarnation,
            "fencing_token": attempt.fencing_token,
        }
        match kind:
            case "deliver":
                text = str(content)
                return commands.Deliver(**about, output_text=text, content_digest=text.encode())
            case "fail":
                return commands.Fail(**about, reason="r", message="m", retryable=content > 0)
            case "reject":
                return commands.Reject(**about, reason="unknown_type", message="m")
            case _:
                return REPORTS[kind](**about)  # type: ignore[return-value] # of the union

    def _attempt(self, kind: str, number: int) -> AttemptRow | None:
        """Mostly one of which the command makes something; else any that has not ended, or has."""
        rows = self._twice.rows
        alive = [rows.attempts[one] for one in rows.reservations]
        fitting = [one for one in alive if one.state in FITTING.get(kind, (one.state,))]
        if kind in ABOUT_CANCELLATIONS:
            fitting = [one for one in fitting if rows.tasks[one.task_id].cancel_requested_at]
        choices = (fitting, fitting, fitting, alive, [*rows.attempts.values()])
        chosen = choices[number % len(choices)] or alive or [*rows.attempts.values()]
        return chosen[number % len(chosen)] if chosen else None

    def _about_task(
        self,
        kind: str,
        common: dict[str, Any],
        task_ids: list[TaskId],
        number: int,
        node: int,
        name: str,
        content: int,
    ) -> AnyCommand | None:
        task_id = task_ids[number % len(task_ids)]
        about: dict[str, Any] = common | {"task_id": task_id}
        match kind:
            case "allocate":
                return self._allocation(common, task_id, node, number, name)
            case "cancel":
                held = [one.task_id for one in self._twice.rows.attempts.values() if not node]
                return commands.Cancel(**(about | {"task_id": [*held[-1:], task_id][0]}))
            case "hold":
                return commands.Hold(**about, message="why")
            case "release":
                return commands.Release(**about)
            case "try again":
                return commands.TryAgain(**about)
            case "expire":
                return commands.Expire(**about)
            case "hold rejected":
                rejected = [one.task_id for one in self._waiting() if one.rejected_by]
                return commands.HoldRejected(**(about | {"task_id": [*rejected, task_id][0]}))
            case _:
                known = sorted(self._twice.rows.profiles.values(), key=lambda one: one.digest)
                profile = known[content % len(known)]
                return commands.MoveProfile(**about, profile=profile)

    def _waiting(self) -> list[TaskRow]:
        return [
            one
            for one in self._twice.rows.tasks.values()
            if one.current_attempt_id is None and one.state is TaskState.OPEN
        ]

    def _allocation(
        self, common: dict[str, Any], task_id: TaskId, node: int, number: int, name: str
    ) -> AnyCommand | None:
        waiting = [one.task_id for one in self._waiting()]
        if waiting and task_id not in waiting:
            task_id = waiting[number % len(waiting)]
        incarnation = self._twice.rows.nodes.get((self._twice.tenant, NodeId(f"node-{node}")))
        if incarnation is None:
            return None
        return commands.Allocate(
            **(common | {"command_id": CommandId(self._twice.id(name))}),
            task_id=task_id
            if task_id in waiting or not waiting
            else waiting[number % len(waiting)],
            incarnation=incarnation,
            attempt_id=AttemptId(self._twice.id(f"attempt {name}")),
            lease_id=LeaseId(self._twice.id(f"lease {name}")),
        )
