"""Points in time on the command line: an ISO 8601 instant, or how long from now; and lengths."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from tenure.cli.exits import UsageError

_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_LENGTH: Final = re.compile(r"\+?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def read_instant(text: str, option: str, *, now: datetime | None = None) -> datetime:
    """``2026-12-24T18:00:00Z``, ``2026-12-24 18:00`` (local time), ``90s``, ``1h30m``, ``2d``.

    Lengths count from ``now``, this machine's clock. Raises UsageError, naming ``option``.
    """
    length = _LENGTH.fullmatch(text)
    if length and any(length.groups()):
        given = zip(_UNITS.values(), length.groups(), strict=True)
        try:
            return (now or datetime.now(UTC)) + timedelta(
                **{unit: int(number) for unit, number in given if number}
            )
        except OverflowError:
            raise UsageError(f"{option}: {text!r} is too far away.") from None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option}: {text!r} is no point in time.",
            next_step="Give one like 2026-12-24T18:00:00Z, or a length from now like 90s or 1h30m.",
        ) from None


def read_length(text: str, option: str) -> timedelta:
    """``90s``, ``1h30m``, ``7d``. Raises UsageError, naming ``option``."""
    length = _LENGTH.fullmatch(text)
    if not length or not any(length.groups()):
        raise UsageError(
            f"{option}: {text!r} is no length of time.",
            next_step="Give one like 90s, 1h30m or 7d.",
        )
    now = datetime.now(UTC)
    return read_instant(text, option, now=now) - now


def read_past(text: str, option: str, *, now: datetime | None = None) -> datetime:
    """As ``read_instant``, with lengths counted back from ``now``."""
    reference = now or datetime.now(UTC)
    found = read_instant(text, option, now=reference)
    if not _LENGTH.fullmatch(text):
        return found
    try:
        return reference - (found - reference)
    except OverflowError:
        raise UsageError(f"{option}: {text!r} is too far away.") from None
