"""Each setting of a process with its value, and where that was found; secrets masked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tenure.settings.process import ProcessSettings
from tenure.settings.secrets import Secret

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Explained:
    """One setting. ``place`` is ``default``, a variable, or a file with the key in it."""

    name: str
    value: str
    place: str


def explain(settings: ProcessSettings, places: Mapping[str, str]) -> list[Explained]:
    """Every setting in the order of the model; ``places`` as ``places_of`` finds them."""
    return [
        Explained(name, shown(getattr(settings, name)), places.get(name, DEFAULT))
        for name in type(settings).model_fields
    ]


def shown(value: object) -> str:
    """A value as people may see it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case Secret():
            return value.shown()
        case _:
            return str(value)
