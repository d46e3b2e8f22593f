"""Amounts of cores and memory in the notation of Kubernetes: ``500m``, ``2``, ``2Gi``, ``512M``.

Kept as thousandths of a core and as bytes, whole numbers both. What would have to be rounded is an
error: nobody is given less than was asked for.
"""

import re
from decimal import Decimal, InvalidOperation
from typing import Final

MAX_CPU_MILLIS: Final = 10**9
MAX_MEMORY_BYTES: Final = 2**60

_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL: Final = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS: Final = {"": 1, **_DECIMAL, **_BINARY}
_QUANTITY: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?P<unit>[A-Za-z]*)")
_MAX_CHARACTERS: Final = 40


def cpu_millis(text: str | int | float) -> int:
    """Thousandths of a core: ``"500m"`` is 500, ``"2"`` and ``2`` are 2000, ``"0.5"`` is 500.

    Raises ValueError for anything else, finer than a thousandth or more than a million cores.
    """
    number, unit = _parts(text, "cores", 'like "500m" or "2"')
    if unit not in ("", "m"):
        raise ValueError(f"{text!r}: cores have no unit but m, thousandths: write them like 500m")
    millis = number if unit == "m" else number * 1000
    return _whole(millis, text, "thousandths of a core", MAX_CPU_MILLIS)


def memory_bytes(text: str | int) -> int:
    """Bytes: ``"2Gi"`` is 2 * 2**30, ``"512M"`` 512,000,000, ``"1024"`` and ``1024`` are 1024.

    Raises ValueError for anything else, a part of a byte or more than 2**60 bytes.
    """
    number, unit = _parts(text, "memory", 'like "2Gi" or "512M"')
    if unit not in _UNITS:
        known = ", ".join(name for name in _UNITS if name)
        raise ValueError(f"{text!r}: the unit is not known: use one of {known}, or none for bytes")
    return _whole(number * _UNITS[unit], text, "bytes", MAX_MEMORY_BYTES)


def cpu_text(millis: int) -> str:
    """The shortest way to write thousandths of a core: ``500m``, ``2``."""
    return str(millis // 1000) if millis % 1000 == 0 else f"{millis}m"


def memory_text(number: int) -> str:
    """The shortest exact way to write bytes with a binary unit: ``2Gi``, ``1536Mi``, ``1000``."""
    for unit, size in reversed(_BINARY.items()):
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _parts(text: str | int | float, what: str, example: str) -> tuple[Decimal, str]:
    written = str(text)
    found = _QUANTITY.fullmatch(written) if len(written) <= _MAX_CHARACTERS else None
    if found is None or isinstance(text, bool):
        raise ValueError(
            f"{written[:_MAX_CHARACTERS]!r} is no amount of {what}: write it {example}"
        )
    try:
        return Decimal(found["number"]), found["unit"]
    except InvalidOperation:  # digits that int() knows and decimal does not
        raise ValueError(f"{written!r} is no amount of {what}: write it {example}") from None


def _whole(number: Decimal, text: object, unit: str, largest: int) -> int:
    if number != int(number):
        raise ValueError(f"{str(text)!r} is no whole number of {unit}")
    if number > largest:
        raise ValueError(f"{str(text)!r} is more than {largest} {unit}")
    return int(number)
