"""What other languages and people read is what the code says."""

from pathlib import Path

import pytest

from tenure.contract.codec import decode_event, encode_unstamped, stamp
from tenure.contract.codes import Code, Reason
from tenure.contract.events import Event, EventData
from tenure.contract.states import AttemptState, NodeState, Phase, TaskState
from tests.support import golden, wire_tables
from tests.support.exported import SCHEMAS, WIRE, exported
from tests.support.repository import REPOSITORY


@pytest.mark.parametrize("path", exported(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_exported_files_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == exported()[path], "stale: run `make schemas`"


def test_a_block_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        wire_tables.filled_in("<!-- made from the code: nothing -->\n<!-- end -->\n", ())


def test_the_page_about_the_wire_has_every_table() -> None:
    found = wire_tables.blocks(WIRE.read_text(encoding="utf-8"))
    assert sorted(found) == ["broker", "codes", "endpoints", "events", "moves"]


@pytest.mark.parametrize("word", [*Code, *Reason, *Phase])
def test_the_page_about_the_wire_explains_every_word(word: str) -> None:
    assert f"`{word}`" in WIRE.read_text(encoding="utf-8")


def lines() -> list[bytes]:
    return (SCHEMAS / "events.jsonl").read_bytes().splitlines()


@pytest.mark.requirement("EVENT-01")
@pytest.mark.parametrize("line", lines(), ids=golden.messages())
def test_a_golden_message_survives_decoding_and_encoding_byte_for_byte(line: bytes) -> None:
    event = decode_event(line)
    assert stamp(encode_unstamped(event), event.recorded_at) == line


def test_there_is_a_golden_message_of_every_state_and_with_every_attribute() -> None:
    events = [decode_event(line) for line in lines()]
    assert {event.type for event in events} == {
        *(f"tenure.task.{state}" for state in TaskState),
        *(f"tenure.attempt.{state}" for state in AttemptState),
        *(f"tenure.node.{state}" for state in NodeState),
    }
    assert set(Event.model_fields) == {
        name for event in events for name, value in event if value is not None
    }
    assert set(EventData.model_fields) == {
        name for event in events for name, value in event.data if value is not None
    }
