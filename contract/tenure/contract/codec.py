"""Bytes <-> event, and the check that JSON can be stored.

An event is encoded once, when it is decided; its ``time`` is the authority's clock read after the
locks, so the commit puts it in front of the encoded rest: ``{"time":"…",`` + rest. From then on
the bytes never change: published, published again and replayed, they are the same.
"""

import json
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from tenure.contract.codes import Code
from tenure.contract.errors import InvalidPayload, UndecodableEvent
from tenure.contract.events import SCHEMA_VERSION, Event

MAX_DEPTH: Final = 64
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_UNSTAMPED_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)


def encode_unstamped(event: Event) -> bytes:
    """The event without its ``time``, ready for ``stamp``: JSON text from ``{`` on.

    Absent attributes are left out; ``previous_state`` is always there (EVENT-01).
    """
    attributes = {
        name: value
        for name, value in event.__dict__.items()
        if value is not None and name not in ("time", "data")
    }
    attributes["data"] = {
        name: value
        for name, value in event.data.__dict__.items()
        if value is not None or name == "previous_state"
    }
    return to_json(attributes)


def unstamped(**attributes: Any) -> Event:
    """An event whose ``time`` the commit will set. Attributes as in ``Event``; already validated
    values are taken as they are."""
    return Event.model_construct(time=_UNSTAMPED_TIME, **attributes)


def stamp(unstamped_body: bytes, recorded_at: datetime) -> bytes:
    """What the commit does in the database: ``time`` in front, in UTC with microseconds."""
    text = recorded_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return b'{"time":"' + text.encode() + b'",' + unstamped_body[1:]


def decode_event(body: bytes) -> Event:
    """The event in a message body.

    Raises UndecodableEvent when the body is no event, or one of a newer schema version: the reader
    must then quarantine or hand back, never guess.
    """
    try:
        event = Event.model_validate_json(body)
    except ValidationError as error:
        raise UndecodableEvent(
            f"no event of schema version {SCHEMA_VERSION}: {error.error_count()} fields are wrong"
        ) from error
    if event.schemaversion > SCHEMA_VERSION:
        raise UndecodableEvent(
            f"the event has schema version {event.schemaversion}, this reader knows"
            f" up to {SCHEMA_VERSION}.",
            next_step="Upgrade this process.",
        )
    return event


def parse_json(body: bytes) -> Any:
    """The value in ``body``; strict JSON: no NaN or Infinity.

    Raises InvalidPayload: ``malformed_json``, or ``invalid_character`` when a lone surrogate is all
    that is wrong.
    """
    try:
        return from_json(body, allow_inf_nan=False, allow_partial=False)
    except ValueError as error:
        _refuse_surrogates(body)
        raise InvalidPayload(f"not valid JSON: {error}.", code=Code.MALFORMED_JSON) from error


def json_value(model: BaseModel, what: str, *, round_trip: bool = False) -> Any:
    """What ``model`` is as JSON, under its aliases.

    pydantic writes NaN and Infinity as null where a field takes anything, and the value would be
    lost without a word. Raises InvalidPayload ``malformed_json`` for them.
    """
    check_value(model.model_dump(), what)
    return model.model_dump(mode="json", by_alias=True, round_trip=round_trip)


def encode_json(value: Any, *, limit_bytes: int, what: str) -> str:
    """``value`` as JSON text that can be stored.

    Raises InvalidPayload: ``payload_too_large`` over ``limit_bytes`` UTF-8 bytes,
    ``invalid_character`` for ``\\u0000`` or a lone surrogate anywhere, ``malformed_json`` for NaN,
    Infinity, values that are no JSON, or nesting deeper than 64.
    """
    check_value(value, what)
    try:
        text = to_json(value, inf_nan_mode="constants")
    except ValueError as error:
        raise InvalidPayload(f"{what} is no JSON value: {error}.", code=Code.MALFORMED_JSON) from (
            error
        )
    if len(text) > limit_bytes:
        raise InvalidPayload(
            f"{what} has {len(text)} bytes, more than the limit of {limit_bytes}.",
            next_step="Store it elsewhere and pass a reference.",
            code=Code.PAYLOAD_TOO_LARGE,
        )
    return text.decode()


def canonical_text(value: Any) -> str:
    """One text for equal values, for fingerprints only (not RFC 8785)."""
    return _CANONICAL.encode(value)


def _refuse_surrogates(body: bytes) -> None:
    """The strict parser does not tell a lone surrogate from other faults; the standard library's
    accepts it."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return
    try:
        check_value(value, "The text")
    except InvalidPayload as error:
        if error.code == Code.INVALID_CHARACTER:
            raise


def check_value(value: Any, what: str, depth: int = MAX_DEPTH) -> None:
    """Whether a parsed value can be stored and sent as JSON.

    Raises InvalidPayload: ``invalid_character`` for ``\\u0000`` or a lone surrogate anywhere,
    ``malformed_json`` for NaN, Infinity, or nesting deeper than ``depth``.
    """
    if depth == 0:
        raise InvalidPayload(
            f"{what} is nested deeper than {MAX_DEPTH} levels.", code=Code.MALFORMED_JSON
        )
    match value:
        case str():
            if "\x00" in value:
                raise InvalidPayload(
                    f"{what} holds the character \\u0000, which cannot be stored.",
                    next_step="Remove it, or encode binary data as base64.",
                    code=Code.INVALID_CHARACTER,
                )
            if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                raise InvalidPayload(
                    f"{what} holds a lone surrogate, which is no Unicode text.",
                    code=Code.INVALID_CHARACTER,
                )
        case dict():
            for key, entry in value.items():
                check_value(key, what, depth)
                check_value(entry, what, depth - 1)
        case list() | tuple():
            for entry in value:
                check_value(entry, what, depth - 1)
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise InvalidPayload(
                    f"{what} holds NaN or Infinity, which are no JSON.", code=Code.MALFORMED_JSON
                )
        case _:
            pass
