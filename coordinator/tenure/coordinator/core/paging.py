"""How far a look at the queue reads: past tasks that fit nowhere, a page at a time. Pure.

A look reads the first tasks of each kind. Where none of a full page found a place although there is
room, others behind it may: the next look reads one more page of the kind, behind that one, and so
on to the end of the queue, then from its beginning. The first page is read with every look, so that
what comes first is served first.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tenure.contract.ids import TaskId, TenantId
from tenure.coordinator.core.ranking import Room
from tenure.coordinator.core.rows import TaskRow

Kind: TypeAlias = tuple[TenantId, str]
"""Tenant and profile."""
Cursor: TypeAlias = tuple[int, TaskId]
"""Place in the queue: see ``TaskRow.queued_as_of``."""


@dataclass(frozen=True, slots=True)
class Page:
    """At most ``limit`` tasks of a room, after a place in the queue; None: the first ones."""

    room: Room
    after: Cursor | None
    limit: int

    @property
    def kind(self) -> Kind:
        """Of its tasks."""
        return self.room.tenant, self.room.profile_digest


def pages(
    rooms: Sequence[Room], behind: Mapping[Kind, Cursor], limit: int, most: int
) -> list[Page]:
    """What a look reads. ``behind``: where it reads on, in pages of ``most`` tasks."""
    found = []
    for room in rooms:
        after = behind.get((room.tenant, room.profile_digest))
        if after is not None:
            found.append(Page(room, after, most))
        # Those that a limit lets begin may be others than the first ones.
        whole = after is not None or limit == most or room.most is None
        size = most if after is not None else limit
        found.append(Page(room, None, size if whole else min(size, room.most or 0)))
    return found


def read_on(
    read: Sequence[tuple[Page, Sequence[TaskRow]]],
    placed: Collection[TaskId],
    behind: Mapping[Kind, Cursor],
    most: int,
) -> dict[Kind, Cursor]:
    """Where the next look reads on, after one that left room. Kinds that were not read are begun
    anew."""
    found: dict[Kind, Cursor] = {}
    for page, tasks in read:
        if page.after is None and page.kind in behind:
            continue  # the page behind it says
        stuck = not any(task.task_id in placed for task in tasks)
        full = bool(tasks) and len(tasks) == page.limit
        if stuck and full and page.limit == most:
            found[page.kind] = tasks[-1].queued_as_of, tasks[-1].task_id
        elif page.after is not None and not stuck:
            found[page.kind] = page.after
    return found


def is_short(read: Sequence[tuple[Page, Sequence[TaskRow]]], placed: Collection[TaskId]) -> bool:
    """Whether some page was full and has tasks without a place: others behind them may have one."""
    return any(
        len(tasks) == page.limit and any(task.task_id not in placed for task in tasks)
        for page, tasks in read
    )
