"""Decisions about nodes: a node is one name, an incarnation one start of its process."""

from tenure.contract.codes import Code
from tenure.contract.states import EntityType, NodeState
from tenure.coordinator.core.commands import ChangeNode, Register
from tenure.coordinator.core.decisions import (
    Accepted,
    Answered,
    Decision,
    Happened,
    IncarnationChanged,
    IncarnationCreated,
    Reads,
    Refused,
    Reply,
    Write,
)
from tenure.coordinator.core.happenings import node_became
from tenure.coordinator.core.snapshot import Minted, Snapshot


def register(command: Register, snapshot: Snapshot, minted: Minted) -> Decision:
    """A new incarnation takes the node's name; its predecessor is gone, its leases run out."""
    previous = snapshot.previous_incarnation
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
            next_state=NodeState.ACTIVE.value,
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
        ),
        reply=Reply("applied"),
        writes=tuple(writes),
        events=tuple(events),
    )


def change_node(command: ChangeNode, snapshot: Snapshot, minted: Minted) -> Decision:
    """active → draining, and active or draining → gone."""
    node = snapshot.incarnation
    if node is None or node.tenant != command.tenant or node.node_id != command.node_id:
        return Refused(Code.UNKNOWN_NODE, "no such incarnation of this node")
    if node.state is command.next_state:
        return Answered(Reply("applied"), None)
    if node.state is NodeState.GONE:
        return Refused(Code.NODE_GONE, "the incarnation has ended")
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
