"""The AsyncAPI document is sound, and describes what the contract says."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from tenure.contract.topology import (
    dead_letter_queue_arguments,
    events_exchange,
    node_queue_arguments,
)
from tests.support import golden
from tests.support.asyncapi import message_name
from tests.support.published import check_message, published


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    found: dict[str, Any] = published("asyncapi.json")
    return found


def resolved(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for name in reference[2:].split("/"):
        document = document[name.replace("~1", "/").replace("~0", "~")]
    return document


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(described)))
    assert references
    for reference in references:
        resolved(described, reference)


def test_operations_use_messages_of_their_channel(described: dict[str, Any]) -> None:
    for operation in described["operations"].values():
        assert operation["action"] in ("send", "receive")
        channel = resolved(described, operation["channel"]["$ref"])
        ours = [f"{operation['channel']['$ref']}/messages/{name}" for name in channel["messages"]]
        assert [message["$ref"] for message in operation["messages"]] == ours


def test_channels_declare_the_parameters_of_their_addresses(described: dict[str, Any]) -> None:
    for channel in described["channels"].values():
        named = set(re.findall(r"{(\w+)}", channel["address"]))
        assert named == set(channel.get("parameters", {}))


def test_channels_have_the_names_and_arguments_of_the_topology(described: dict[str, Any]) -> None:
    channels = described["channels"]
    assert channels["events"]["bindings"]["amqp"]["exchange"]["name"] == events_exchange()
    for name in ("assignments", "undeliverable"):
        assert channels[name]["bindings"]["amqp"]["queue"]["name"] == channels[name]["address"]
    assert channels["assignments"]["x-queue-arguments"] == node_queue_arguments()
    assert channels["undeliverable"]["x-queue-arguments"] == dead_letter_queue_arguments()


@pytest.mark.requirement("EVENT-01")
def test_every_kind_of_event_is_a_message_with_an_example(described: dict[str, Any]) -> None:
    messages = described["components"]["messages"]
    assert set(messages) == {message_name(body) for body in golden.messages().values()}
    for message in messages.values():
        Draft202012Validator.check_schema(message["payload"])
        Draft202012Validator.check_schema(message["headers"])
        for example in message["examples"]:
            assert example["headers"]["event-id"] == example["payload"]["id"]
            check_message(json.dumps(example["payload"]).encode(), "events")


@pytest.mark.requirement("EVENT-01")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", None),
        ("subject", None),
        ("taskid", None),
        ("attemptid", None),
        ("entitytype", "task"),
        ("sequence", None),
        ("epoch", 0),
        ("actor", None),
        ("tenant", None),
        ("schemaversion", None),
        ("time", "yesterday"),
        ("unheard", "of"),
    ],
)
def test_an_event_that_lacks_an_attribute_is_none(field: str, value: Any) -> None:
    event = json.loads(golden.messages()["attempt submitted"]) | {field: value}
    if value is None:
        del event[field]
    with pytest.raises(ValidationError):
        check_message(json.dumps(event).encode(), "events")


def test_a_node_is_told_of_assignments_and_cancellations_only() -> None:
    check_message(golden.messages()["attempt submitted"], "assignments")
    check_message(golden.messages()["task open, cancellation requested"], "assignments")
    with pytest.raises(AssertionError):
        check_message(golden.messages()["task open"], "assignments")
