"""The frames of a publish, put together from parts that were encoded before.

Messages differ in their event id, replay id, message id and body; the method frame of a
destination is encoded once and kept. AMQP 0-9-1, as the library would write it, which a test
compares.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

import pamqp.frame
from pamqp import commands

from tenure.contract.events import CONTENT_TYPE, EVENT_ID_HEADER, REPLAY_ID_HEADER

ROUTING_KEY_BYTES: Final = 255
_DESTINATIONS: Final = 4096

_HEADER_FRAME: Final = 2
_BODY_FRAME: Final = 3
_END: Final = b"\xce"
_FRAME: Final = Struct(">BHI")  # type, channel, length of what follows
_CLASS_WEIGHT_SIZE: Final = Struct(">HHQ")
_BASIC: Final = 60
_LONG: Final = Struct(">I")
# content-type, headers, delivery-mode, message-id; then the first of them
_FLAGS_AND_TYPE: Final = (0x8000 | 0x2000 | 0x1000 | 0x0080).to_bytes(2) + (
    bytes([len(CONTENT_TYPE)]) + CONTENT_TYPE.encode()
)
_EVENT_ID: Final = bytes([len(EVENT_ID_HEADER)]) + EVENT_ID_HEADER.encode() + b"S"
_REPLAY_ID: Final = bytes([len(REPLAY_ID_HEADER)]) + REPLAY_ID_HEADER.encode() + b"S"
_PERSISTENT: Final = b"\x02"


@lru_cache(maxsize=_DESTINATIONS)
def method_frame(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    """The first frame of a publish. Raises ValueError, TypeError or UnicodeError when a name cannot
    be encoded or is too long."""
    size = len(routing_key.encode())
    if size > ROUTING_KEY_BYTES:
        raise ValueError(f"the routing key is longer than {ROUTING_KEY_BYTES} bytes")
    method = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    return pamqp.frame.marshal(method, channel)


def content_frames(
    channel: int,
    event_id: str,
    message_id: str,
    body: bytes,
    max_content_size: int,
    replay_id: str | None = None,
) -> list[bytes]:
    """The other frames: header, and the body in pieces of at most ``max_content_size`` bytes."""
    event, message = event_id.encode(), message_id.encode()
    headers = _EVENT_ID + _LONG.pack(len(event)) + event
    if replay_id is not None:
        replay = replay_id.encode()
        headers += _REPLAY_ID + _LONG.pack(len(replay)) + replay
    header = b"".join(
        (
            _CLASS_WEIGHT_SIZE.pack(_BASIC, 0, len(body)),
            _FLAGS_AND_TYPE,
            _LONG.pack(len(headers)),
            headers,
            _PERSISTENT,
            bytes((len(message),)),
            message,
        )
    )
    frames = [_FRAME.pack(_HEADER_FRAME, channel, len(header)), header, _END]
    size = len(body)
    if size <= max_content_size:
        if size:
            frames += (_FRAME.pack(_BODY_FRAME, channel, size), body, _END)
        return frames
    for start in range(0, size, max_content_size):
        piece = body[start : start + max_content_size]
        frames += (_FRAME.pack(_BODY_FRAME, channel, len(piece)), piece, _END)
    return frames
