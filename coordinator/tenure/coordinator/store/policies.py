"""Policies as stored: the one in force, one by its version, the history, and the next."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from asyncpg import Pool, Record

from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.store import named_queries

_QUERIES: Final = named_queries.load("policies.sql")


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """A policy, and who set it when and why."""

    policy: LeasePolicy
    set_by: str
    reason: str
    set_at: datetime


async def policy_in_force(pool: Pool) -> LeasePolicy:
    """The highest version. Raises what asyncpg raises."""
    return _policy(await pool.fetchrow(_QUERIES["in_force"]))


async def policy_of_version(pool: Pool, version: int) -> LeasePolicy:
    """One version; there is one for every lease. Raises what asyncpg raises."""
    return _policy(await pool.fetchrow(_QUERIES["of_version"], version))


async def set_policy(
    pool: Pool, after: int, policy: LeasePolicy, *, set_by: str, reason: str
) -> bool:
    """Make ``policy`` version ``after + 1``. False when another policy has that version, or a later
    one is in force. Repeating the call changes nothing more. Raises what asyncpg raises."""
    done: bool = await pool.fetchval(
        _QUERIES["set_policy"], *set_policy_arguments(after, policy, set_by, reason)
    )
    return done


def set_policy_arguments(
    after: int, policy: LeasePolicy, set_by: str, reason: str
) -> tuple[object, ...]:
    """Arguments of the query ``set_policy``."""
    return (
        after,
        policy.lease_microseconds,
        policy.renewal_margin_microseconds,
        policy.clock_tolerance_microseconds,
        policy.node_silence_microseconds,
        policy.retry_base_microseconds,
        policy.retry_cap_microseconds,
        policy.on_promotion,
        set_by,
        reason,
    )


def stored_policy(record: Record) -> StoredPolicy:
    """A row of the history."""
    return StoredPolicy(_policy(record), record["set_by"], record["reason"], record["set_at"])


def _policy(record: Record | None) -> LeasePolicy:
    assert record is not None
    return LeasePolicy(
        version=record["version"],
        lease_microseconds=record["lease_microseconds"],
        renewal_margin_microseconds=record["renewal_margin_microseconds"],
        clock_tolerance_microseconds=record["clock_tolerance_microseconds"],
        node_silence_microseconds=record["node_silence_microseconds"],
        retry_base_microseconds=record["retry_base_microseconds"],
        retry_cap_microseconds=record["retry_cap_microseconds"],
        on_promotion=record["on_promotion"],
    )
