"""The AsyncAPI 3.0 document: what Tenure sends through RabbitMQ, made from the contract.

A message is described as strictly as it is sent: the attributes that a golden message of its kind
has are required, but for those in ``_SOMETIMES``. Every golden message is an example.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

from tenure.contract.events import CONTENT_TYPE, EVENT_ID_HEADER, REPLAY_ID_HEADER, Event
from tenure.contract.ids import IncarnationId, TenantId
from tenure.contract.states import AttemptState, EntityType, NodeState, TaskState
from tenure.contract.topology import (
    dead_letter_queue,
    dead_letter_queue_arguments,
    event_routing_key,
    events_exchange,
    node_queue,
    node_queue_arguments,
    subscription_queue,
    subscription_queue_arguments,
)
from tests.support import golden

AMQP_BINDING: Final = "0.3.0"
TO_NODES: Final = ("tenure.attempt.submitted", "tenure.task.open.cancellation")
"""Messages that a node's queue gets."""

_SOMETIMES: Final = frozenset({"retry_after_seconds"})
_HEADERS: Final = {
    "type": "object",
    "required": [EVENT_ID_HEADER],
    "properties": {
        EVENT_ID_HEADER: {
            "type": "string",
            "description": "The event id again: the same in every copy, whatever `message_id` is.",
        },
        REPLAY_ID_HEADER: {
            "type": "string",
            "format": "uuid",
            "description": "The replay that published it once more; absent the first time.",
        },
    },
}
_SUMMARIES: Final = {
    "tenure.attempt.submitted": "An attempt was granted to a node",
    "tenure.task.open": "A task was recorded",
    "tenure.task.open.cancellation": "Somebody asked to end a task whose attempt is under way",
}


def message_name(body: bytes) -> str:
    """The message of the document that an event is: its type, or that of a cancellation."""
    value = json.loads(body)
    name = str(value["type"])
    return f"{name}.cancellation" if value["data"].get("cancel_requested") else name


def document() -> dict[str, Any]:
    """AsyncAPI 3.0, with the names that the default prefix gives."""
    by_name: dict[str, list[bytes]] = {}
    for body in golden.messages().values():
        by_name.setdefault(message_name(body), []).append(body)
    schemas = Event.model_json_schema(ref_template="#/components/schemas/{model}")
    shared = schemas.pop("$defs")
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Tenure messages",
            "version": "1",
            "description": (
                "Notifications about what the coordinator has recorded: at least once, in the order"
                " of `sequence` within a stream (`entitytype`, `subject`), persistent. Consumers"
                " deduplicate by `id`. A message gives no authority and no time. The prefix of all"
                " names is a setting, TENURE_NAME_PREFIX."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "channels": {
            "events": {
                "address": event_routing_key(
                    TenantId("{tenant}"), EntityType.TASK, "{state}"
                ).replace(f".{EntityType.TASK}.", ".{entity}."),
                "title": "Every event",
                "description": (
                    "Who wants events subscribes with the coordinator, which declares a queue and"
                    " binds it. An event that no subscription asks for is published to nobody."
                ),
                "parameters": {
                    "tenant": {"description": "Whose it is."},
                    "entity": {"enum": [entity.value for entity in EntityType]},
                    "state": {
                        "description": "The state after the event.",
                        "enum": sorted({*TaskState, *AttemptState, *NodeState}),
                    },
                },
                "messages": _references(by_name),
                "bindings": _exchange(events_exchange()),
            },
            "assignments": {
                "address": node_queue(TenantId("{tenant}"), IncarnationId("{incarnation}")),
                "title": "What one start of one executor is told",
                "description": (
                    "Through the default exchange. The coordinator declares the queue at the"
                    " registration and names it in the reply; executors declare it passively."
                ),
                "parameters": {
                    "tenant": {"description": "The executor's tenant."},
                    "incarnation": {"description": "Random for each start of the process."},
                },
                "messages": _references(TO_NODES),
                "bindings": _queue(
                    node_queue(TenantId("{tenant}"), IncarnationId("{incarnation}"))
                ),
                "x-queue-arguments": node_queue_arguments(),
            },
            "subscriptions": {
                "address": subscription_queue("{tenant}", "{name}"),
                "title": "What a subscription asks for",
                "description": (
                    "Declared and bound by the coordinator (`POST /v1/subscriptions`); consumers"
                    " declare it passively. The tenant of a subscription to all is `_all`."
                ),
                "parameters": {
                    "tenant": {"description": "Whose events."},
                    "name": {"description": "Of the subscription."},
                },
                "messages": _references(by_name),
                "bindings": _queue(subscription_queue("{tenant}", "{name}")),
                "x-queue-arguments": subscription_queue_arguments(),
            },
            "undeliverable": {
                "address": dead_letter_queue(),
                "title": "What a queue delivered too often",
                "messages": _references(by_name),
                "bindings": _queue(dead_letter_queue()),
                "x-queue-arguments": dead_letter_queue_arguments(),
            },
        },
        "operations": {
            "publishEvents": _operation(
                "send", "events", "Publish an event", by_name, mandatory=False
            ),
            "notifyNode": _operation(
                "send", "assignments", "Tell a node about an attempt", TO_NODES, mandatory=True
            ),
            "recordUndeliverable": _operation(
                "receive", "undeliverable", "Count and log what came back", by_name
            ),
        },
        "components": {
            "messages": {name: _message(name, bodies) for name, bodies in by_name.items()},
            "schemas": {"Event": schemas, **shared},
        },
    }


def _references(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _exchange(name: str) -> dict[str, Any]:
    exchange = {"name": name, "type": "topic", "durable": True, "autoDelete": False}
    return {"amqp": {"is": "routingKey", "exchange": exchange, "bindingVersion": AMQP_BINDING}}


def _queue(name: str) -> dict[str, Any]:
    queue = {"name": name, "durable": True, "exclusive": False, "autoDelete": False}
    return {"amqp": {"is": "queue", "queue": queue, "bindingVersion": AMQP_BINDING}}


def _operation(
    action: str,
    channel: str,
    summary: str,
    names: Iterable[str],
    *,
    mandatory: bool | None = None,
) -> dict[str, Any]:
    """``mandatory``: whether a message without a route counts as not published."""
    binding = {"ack": True} if mandatory is None else {"deliveryMode": 2, "mandatory": mandatory}
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names],
        "bindings": {"amqp": binding | {"bindingVersion": AMQP_BINDING}},
    }


def _message(name: str, bodies: list[bytes]) -> dict[str, Any]:
    values = [json.loads(body) for body in bodies]
    first = values[0]
    _, entity, state = first["type"].split(".")
    usual = f"The {entity} became {state}" if entity != "node" else f"The node is {state}"
    return {
        "name": name,
        "title": _SUMMARIES.get(name, usual),
        "contentType": CONTENT_TYPE,
        "headers": _HEADERS,
        "payload": {
            "allOf": [
                {"$ref": "#/components/schemas/Event"},
                {
                    "required": _required(values),
                    "properties": {
                        "type": {"const": first["type"]},
                        "entitytype": {"const": entity},
                        "data": {
                            "required": _required([value["data"] for value in values]),
                            "properties": {"next_state": {"const": state}},
                        },
                    },
                },
            ]
        },
        "examples": [{"headers": {EVENT_ID_HEADER: v["id"]}, "payload": v} for v in values],
    }


def _required(values: list[dict[str, Any]]) -> list[str]:
    """What all of them have, in the order of the first."""
    return [
        name
        for name in values[0]
        if name not in _SOMETIMES and all(name in value for value in values)
    ]
