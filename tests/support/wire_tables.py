"""The tables in ``docs/wire.md`` that are made from the code."""

import json
import re
from collections.abc import Callable, Sequence

from tenure.contract.codec import decode_event
from tenure.contract.codes import Code
from tenure.contract.ids import IncarnationId, TenantId
from tenure.contract.states import ATTEMPT_MOVES, EntityType
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
from tenure.coordinator.api.endpoint import EVERY_ROLE, Endpoint
from tenure.coordinator.api.problems import NEXT_STEP
from tenure.coordinator.api.statuses import RETRYABLE, STATUS
from tests.support import golden

_BLOCK = re.compile(r"(<!-- made from the code: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_ALWAYS = frozenset(
    {"time", "specversion", "id", "source", "type", "subject", "datacontenttype", "tenant"}
    | {"entitytype", "epoch", "sequence", "schemaversion", "actor", "data"}
    | {"data.previous_state", "data.next_state"}
)


def filled_in(text: str, table: Sequence[Endpoint]) -> str:
    """The document with every block made anew. Raises KeyError for a block of an unknown name."""
    makers: dict[str, Callable[[], list[str]]] = {
        "endpoints": lambda: _endpoints(table),
        "codes": _codes,
        "moves": _moves,
        "events": _events,
        "broker": _broker,
    }
    return _BLOCK.sub(lambda found: "\n".join([found[1], *makers[found[2]](), "", found[4]]), text)


def blocks(text: str) -> list[str]:
    """Names of the blocks in a document."""
    return [found[2] for found in _BLOCK.finditer(text)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*cells: str) -> list[str]:
    return [_row(*cells), "|---" * len(cells) + "|"]


def _endpoints(table: Sequence[Endpoint]) -> list[str]:
    lines = _head("Request", "Roles", "Body", "Reply", "What it does")
    for endpoint in table:
        query = "" if endpoint.query is None else f"?{'&'.join(_parameters(endpoint))}"
        roles = "every" if endpoint.roles == EVERY_ROLE else ", ".join(sorted(endpoint.roles))
        body = "" if endpoint.body is None else _model(endpoint.body.__name__)
        status = "/".join(str(status) for status in endpoint.replies)
        reply = f"{status} {_model(endpoint.reply.__name__)}"
        lines.append(
            _row(
                f"`{endpoint.method} {endpoint.path}{query}`", roles, body, reply, endpoint.summary
            )
        )
    return lines


def _parameters(endpoint: Endpoint) -> list[str]:
    assert endpoint.query is not None
    return [
        f"{field.alias or name}=" for name, field in sorted(endpoint.query.model_fields.items())
    ]


def _model(name: str) -> str:
    return "`{}`" if name == "Nothing" else f"`{name}`"


def _codes() -> list[str]:
    return [
        *_head("Code", "Status", "Repeat?", "What to do"),
        *(
            _row(
                f"`{code.value}`",
                str(STATUS[code]),
                "yes" if code in RETRYABLE else "",
                NEXT_STEP.get(code, ""),
            )
            for code in Code
        ),
    ]


def _moves() -> list[str]:
    return [
        *_head("From", "To"),
        *(
            _row(before, ", ".join(sorted(following)) or "— (terminal)")
            for before, following in ATTEMPT_MOVES.items()
        ),
    ]


def _events() -> list[str]:
    lines = _head("`type`", "previous → next", "attributes beside the common ones")
    for body in golden.messages().values():
        event = decode_event(body)
        value = json.loads(body)
        present = [
            *(name for name in value if name not in _ALWAYS),
            *(f"data.{name}" for name in value["data"] if f"data.{name}" not in _ALWAYS),
        ]
        lines.append(
            _row(
                f"`{event.type}`",
                f"{event.previous_state or '—'} → {event.next_state}",
                ", ".join(f"`{name}`" for name in present),
            )
        )
    return lines


def _broker() -> list[str]:
    tenant, incarnation = TenantId("TENANT"), IncarnationId("INCARNATION")
    return [
        *_head("What", "Name", "Arguments"),
        _row("events", f"topic exchange `{events_exchange()}`, durable", ""),
        _row(
            "routing key of an event",
            f"`{event_routing_key(tenant, EntityType.ATTEMPT, 'running')}`, for example",
            "",
        ),
        _row(
            "one start of one executor",
            f"queue `{node_queue(tenant, incarnation)}`, durable, default exchange",
            _arguments(node_queue_arguments()),
        ),
        _row(
            "a subscription",
            f"queue `{subscription_queue(tenant, 'NAME')}`, durable, bound to the exchange",
            _arguments(subscription_queue_arguments()),
        ),
        _row(
            "messages delivered too often",
            f"queue `{dead_letter_queue()}`, durable",
            _arguments(dead_letter_queue_arguments()),
        ),
    ]


def _arguments(arguments: dict[str, object]) -> str:
    return ", ".join(f"`{name}` = `{json.dumps(value)}`" for name, value in arguments.items())
