"""Whether a database keeps its invariants: read only, and while everything runs.

Each invariant is a query of ``queries/verify_*.sql`` that finds what breaks it; its name is the
query's. Large tables are walked by their keys, a page at a time. All invariants of a page are
judged in one snapshot, which is given up after the page: commits that go on meanwhile break
nothing, and no snapshot is old enough to hold up vacuum. What is made behind the walk is for the
next one. Memory is that of one page, and of a few examples for each invariant that is broken.

The queries know nothing of the rules that decide: they say what must be true of the rows.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import asyncpg

from tenure.contract.states import ATTEMPT_MOVES, AttemptState
from tenure.coordinator.store import migrate, named_queries
from tenure.coordinator.store.connecting import connection_error
from tenure.coordinator.store.errors import DatabaseRefused

EXAMPLES: Final = 5
FIRST_PAGE_ROWS: Final = 200
LARGEST_PAGE_ROWS: Final = 4000
PAGE_SECONDS: Final = 0.3
"""Pages grow and shrink so that one takes about as long: so old is a snapshot at most."""

_PAGE: Final = "page"
_MOVES: Final = [f">{AttemptState.SUBMITTED}"] + [
    f"{before}>{after}" for before, following in ATTEMPT_MOVES.items() for after in following
]
_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {"attempts-move-as-permitted": (_MOVES,)}
"""What a query is given besides the bounds of its page."""

# A plan made for tables that nobody has analysed must not read them whole for every page.
_SETTINGS: Final = """
    set local enable_seqscan = off;
    set local enable_hashjoin = off;
    set local enable_mergejoin = off;
    set local max_parallel_workers_per_gather = 0;
    set local jit = off
"""


@dataclass(frozen=True, slots=True)
class Walk:
    """A table that is walked by its key; the key before the first one, None: looked at whole."""

    name: str
    before_first: Any
    queries: dict[str, str]

    @property
    def invariants(self) -> Iterator[tuple[str, str]]:
        """Names and queries."""
        return ((name, query) for name, query in self.queries.items() if name != _PAGE)


_ZERO: Final = UUID(int=0)
_BEFORE_FIRST: Final[dict[str, Any]] = {
    "tasks": _ZERO,
    "attempts": _ZERO,
    "nodes": _ZERO,
    "receipts": _ZERO,
    "commands": _ZERO,
    "intake": 0,
    "renewals": (0, 0),
    "log": 0,
    "whole": None,
}
WALKS: Final = tuple(
    Walk(name, before_first, named_queries.load(f"verify_{name}.sql"))
    for name, before_first in _BEFORE_FIRST.items()
)
INVARIANTS: Final = tuple(name for walk in WALKS for name, _ in walk.invariants)


@dataclass(frozen=True, slots=True)
class Example:
    """One row that breaks an invariant."""

    subject: str
    detail: str


@dataclass(slots=True)
class Broken:
    """How often an invariant is broken, and the first few examples."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass(slots=True)
class Findings:
    """What a run saw: rows of each walk, and what is broken, by the invariant's name."""

    rows: dict[str, int] = field(default_factory=dict)
    broken: dict[str, Broken] = field(default_factory=dict)

    def add(self, invariant: str, found: Sequence[asyncpg.Record]) -> None:
        """Count rows that break an invariant."""
        if found:
            broken = self.broken.setdefault(invariant, Broken())
            broken.count += len(found)
            room = EXAMPLES - len(broken.examples)
            broken.examples += [Example(row["subject"], row["detail"]) for row in found[:room]]


Progress = Callable[[str, int], None]
"""Told after each page: the walk's name, and its rows so far."""


async def verify(url: str, progress: Progress = lambda name, rows: None) -> Findings:
    """Judge every invariant.

    Raises what ``migrate.status`` raises, NotMigrated, SchemaTooNew, MigrationEdited, and
    DatabaseRefused for a login that may not read everything.
    """
    findings = Findings()
    try:
        async with migrate.connected(url) as connection:
            (await migrate.read_status(connection)).check()
            for walk in WALKS:
                await _walk(connection, walk, findings, progress)
    except asyncpg.InsufficientPrivilegeError as error:
        raise DatabaseRefused(
            f"This login may not read everything: {error}.",
            next_step="Verify with the login that owns the schema.",
        ) from error
    except (asyncpg.QueryCanceledError, asyncpg.InterfaceError, OSError) as error:
        raise connection_error(error) from error
    return findings


async def _walk(
    connection: asyncpg.Connection, walk: Walk, findings: Findings, progress: Progress
) -> None:
    loop = asyncio.get_running_loop()
    after = walk.before_first
    page_rows = FIRST_PAGE_ROWS
    seen = 0
    while True:
        began = loop.time()
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(_SETTINGS)
            if after is None:
                await _judge(connection, walk, (), findings)
                return
            page = await connection.fetchrow(walk.queries[_PAGE], after, page_rows)
            assert page is not None  # an aggregate has a row
            if page["last"] is not None:
                await _judge(connection, walk, (after, page["last"]), findings)
        seen += page["rows"]
        findings.rows[walk.name] = seen
        progress(walk.name, seen)
        if page["last"] is None:
            return
        after = page["last"]
        slow = loop.time() - began > PAGE_SECONDS
        page_rows = max(1, page_rows // 2) if slow else min(LARGEST_PAGE_ROWS, page_rows * 2)


async def _judge(
    connection: asyncpg.Connection, walk: Walk, bounds: tuple[Any, ...], findings: Findings
) -> None:
    for name, query in walk.invariants:
        findings.add(name, await connection.fetch(query, *bounds, *_ARGUMENTS.get(name, ())))
