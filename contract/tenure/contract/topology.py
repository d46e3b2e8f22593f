"""Names on the broker, and the shard of a stream.

One topic exchange carries events to the quorum queues of subscriptions, which are bound to it; one
quorum queue per node incarnation carries assignments and cancellations through the default
exchange. The coordinator declares; executors and consumers declare passively.
``prefix`` is the installation's name prefix, for a broker user limited to its own names.
"""

from typing import Any, Final
from zlib import crc32

from tenure.contract.ids import IncarnationId, TenantId
from tenure.contract.states import EntityType

DEFAULT_PREFIX: Final = "tenure"
SHARD_COUNT: Final = 64
"""For ever: a cursor is a position per shard."""

LOG_CHANNEL: Final = "tenure_log"
"""Of PostgreSQL's notifications: the log has grown."""

ANY_WORD: Final = "*"
ANY_WORDS: Final = "#"
_OF_ALL: Final = "_all"
"""In the place of a tenant, whose name cannot be this."""

DELIVERY_LIMIT: Final = 20
UNLIMITED_DELIVERIES: Final = 2**31 - 1
"""Said, where there is no limit: from RabbitMQ 4.0 on a queue that says nothing has one of 20."""
NODE_QUEUE_EXPIRES_SECONDS: Final = 24 * 3600
"""Safety net for queues of nodes that nobody retired; deletion is the coordinator's business."""


def shard_of(order_key: str) -> int:
    """Shard of a stream. ``order_key`` is the task id where there is one, else the entity id."""
    return crc32(order_key.encode()) % SHARD_COUNT


def events_exchange(prefix: str = DEFAULT_PREFIX) -> str:
    """Topic exchange of all events; durable."""
    return f"{prefix}.events"


def dead_letter_queue(prefix: str = DEFAULT_PREFIX) -> str:
    """Where messages go that a node's queue delivered too often; consumed and recorded."""
    return f"{prefix}.dead"


def node_queues(prefix: str = DEFAULT_PREFIX) -> str:
    """What the names of all nodes' queues begin with."""
    return f"{prefix}.node."


def node_queue(tenant: TenantId, incarnation: IncarnationId, prefix: str = DEFAULT_PREFIX) -> str:
    """Queue of one incarnation of a node."""
    return f"{node_queues(prefix)}{tenant}.{incarnation}"


def subscription_queue(tenant: str | None, name: str, prefix: str = DEFAULT_PREFIX) -> str:
    """Queue of a subscription to one tenant's events, or (None) to those of all."""
    return f"{prefix}.subscription.{_OF_ALL if tenant is None else tenant}.{name}"


def event_routing_key(tenant: TenantId, entity_type: EntityType, state: str) -> str:
    """``<tenant>.<entity>.<state>`` on the events exchange."""
    return f"{tenant}.{entity_type.value}.{state}"


def node_queue_arguments(prefix: str = DEFAULT_PREFIX) -> dict[str, Any]:
    """Arguments of a node's queue; the same on every broker version, since a queue that is declared
    again with other arguments is an error."""
    return {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead_letter_queue(prefix),
        "x-expires": NODE_QUEUE_EXPIRES_SECONDS * 1000,
    }


def subscription_queue_arguments(prefix: str = DEFAULT_PREFIX) -> dict[str, Any]:
    """Arguments of a subscription's queue. What it gives up reaches the dead-letter queue before it
    leaves: nobody sends it again by itself."""
    return {
        "x-queue-type": "quorum",
        "x-delivery-limit": DELIVERY_LIMIT,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead_letter_queue(prefix),
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def matches(pattern: str, routing_key: str) -> bool:
    """Whether a topic exchange takes ``routing_key`` to a queue that is bound with ``pattern``:
    ``*`` is one word, ``#`` any number of words, and words are what is between dots."""
    return _words_match(pattern.split("."), routing_key.split("."))


def _words_match(pattern: list[str], words: list[str]) -> bool:
    reached = {0}  # how many words may be used up, after each word of the pattern
    for expected in pattern:
        if expected == ANY_WORDS:
            reached = set(range(min(reached), len(words) + 1))
        else:
            reached = {
                used + 1
                for used in reached
                if used < len(words) and expected in (ANY_WORD, words[used])
            }
        if not reached:
            return False
    return len(words) in reached


def dead_letter_queue_arguments() -> dict[str, Any]:
    """Arguments of the dead-letter queue, the last stop: it gives up nothing."""
    return {"x-queue-type": "quorum", "x-delivery-limit": UNLIMITED_DELIVERIES}
