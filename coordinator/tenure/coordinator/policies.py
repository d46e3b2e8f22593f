"""The policy in force, as one replica knows it, and every earlier one that a lease names.

The database has the truth and the commit checks it: a decision made under a policy that is no
longer in force is not applied, the policy is read again, and the command is decided anew
(LEASE-08).
"""

import asyncio

import structlog

from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.store import policies as store
from tenure.coordinator.store.postgres import Pool

log = structlog.get_logger()

FROM_SETTINGS = "settings"
"""Who set a policy that was made of a coordinator's settings."""


class Policies:
    """``in_force`` is what this replica decides by. A policy never changes: each is read once."""

    def __init__(self, pool: Pool, first: LeasePolicy) -> None:
        """``first``: what this replica's settings say, in force until the database was asked."""
        self._pool = pool
        self._first = first
        self._known: dict[int, LeasePolicy] = {}
        self._one_look_at_a_time = asyncio.Lock()
        self.in_force = first

    async def establish(self) -> None:
        """Make the settings the policy, if nobody has set one yet; then read what is in force.

        Settings that differ from the stored policy change nothing: it is said in the log. Raises
        what the driver raises.
        """
        wanted = self._first
        self.in_force = await store.policy_in_force(self._pool)
        if _terms(wanted) == _terms(LeasePolicy()) or _terms(wanted) == _terms(self.in_force):
            return
        if self.in_force.version == 1:
            await store.set_policy(
                self._pool,
                1,
                wanted,
                set_by=FROM_SETTINGS,
                reason="the first coordinator's settings",
            )
            await self.refresh()
        if _terms(wanted) != _terms(self.in_force):
            log.warning(
                "the stored policy is in force, not the terms of the settings",
                policy_version=self.in_force.version,
                next_step="See `tenure policy show`; change it with `tenure policy set`.",
            )

    async def refresh(self) -> None:
        """Read what is in force now. Raises what the driver raises.

        One after the other: a look that began before a change and is answered after it would bring
        the terms back that were replaced.
        """
        async with self._one_look_at_a_time:
            policy = await store.policy_in_force(self._pool)
            self._known[policy.version] = policy
            if policy.version != self.in_force.version:
                self.in_force = policy
                log.info("another policy is in force", policy_version=policy.version)

    async def of_version(self, version: int) -> LeasePolicy:
        """The terms that a lease was granted under. Raises what the driver raises."""
        if version not in self._known:
            self._known[version] = await store.policy_of_version(self._pool, version)
        return self._known[version]


def _terms(policy: LeasePolicy) -> tuple[object, ...]:
    return (
        policy.lease_microseconds,
        policy.renewal_margin_microseconds,
        policy.clock_tolerance_microseconds,
        policy.node_silence_microseconds,
        policy.retry_base_microseconds,
        policy.retry_cap_microseconds,
        policy.on_promotion,
    )
