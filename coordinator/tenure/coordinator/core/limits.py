"""Limits: how many tasks run at once, and how often one starts (FLOW-01). Pure.

What runs is what nodes have: counted, never remembered, so that an attempt which is lost makes room
with its end. Starts come out of a token bucket, kept as the instant at which it is full again, in
whole microseconds: it holds ``burst`` tokens, and gets one more each ``interval``.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tenure.contract.ids import TenantId
from tenure.contract.states import LimitScope
from tenure.coordinator.core.rows import ANY, Bucket, LimitRow, TaskRow, TenantRow


@dataclass(frozen=True, slots=True)
class Reached:
    """A limit that lets a task not begin now. ``running``: how many count under it.
    ``next_start``: when the bucket has a token again; None: it has one, too much runs."""

    limit: LimitRow
    key: str
    running: int
    next_start: int | None


def bucket(limit: LimitRow, type_name: str, key: str | None) -> Bucket | None:
    """Where a task of a type, with a key or without, counts under ``limit``; None: nowhere."""
    match limit.scope:
        case LimitScope.TENANT:
            return limit.scope, limit.name, ""
        case LimitScope.TYPE if limit.name == type_name:
            return limit.scope, limit.name, ""
        case LimitScope.KEY if limit.name == key:
            return limit.scope, limit.name, ""
        case LimitScope.EACH_KEY if key is not None and limit.name in (type_name, ANY):
            return limit.scope, limit.name, key
    return None


def count(
    limits: Collection[LimitRow], groups: Iterable[tuple[str, str | None, int]]
) -> dict[Bucket, int]:
    """What runs under each limit. ``groups``: type, key, and how many tasks nodes have of it."""
    stated = {(limit.scope, limit.name): limit for limit in limits}
    running: dict[Bucket, int] = {}
    for type_name, key, tasks in groups:
        for name in (
            (LimitScope.TENANT, ""),
            (LimitScope.TYPE, type_name),
            (LimitScope.KEY, key),
            (LimitScope.EACH_KEY, type_name),
            (LimitScope.EACH_KEY, ANY),
        ):
            limit = stated.get(name)  # type: ignore[arg-type] # a task without a key has none
            place = None if limit is None else bucket(limit, type_name, key)
            if place is not None:
                running[place] = running.get(place, 0) + tasks
    return running


def reached(task: TaskRow, tenant: TenantRow | None, now: int) -> tuple[Reached, ...]:
    """The limits that let the task not begin now."""
    if tenant is None or not tenant.limits:
        return ()
    return tuple(_reached(task, tenant.limits, tenant.running, tenant.full_at, now))


def _reached(
    task: TaskRow,
    limits: Sequence[LimitRow],
    running: Mapping[Bucket, int],
    full_at: Mapping[Bucket, int],
    now: int,
) -> Iterator[Reached]:
    for limit in limits:
        place = bucket(limit, task.type, task.concurrency_key)
        if place is not None:
            state = _state(limit, place, running, full_at, now)
            if is_reached(state):
                yield state


def is_reached(state: Reached) -> bool:
    """Whether no more may begin under the limit now."""
    most = state.limit.max_running
    return state.next_start is not None or (most is not None and state.running >= most)


def _state(
    limit: LimitRow,
    place: Bucket,
    running: Mapping[Bucket, int],
    full_at: Mapping[Bucket, int],
    now: int,
) -> Reached:
    next_start = None
    if limit.interval is not None and place in full_at:
        start = _full_at(limit, full_at[place], now) - (limit.burst - 1) * limit.interval
        next_start = start if start > now else None
    return Reached(limit, place[2], running.get(place, 0), next_start)


def _full_at(limit: LimitRow, stored: int, now: int) -> int:
    """A bucket lacks no more than all it holds: the clock or the rate may have been changed."""
    return min(max(stored, now), now + limit.burst * (limit.interval or 0))


class Allowances:
    """What limits allow while a plan is made: what it begins counts from then on."""

    def __init__(self, tenants: Mapping[TenantId, TenantRow], now: int) -> None:
        self._now = now
        self._limits = {name: row.limits for name, row in tenants.items() if row.limits}
        self._running = {name: dict(tenants[name].running) for name in self._limits}
        self._full_at = {name: dict(tenants[name].full_at) for name in self._limits}

    def permit(self, task: TaskRow) -> bool:
        """Whether the task may begin now."""
        limits = self._limits.get(task.tenant)
        if limits is None:
            return True
        states = _reached(
            task, limits, self._running[task.tenant], self._full_at[task.tenant], self._now
        )
        return next(states, None) is None

    def begin(self, task: TaskRow) -> None:
        """The task begins."""
        for limit in self._limits.get(task.tenant, ()):
            place = bucket(limit, task.type, task.concurrency_key)
            if place is None:
                continue
            running, full_at = self._running[task.tenant], self._full_at[task.tenant]
            running[place] = running.get(place, 0) + 1
            if limit.interval is not None:
                stored = full_at.get(place, self._now)
                full_at[place] = _full_at(limit, stored, self._now) + limit.interval

    def left(self, tenant: TenantId, type_name: str) -> int | None:
        """How many tasks of a type may begin now, whatever their keys; None: no limit says."""
        amounts = []
        for limit in self._limits.get(tenant, ()):
            if limit.scope not in (LimitScope.TENANT, LimitScope.TYPE):
                continue
            place = bucket(limit, type_name, None)
            if place is None:
                continue
            if limit.max_running is not None:
                running = self._running[tenant].get(place, 0)
                amounts.append(max(0, limit.max_running - running))
            if limit.interval is not None:
                stored = self._full_at[tenant].get(place, self._now)
                lacking = _full_at(limit, stored, self._now) - self._now
                amounts.append(limit.burst - -(-lacking // limit.interval))
        return min(amounts, default=None)

    def closed_keys(self, tenant: TenantId, type_name: str) -> frozenset[str]:
        """Keys of which no more tasks of a type may begin now. Where keys have buckets of starts,
        only those are known that were loaded."""
        closed = set()
        for limit in self._limits.get(tenant, ()):
            places: Iterable[Bucket] = ()
            if limit.scope is LimitScope.KEY:
                places = ((limit.scope, limit.name, ""),)
            elif limit.scope is LimitScope.EACH_KEY and limit.name in (type_name, ANY):
                places = (
                    place
                    for place in {*self._running[tenant], *self._full_at[tenant]}
                    if place[:2] == (limit.scope, limit.name)
                )
            for place in places:
                counted = self._running[tenant], self._full_at[tenant]
                if is_reached(_state(limit, place, *counted, self._now)):
                    closed.add(place[2] or limit.name)
        return frozenset(closed)

    def paces_keys(self, tenant: TenantId, type_name: str) -> bool:
        """Whether starts of a type are limited for each key by itself."""
        return any(
            limit.scope is LimitScope.EACH_KEY
            and limit.interval is not None
            and limit.name in (type_name, ANY)
            for limit in self._limits.get(tenant, ())
        )

    def next_start(self) -> int | None:
        """When the first of the empty buckets that were loaded has a token again."""
        instants = (
            _state(limit, place, self._running[tenant], self._full_at[tenant], self._now).next_start
            for tenant, limits in self._limits.items()
            for limit in limits
            for place in self._full_at[tenant]
            if place[:2] == (limit.scope, limit.name)
        )
        return min((one for one in instants if one is not None), default=None)
