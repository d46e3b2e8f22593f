"""Requests as sent -> models of the contract. Everything that is wrong has a code and says where.

Limits come before parsing. JSON is read strictly: unknown fields, wrong types, NaN and lone
surrogates are errors, here and inside payloads. One bad item of a batch refuses that item only.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, to_json
from starlette.requests import Request

from tenure.contract.codec import parse_json
from tenure.contract.codes import Code
from tenure.coordinator.api.problems import MAX_ERRORS
from tenure.coordinator.errors import InvalidRequest, RequestRefused

ModelT = TypeVar("ModelT", bound=BaseModel)

_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
OVERHEAD_BYTES: Final = 16 * 1024
ESCAPING_FACTOR: Final = 3
"""JSON may write a character of 2 or 3 bytes as an escape of 6; the payload's own limit is judged
on its stored text."""


class Query(BaseModel):
    """Base of query parameters: unknown ones are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Items(Generic[ModelT]):
    """A batch read item by item. ``batch`` holds the good ones in order; ``faults`` says by index
    what is wrong with the others; ``raw`` are their values as sent."""

    batch: ModelT | None
    faults: dict[int, InvalidRequest]
    raw: dict[int, Any]


def body_limit(payload_limit_bytes: int) -> int:
    """How large the body of a request with one payload may be."""
    return ESCAPING_FACTOR * payload_limit_bytes + OVERHEAD_BYTES


async def read_body(request: Request, *, limit_bytes: int, code: Code) -> bytes:
    """The body, refused with ``code`` as soon as it is known to be larger than ``limit_bytes``."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise _too_large(int(declared), limit_bytes, code)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit_bytes:
            raise _too_large(size, limit_bytes, code)
        pieces.append(piece)
    return b"".join(pieces)


def read_query(request: Request, model: type[ModelT]) -> ModelT:
    """The query parameters. Raises InvalidRequest for unknown, repeated and wrong ones."""
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in given:
            raise InvalidRequest(f"The query parameter {name!r} is given twice.")
        given[name] = value
    for name, value in given.items():
        # As Python writes numbers, so would the validator read them: 1_0, and spaces around.
        if _takes_numbers(model, name) and not _NUMBER.fullmatch(value):
            raise InvalidRequest(f"The query parameter {name!r}: {value!r} is no number.")
    try:
        return model.model_validate_strings(given)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False), "query parameter") from error


def _takes_numbers(model: type[BaseModel], name: str) -> bool:
    field = model.model_fields.get(name)
    kinds = () if field is None else (field.annotation, *get_args(field.annotation))
    return int in kinds or float in kinds


def refuse_query(request: Request) -> None:
    """Raises InvalidRequest when there are any query parameters."""
    if request.query_params:
        names = ", ".join(sorted(set(request.query_params)))
        raise InvalidRequest(f"This request takes no query parameters; it has {names}.")


def read_model(body: bytes, model: type[ModelT]) -> ModelT:
    """The model in ``body``.

    Raises InvalidPayload ``malformed_json`` or ``invalid_character``, InvalidRequest
    ``invalid_field``, or ``batch_too_large`` for a list with too many entries.
    """
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        parse_json(body)  # tells broken JSON from JSON that does not fit
        raise _invalid(error.errors(include_url=False)) from error


def read_items(body: bytes, model: type[ModelT], field: str) -> Items[ModelT]:
    """A batch whose entries are in ``field``; a bad entry refuses itself and nothing else.

    Raises as ``read_model`` when it is the batch that is wrong.
    """
    try:
        return Items(model.model_validate_json(body, strict=True), {}, {})
    except ValidationError as error:
        value = parse_json(body)
        faults: dict[int, list[ErrorDetails]] = {}
        whole: list[ErrorDetails] = []
        for fault in error.errors(include_url=False):
            match fault["loc"]:
                case (str(name), int(index), *rest) if name == field:
                    faults.setdefault(index, []).append({**fault, "loc": tuple(rest)})
                case _:
                    whole.append(fault)
        none_left = ("too_short", (field,))
        if faults:  # a list whose entries are all bad is also said to be too short
            whole = [entry for entry in whole if (entry["type"], entry["loc"]) != none_left]
        if whole:
            raise _invalid(whole) from error
        entries = value[field]
        good = [entry for index, entry in enumerate(entries) if index not in faults]
        batch = None
        if good:
            batch = model.model_validate_json(to_json({**value, field: good}), strict=True)
        return Items(
            batch,
            {index: _invalid(found) for index, found in faults.items()},
            {index: entries[index] for index in faults},
        )


def _too_large(size: int, limit_bytes: int, code: Code) -> RequestRefused:
    return RequestRefused(
        code, f"The body has {size} bytes or more, over the limit of {limit_bytes}."
    )


def _invalid(faults: Iterable[ErrorDetails], what: str = "field") -> InvalidRequest:
    found = list(faults)
    for fault in found:
        if fault["type"] == "too_long" and fault["loc"] in (("tasks",), ("reports",), ("leases",)):
            return InvalidRequest(f"{fault['loc'][0]}: {fault['msg']}.", code=Code.BATCH_TOO_LARGE)
    errors = [
        {"field": ".".join(str(part) for part in fault["loc"]), "message": fault["msg"]}
        for fault in found[:MAX_ERRORS]
    ]
    first = errors[0]
    more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    where = f"The {what} {first['field']!r}: " if first["field"] else ""
    return InvalidRequest(f"{where}{first['message']}{more}.", errors=errors)
