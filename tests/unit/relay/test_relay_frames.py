"""The frames that the relay puts together are those that the library would have written."""

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.common import FieldValue
from pamqp.header import ContentHeader

from tenure.contract.events import CONTENT_TYPE, EVENT_ID_HEADER, REPLAY_ID_HEADER
from tenure.relay.frames import content_frames, method_frame


def by_the_library(
    event_id: str, message_id: str, body: bytes, size: int, replay_id: str | None
) -> bytes:
    headers: dict[str, FieldValue] = {EVENT_ID_HEADER: event_id}
    if replay_id is not None:
        headers[REPLAY_ID_HEADER] = replay_id
    properties = commands.Basic.Properties(
        content_type=CONTENT_TYPE,
        delivery_mode=2,
        headers=headers,
        message_id=message_id,
    )
    frames: list[ContentHeader | ContentBody] = [ContentHeader(0, len(body), properties)]
    frames += [ContentBody(body[start : start + size]) for start in range(0, len(body), size)]
    return b"".join(pamqp.frame.marshal(frame, 3) for frame in frames)


@given(
    event_id=st.uuids().map(str),
    tag=st.integers(1, 2**63),
    body=st.binary(max_size=40),
    size=st.integers(1, 50),
    replay_id=st.none() | st.uuids().map(str),
)
def test_the_frames_of_any_message_are_the_librarys(
    event_id: str, tag: int, body: bytes, size: int, replay_id: str | None
) -> None:
    message_id = f"0123456789abcdef-{tag}"
    frames = content_frames(3, event_id, message_id, body, size, replay_id)
    assert b"".join(frames) == by_the_library(event_id, message_id, body, size, replay_id)


def test_a_destination_is_encoded_once() -> None:
    first = method_frame(3, "events", "default.task.open", True)
    assert method_frame(3, "events", "default.task.open", True) is first
    method = commands.Basic.Publish(
        exchange="events", routing_key="default.task.open", mandatory=True
    )
    assert first == pamqp.frame.marshal(method, 3)
    assert method_frame(3, "events", "default.task.open", False) != first


@pytest.mark.parametrize("key", ["k" * 256, "\u00e4" * 128, "\ud800"])
def test_a_routing_key_that_cannot_be_written_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"routing key|surrogates"):
        method_frame(3, "events", key, True)
