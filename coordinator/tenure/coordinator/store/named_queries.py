"""Named queries from ``queries/*.sql``: each begins with a line ``-- name: the_name``.

They stay plain SQL with ``$1`` parameters, so that one can be pasted into psql. Comment lines go to
the server with them, where they name the query in its log.
"""

from importlib import resources
from typing import Final

_MARKER: Final = "-- name: "


def load(file_name: str) -> dict[str, str]:
    """Queries of one file by name. Raises ValueError for text before the first name, and for a name
    used twice."""
    folder = resources.files("tenure.coordinator.store") / "queries"
    return parse((folder / file_name).read_text("utf-8"))


def parse(text: str) -> dict[str, str]:
    """Queries in ``text`` by name. Raises ValueError as ``load`` does."""
    head, *parts = ("\n" + text).split("\n" + _MARKER)
    if any(line and not line.startswith("--") for line in head.splitlines()):
        raise ValueError("a query has no name")
    queries: dict[str, str] = {}
    for part in parts:
        name, _, body = part.partition("\n")
        name = name.strip()
        if name in queries:
            raise ValueError(f"two queries are named {name!r}")
        queries[name] = f"{_MARKER}{name}\n{body.strip()}"
    return queries
