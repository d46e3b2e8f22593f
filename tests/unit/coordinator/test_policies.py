"""What a replica knows of the policy is never older than what it knew."""

import asyncio
from typing import Any, cast

import pytest

from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.policies import Policies
from tenure.coordinator.store import policies as store


@pytest.mark.requirement("LEASE-08")
async def test_a_look_that_began_before_a_change_does_not_bring_the_old_terms_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, begun, answers = LeasePolicy(version=1), asyncio.Event(), asyncio.Event()

    async def policy_in_force(_: Any) -> LeasePolicy:
        read = stored
        begun.set()
        if read.version == 1:
            await answers.wait()
        return read

    monkeypatch.setattr(store, "policy_in_force", policy_in_force)
    policies = Policies(cast(Any, None), LeasePolicy())
    early = asyncio.create_task(policies.refresh())
    await begun.wait()
    stored = LeasePolicy(version=2)
    late = asyncio.create_task(policies.refresh())
    await asyncio.wait({late}, timeout=0)
    answers.set()
    await asyncio.gather(early, late)
    assert policies.in_force.version == 2
