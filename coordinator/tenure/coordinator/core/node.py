"""Decisions about nodes: a node is one name, an incarnation one start of its process."""

from dataclasses import replace
from typing import Any

from tenure.contract.codes import Code, Reason
from tenure.contract.states import EntityType, NodeState
from tenure.coordinator.core.commands import (
    ChangeNode,
    CloseReview,
    OpenReview,
    Quarantine,
    Register,
)
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    Decision,
    Happened,
    IncarnationChanged,
    IncarnationCreated,
    NodeQuarantined,
    Reads,
    Refused,
    Reply,
    ReviewChanged,
    Write,
)
from tenure.coordinator.core.happenings import node_became
from tenure.coordinator.core.rows import IncarnationRow
from tenure.coordinator.core.snapshot import LeasePolicy, Minted, Snapshot


def register(command: Register, snapshot: Snapshot, minted: Minted) -> Decision:
    """A new incarnation takes the node's name; its predecessor is gone, its leases run out."""
    previous = snapshot.previous_incarnation
    # Somebody has taken the node out of service, whatever its process does.
    state = NodeState.QUARANTINED if snapshot.node_quarantined else NodeState.ACTIVE
    writes: list[Write] = []
    events: list[Happened] = []
    if previous is not None:
        writes.append(
            IncarnationChanged(previous.incarnation, NodeState.GONE, previous.sequence + 1)
        )
        events.append(
            node_became(
                previous,
                NodeState.GONE,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=command.actor,
            )
        )
    writes.append(
        IncarnationCreated(
            incarnation=command.incarnation,
            tenant=command.tenant,
            node_id=command.node_id,
            queue=command.queue,
            software=command.software,
            protocol_version=command.protocol_version,
            slots=command.slots,
            cpu_millis=command.cpu_millis,
            memory_bytes=command.memory_bytes,
            task_types=command.task_types,
            facts_text=command.facts_text,
            executable=command.executable,
            state=state,
            concurrency=command.concurrency,
        )
    )
    events.append(
        Happened(
            event_id=minted.event_ids[1],
            entity_type=EntityType.NODE,
            entity_id=command.incarnation,
            tenant=command.tenant,
            epoch=snapshot.epoch,
            sequence=1,
            actor=command.actor,
            previous_state=None,
            next_state=state.value,
            node_id=command.node_id,
            incarnation=command.incarnation,
        )
    )
    return Accepted(
        reads=Reads(
            epoch=snapshot.epoch,
            incarnation=None if previous is None else previous.incarnation,
            incarnation_version=None if previous is None else previous.version,
            node_id=command.node_id,
            node_incarnation=None if previous is None else previous.incarnation,
            node_quarantined=snapshot.node_quarantined,
        ),
        reply=Reply("applied"),
        writes=tuple(writes),
        events=tuple(events),
    )


def change_node(command: ChangeNode, snapshot: Snapshot, minted: Minted) -> Decision:
    """active → draining, and any → gone. A quarantined node stays so until it is let back."""
    node = snapshot.incarnation
    if node is None or node.tenant != command.tenant or node.node_id != command.node_id:
        return Refused(Code.UNKNOWN_NODE, "no such incarnation of this node")
    if node.state is command.next_state:
        return Answered(Reply("applied"), None)
    if node.state is NodeState.GONE:
        return Refused(Code.NODE_GONE, "the incarnation has ended")
    if node.state is NodeState.QUARANTINED and command.next_state is NodeState.DRAINING:
        return Answered(Reply("applied"), None)  # it gets nothing new as it is
    return Accepted(
        reads=Reads(
            epoch=snapshot.epoch,
            incarnation=node.incarnation,
            incarnation_version=node.version,
            node_id=node.node_id,
            node_incarnation=node.incarnation,
        ),
        reply=Reply("applied"),
        writes=(IncarnationChanged(node.incarnation, command.next_state, node.sequence + 1),),
        events=(
            node_became(
                node,
                command.next_state,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=command.actor,
            ),
        ),
    )


