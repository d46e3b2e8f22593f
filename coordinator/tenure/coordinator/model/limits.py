"""What counts under limits in the commit model: see ``commit.py``."""

from dataclasses import replace

from tenure.coordinator.core.decisions import AttemptCreated
from tenure.coordinator.core.limits import bucket
from tenure.coordinator.core.rows import LimitRow
from tenure.coordinator.model.rows import Rows, counted


def within_limits(rows: Rows, write: AttemptCreated, at: int) -> bool:
    """Whether the attempt may begin."""
    tenant = counted(rows, write.tenant)
    for limit in () if tenant is None else tenant.limits:
        place = bucket(limit, write.type, write.concurrency_key)
        if tenant is None or place is None:
            continue
        if limit.max_running is not None and tenant.running.get(place, 0) >= limit.max_running:
            return False
        if limit.interval is not None:
            lacking = _lacking(limit, limit.interval, tenant.full_at.get(place, at), at)
            if lacking > (limit.burst - 1) * limit.interval:
                return False
    return True


def begin(rows: Rows, write: AttemptCreated, at: int) -> Rows:
    """The attempt takes its start out of each bucket."""
    tenant = rows.tenants[write.tenant]
    full_at = dict(tenant.full_at)
    for limit in tenant.limits:
        place = bucket(limit, write.type, write.concurrency_key)
        if place is not None and limit.interval is not None:
            lacking = _lacking(limit, limit.interval, full_at.get(place, at), at)
            full_at[place] = at + lacking + limit.interval
    tenants = {**rows.tenants, write.tenant: replace(tenant, full_at=full_at)}
    return replace(rows, tenants=tenants)


def _lacking(limit: LimitRow, interval: int, full_at: int, at: int) -> int:
    return min(max(full_at - at, 0), limit.burst * interval)
