"""Replays: what operators ask about them and say to them. Relays do the work (tenure.relay.replay).

Over one pool. Every method raises Unavailable when the database stays away. What is begun has an id
that the caller chose, so everything may be repeated.
"""

import json
from hashlib import sha256
from typing import Any, Final, Literal

from asyncpg import Record
from pydantic_core import to_json

from tenure.contract.codes import Code
from tenure.contract.replay import (
    ReplayChange,
    ReplayDetail,
    ReplayFilter,
    ReplayList,
    ReplayPreview,
    ReplayRequest,
    ReplaySample,
    ReplayView,
)
from tenure.contract.states import ReplayState
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.reading import Reader

_QUERIES: Final = named_queries.load("replay.sql")

Change = Literal["paused", "resumed", "cancelled"]


class Replays:
    """See the module."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def preview(self, asked: ReplayFilter, queue: str) -> ReplayPreview:
        """What a replay of these rows to ``queue`` covers now. Changes nothing."""
        (row,) = await self._reader.fetch(_QUERIES["preview"], _filter_text(asked), queue)
        return ReplayPreview(
            from_position=row["from_position"],
            to_position=row["to_position"],
            rows=row["row_count"],
            exact=row["exact"],
            sample=tuple(ReplaySample(**one) for one in json.loads(row["sample"])),
            log_from_position=row["log_from_position"],
            log_recorded_from=row["log_recorded_from"],
            oldest_recorded_at=row["oldest_recorded_at"],
            remembered_since=row["remembered_since"],
        )

    async def start(
        self, replay_id: str, request: ReplayRequest, expected: ReplayPreview, *, actor: str
    ) -> bool:
        """Begin it; False when it had begun with the same content.

        Raises RequestRefused ``idempotency_conflict`` and ``authority_unconfirmed``.
        """
        content = request.model_copy(update={"replay_id": None, "dry_run": False})
        (row,) = await self._reader.fetch(
            _QUERIES["start"],
            replay_id,
            sha256(content.model_dump_json().encode()).hexdigest(),
            request.queue,
            _filter_text(request.filter),
            request.rate,
            request.force,
            expected.rows,
            expected.exact,
            request.reason,
            actor,
        )
        match row["outcome"]:
            case "started" | "same" as outcome:
                return bool(outcome == "started")
            case "conflict":
                raise RequestRefused(
                    Code.IDEMPOTENCY_CONFLICT,
                    f"A replay {replay_id} was begun with other content.",
                )
        raise _unconfirmed()

    async def change(
        self, replay_id: str, change: Change, *, reason: str, actor: str, force: bool = False
    ) -> None:
        """Pause, resume or cancel it; what it is already, it stays. ``force``: it goes on also with
        what consumers may have forgotten to know.

        Raises RequestRefused ``not_found``, ``wrong_state`` once it has ended, and
        ``authority_unconfirmed``.
        """
        (row,) = await self._reader.fetch(
            _QUERIES["change"], replay_id, change, reason, actor, force
        )
        match row["outcome"]:
            case "done" | "same":
                return
            case "unknown":
                raise absent(replay_id)
            case "ended":
                raise RequestRefused(
                    Code.WRONG_STATE,
                    f"The replay {replay_id} has ended.",
                    next_step="Begin another one for what is to be published again.",
                )
        raise _unconfirmed()

    async def replay(self, replay_id: str) -> ReplayView:
        """One replay. Raises RequestRefused ``not_found``."""
        rows = await self._reader.fetch(_QUERIES["replays"], replay_id, None, None, 1)
        if not rows:
            raise absent(replay_id)
        return _view(rows[0])

    async def detail(self, replay_id: str) -> ReplayDetail:
        """One replay and its history. Raises RequestRefused ``not_found``."""
        replay = await self.replay(replay_id)
        history = await self._reader.fetch(_QUERIES["history"], replay_id)
        return ReplayDetail(
            replay=replay, history=tuple(ReplayChange(**dict(row)) for row in history)
        )

    async def replays(
        self, *, state: ReplayState | None, after: str | None, limit: int
    ) -> ReplayList:
        """A page of replays, newest first."""
        rows = await self._reader.fetch(_QUERIES["replays"], None, state, after, limit + 1)
        found = tuple(_view(row) for row in rows[:limit])
        return ReplayList(replays=found, next=found[-1].replay_id if len(rows) > limit else None)


def absent(replay_id: str) -> RequestRefused:
    """There is no such replay."""
    return RequestRefused(
        Code.NOT_FOUND,
        f"There is no replay {replay_id}.",
        next_step="See `tenure outbox replay list`.",
    )


def _filter_text(asked: ReplayFilter) -> str:
    return to_json(asked).decode()


def _view(row: Record) -> ReplayView:
    values: dict[str, Any] = dict(row)
    return ReplayView(**values | {"filter": ReplayFilter.model_validate_json(values["filter"])})


def _unconfirmed() -> RequestRefused:
    return RequestRefused(
        Code.AUTHORITY_UNCONFIRMED,
        "the running database server is not the one this authority was opened on",
    )