def quarantine(command: Quarantine, snapshot: Snapshot, minted: Minted) -> Decision:
    """Take a node out of service, or let it back: whatever incarnation it has, and every later one
    (INC-06). Its leases are revoked one by one, by the sweeper."""
    node = snapshot.incarnation
    if not snapshot.node_known:
        return Refused(Code.UNKNOWN_NODE, "no node of this name has registered")
    wanted = command.reason is not None
    if snapshot.node_quarantined == wanted:
        return Answered(Reply("applied"), None)
    writes: list[Write] = [NodeQuarantined(command.reason, command.actor)]
    events: list[Happened] = []
    if node is not None:
        state = NodeState.QUARANTINED if wanted else NodeState.ACTIVE
        writes.append(IncarnationChanged(node.incarnation, state, node.sequence + 1))
        events.append(
            node_became(
                node,
                state,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=command.actor,
                reason=command.reason,
            )
        )
    return Accepted(
        reads=Reads(
            epoch=snapshot.epoch,
            incarnation=None if node is None else node.incarnation,
            incarnation_version=None if node is None else node.version,
            node_id=command.node_id,
            node_incarnation=None if node is None else node.incarnation,
            node_quarantined=snapshot.node_quarantined,
        ),
        reply=Reply("applied"),
        writes=tuple(writes),
        events=tuple(events),
    )


def open_review(
    command: OpenReview, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """Missing heartbeats are looked into, and nothing new is given meanwhile. Leases are untouched:
    only their expiry or a revocation ends authority (LEASE-07)."""
    node = snapshot.incarnation
    if node is None or node.state is NodeState.GONE:
        return Refused(Code.NODE_GONE, "the incarnation has ended")
    if node.under_review:
        return Refused(Code.WRONG_STATE, "a review is open")
    if node.last_seen_at > now - policy.node_silence_microseconds:
        return Refused(Code.WRONG_STATE, "the node was heard of")
    return _review(
        snapshot,
        node,
        ReviewChanged(node.incarnation),
        Reason.HEARTBEATS_MISSING,
        command.actor,
        minted,
        silent_for=policy.node_silence_microseconds,
        policy_version=policy.version,
    )


def close_review(
    command: CloseReview, snapshot: Snapshot, now: int, minted: Minted, policy: LeasePolicy
) -> Decision:
    """Heartbeats have returned, or somebody has looked. Whoever is silent still gets nothing: that
    is asked at every allocation."""
    node = snapshot.incarnation
    if node is None or node.tenant != command.tenant or node.node_id != command.node_id:
        return Refused(Code.UNKNOWN_NODE, "the node has no incarnation")
    if node.state is NodeState.GONE:
        return Refused(Code.NODE_GONE, "the incarnation has ended, and its review with it")
    if not node.under_review:
        return Answered(Reply("applied"), None)
    if command.message is not None:
        return _review(
            snapshot,
            node,
            ReviewChanged(node.incarnation, "operator", command.actor, command.message),
            Reason.REVIEW_CLOSED,
            command.actor,
            minted,
        )
    if node.last_seen_at <= now - policy.node_silence_microseconds:
        return Refused(Code.WRONG_STATE, "the node was not heard of")
    return _review(
        snapshot,
        node,
        ReviewChanged(node.incarnation, "heartbeats_returned", command.actor),
        Reason.HEARTBEATS_RETURNED,
        command.actor,
        minted,
        seen_within=policy.node_silence_microseconds,
        policy_version=policy.version,
    )


def _review(
    snapshot: Snapshot,
    node: IncarnationRow,
    change: ReviewChanged,
    reason: Reason,
    actor: str,
    minted: Minted,
    **bounds: Any,
) -> Accepted:
    """The node stays in its state, and its stream says why its eligibility changed."""
    return Accepted(
        reads=replace(
            Reads(
                epoch=snapshot.epoch,
                incarnation=node.incarnation,
                incarnation_version=node.version,
                node_id=node.node_id,
                node_incarnation=snapshot.node_incarnation,
            ),
            **bounds,
        ),
        reply=Reply("applied"),
        writes=(IncarnationChanged(node.incarnation, node.state, node.sequence + 1), change),
        events=(
            node_became(
                node,
                node.state,
                event_id=minted.event_ids[0],
                epoch=snapshot.epoch,
                actor=actor,
                reason=reason,
            ),
        ),
    )
