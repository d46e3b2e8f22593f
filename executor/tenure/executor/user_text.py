"""Words of user code, as the coordinator can store them."""

import contextlib

from pydantic import ValidationError


def storable(value: object, limit: int) -> str:
    """Text without \\u0000 or a lone surrogate, of at most ``limit`` characters. User code gives
    numbers and exceptions for it too."""
    return (
        str(value)
        .encode("utf-8", "replace")
        .decode()
        .replace("\x00", "\N{REPLACEMENT CHARACTER}")[:limit]
    )


def faults_of(error: ValueError) -> str:
    """What is wrong with a value, on one line and without it: it may be large, or secret."""
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc']) or 'the value'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False, include_context=False)
    )


def text_of(error: BaseException) -> str:
    """An exception in its own words."""
    with contextlib.suppress(Exception):  # a __str__ of the user's may fail itself
        return str(error)
    return "(its message cannot be shown)"
