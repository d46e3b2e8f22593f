"""What counts under limits, for decisions, and the limits themselves, for people."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from asyncpg import Record
from pydantic_core import from_json

from tenure.contract.codes import Code
from tenure.contract.ids import TenantId
from tenure.contract.limits import LimitView, StartRate
from tenure.contract.states import LimitScope
from tenure.coordinator.core import limits
from tenure.coordinator.core.rows import TenantRow
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.postgres import Asked
from tenure.coordinator.store.reading import Reader

MAX_LIMITS: Final = 200
"""Of one tenant: all of them are looked at for every task."""

_QUERIES: Final = named_queries.load("limits.sql")


async def counted(
    asked: "Asked | Reader", tenants: Mapping[TenantId, TenantRow], keys: Collection[str] = ()
) -> dict[TenantId, TenantRow]:
    """The tenants with what counts under their limits. Asks nothing where none has any.

    ``keys``: whose buckets are wanted where starts are limited for each key.
    """
    limited = [name for name, row in tenants.items() if row.limits]
    found = dict(tenants)
    if limited:
        for record in await asked.fetch(_QUERIES["usage"], limited, sorted(keys)):
            name = TenantId(record["tenant"])
            found[name] = _with_usage(tenants[name], record)
    return found


def _with_usage(tenant: TenantRow, record: Record) -> TenantRow:
    return replace(
        tenant,
        running=limits.count(tenant.limits, from_json(record["running"])),
        full_at={
            (LimitScope(scope), name, key): full_at
            for scope, name, key, full_at in from_json(record["buckets"])
        },
    )


class StatedLimits:
    """Over one pool. Every method raises Unavailable when the database stays away. Saying the same
    once more changes nothing that counts, so everything may be repeated."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def limits(self, tenant: TenantId | None) -> tuple[LimitView, ...]:
        """Those of one tenant, or (None) of every tenant."""
        rows = await self._reader.fetch(_QUERIES["limits"], tenant)
        return tuple(map(_view, rows))

    async def set(
        self,
        tenant: TenantId,
        scope: LimitScope,
        name: str,
        *,
        max_running: int | None,
        rate: StartRate | None,
        actor: str,
    ) -> None:
        """State a limit. Raises RequestRefused ``authority_unconfirmed``, and ``too_many_limits``
        where the tenant has ``MAX_LIMITS`` others."""
        (row,) = await self._reader.fetch(
            _QUERIES["set_limit"],
            *_key(tenant, scope, name),
            max_running,
            None if rate is None else rate.starts,
            None if rate is None else rate.period_seconds,
            None if rate is None else rate.burst or default_burst(rate),
            actor,
            MAX_LIMITS,
        )
        if not _confirmed(row["stated"]):
            raise RequestRefused(
                Code.TOO_MANY_LIMITS,
                f"The tenant has {MAX_LIMITS} limits already.",
            )

    async def remove(self, tenant: TenantId, scope: LimitScope, name: str, *, actor: str) -> bool:
        """Take a limit back; whether it was stated. Raises ``authority_unconfirmed``."""
        key = _key(tenant, scope, name)
        (row,) = await self._reader.fetch(_QUERIES["remove_limit"], *key, actor)
        return _confirmed(row["removed"])


def default_burst(rate: StartRate) -> int:
    """Starts of a tenth of a second, so that schedulers need not look for each single one."""
    return max(1, rate.starts // (rate.period_seconds * 10))


def _key(tenant: TenantId, scope: LimitScope, name: str) -> Sequence[str]:
    """How a scope of the caller's is kept: scope, tenant, name."""
    if scope is LimitScope.TENANT:
        return scope.value, name, ""
    return scope.value, tenant, name


def _view(row: Record) -> LimitView:
    scope = LimitScope(row["scope"])
    rate = None
    if row["starts"] is not None:
        rate = StartRate(
            starts=row["starts"], period_seconds=row["period_seconds"], burst=row["burst"]
        )
    return LimitView(
        scope=scope,
        tenant=row["tenant"],
        name=row["tenant"] if scope is LimitScope.TENANT else row["name"],
        max_running=row["max_running"],
        rate=rate,
        running=row["running"],
        next_start=row["next_start"],
        set_by=row["set_by"],
        set_at=row["set_at"],
    )


def _confirmed(answer: bool | None) -> bool:
    if answer is None:
        raise RequestRefused(
            Code.AUTHORITY_UNCONFIRMED,
            "the running database server is not the one this authority was opened on",
        )
    return answer
