"""What is paused: reads for people, and what operators say. Decisions read it with the tenant."""

from datetime import datetime
from typing import Final

from tenure.contract.codes import Code
from tenure.contract.flow import PauseView
from tenure.contract.ids import TenantId
from tenure.contract.states import PauseScope
from tenure.coordinator.core.rows import ANY
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store import named_queries
from tenure.coordinator.store.reading import Reader

_QUERIES: Final = named_queries.load("flow.sql")


class Flow:
    """Over one pool. Every method raises Unavailable when the database stays away. Saying the same
    once more changes nothing that counts, so everything may be repeated."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def pauses(self, tenant: TenantId | None) -> tuple[PauseView, ...]:
        """Those in force: of one tenant and of all, or (None) of every tenant."""
        rows = await self._reader.fetch(_QUERIES["pauses"], tenant)
        return tuple(PauseView(**dict(row)) for row in rows)

    async def pause(
        self,
        tenant: TenantId,
        scope: PauseScope,
        name: str,
        *,
        until: datetime | None,
        reason: str,
        actor: str,
    ) -> bool:
        """Pause a scope; False, and nothing is changed, when ``until`` has passed.

        Raises RequestRefused ``authority_unconfirmed``.
        """
        key = _key(tenant, scope, name)
        (row,) = await self._reader.fetch(_QUERIES["set_pause"], *key, until, reason, actor)
        return _confirmed(row["ahead"])

    async def resume(self, tenant: TenantId, scope: PauseScope, name: str, *, actor: str) -> bool:
        """Resume a scope; whether it was paused. Raises as ``pause``."""
        key = _key(tenant, scope, name)
        (row,) = await self._reader.fetch(_QUERIES["end_pause"], *key, actor)
        return _confirmed(row["resumed"])


def _key(tenant: TenantId, scope: PauseScope, name: str) -> tuple[str, str, str]:
    """How a scope of the caller's is kept: scope, tenant, name."""
    match scope:
        case PauseScope.ALL:
            return scope.value, ANY, ""
        case PauseScope.TENANT:
            return scope.value, name, ""
        case _:
            return scope.value, tenant, name


def _confirmed(answer: bool | None) -> bool:
    if answer is None:
        raise RequestRefused(
            Code.AUTHORITY_UNCONFIRMED,
            "the running database server is not the one this authority was opened on",
        )
    return answer
