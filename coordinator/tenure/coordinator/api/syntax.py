"""Forms of ids in paths and query parameters."""

import re
from typing import Final

UUID_PATTERN: Final = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_UUID: Final = re.compile(UUID_PATTERN.removeprefix("^").removesuffix("$"))


def is_uuid(text: str) -> bool:
    """Whether ``text`` is a UUID in its usual lower-case form."""
    return _UUID.fullmatch(text) is not None
