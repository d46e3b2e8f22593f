"""What operators ask about authority: the policy of leases, epochs, and recovery."""

from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import structlog

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import AttemptId, CommandId, NodeId
from tenure.contract.operations import (
    Evidence,
    EvidenceJudged,
    PolicyChange,
    PolicyHistory,
    PolicyView,
    Quarantined,
    QuarantineRequest,
    Recovered,
    Recovery,
    ReviewClosing,
    RevocationRequest,
    Revoked,
)
from tenure.coordinator.api import wire
from tenure.coordinator.api.applications import refuse_body, task_id_of
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.executors import Nothing, node_id_of
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.authority import Authority
from tenure.coordinator.core.commands import CloseReview, Quarantine, Revoke
from tenure.coordinator.core.policy import contradiction
from tenure.coordinator.core.snapshot import LeasePolicy
from tenure.coordinator.errors import InvalidRequest, RequestRefused
from tenure.coordinator.store.policies import StoredPolicy
from tenure.coordinator.store.reads import Reads
from tenure.coordinator.submission import derived_id, fingerprint

log = structlog.get_logger()

MAX_POLICIES: Final = 100
MAX_EPOCHS: Final = 100
_SECOND: Final = 1_000_000
_DURATIONS: Final = (
    "lease", "renewal_margin", "clock_tolerance", "node_silence", "retry_base", "retry_cap",
)  # fmt: skip


class Leases:
    """Handlers of ``/v1/policies`` and ``/v1/authority``."""

    def __init__(self, reads: Reads, authority: Authority) -> None:
        self._reads = reads
        self._authority = authority
        self._policies = authority.policies

    async def list_policies(self, _: Call) -> Answer:
        """Every version of the policy, the one in force first."""
        stored = await self._reads.policies(MAX_POLICIES)
        return Answer(PolicyHistory(policies=tuple(_view(one) for one in stored)))

    async def set_policy(self, call: Call) -> Answer:
        """The next version, for what is granted from now on."""
        change = read_model(await call.body(), PolicyChange)
        check_value(change.reason, "reason")
        by_version = {one.policy.version: one for one in await self._reads.policies(MAX_POLICIES)}
        before = by_version.get(change.after_version)
        if before is None:
            raise _changed_meanwhile(change.after_version, max(by_version))
        wanted = _changed(before.policy, change)
        fault = contradiction(wanted)
        if fault is not None:
            raise InvalidRequest(f"These terms contradict each other: {fault}.")
        done = await self._reads.set_policy(
            change.after_version, wanted, set_by=call.identity.name, reason=change.reason
        )
        stored = await self._reads.policies(MAX_POLICIES)
        if not done:
            raise _changed_meanwhile(change.after_version, stored[0].policy.version)
        await self._policies.refresh()
        log.info(
            "policy set", by=call.identity.name, policy_version=change.after_version + 1,
            reason=change.reason,
        )  # fmt: skip
        (now,) = (one for one in stored if one.policy.version == change.after_version + 1)
        return Answer(_view(now))

    async def authority(self, _: Call) -> Answer:
        """What the authority is, and every epoch that it had."""
        return Answer(await self._reads.authority(MAX_EPOCHS))

    async def recover(self, call: Call) -> Answer:
        """Open an epoch on this database as it is."""
        request = read_model(await call.body(), Recovery)
        check_value(request.reason, "reason")
        epoch, wait_seconds = await self._reads.recover(
            by=call.identity.name, reason=request.reason, above_epoch=request.above_epoch
        )
        if wait_seconds is not None:
            raise RequestRefused(
                Code.RECOVERY_TOO_EARLY,
                "Another copy of this database may have opened the epoch that would be opened now;"
                f" in {wait_seconds} s none can have.",
                headers={"Retry-After": str(wait_seconds)},
            )
        if epoch is None:
            raise RequestRefused(
                Code.NOTHING_TO_RECOVER, "The authority is confirmed: it grants already."
            )
        log.warning(
            "authority recovered", by=call.identity.name, epoch=epoch, reason=request.reason
        )
        return Answer(Recovered(epoch=epoch))

    async def renewals(self, call: Call) -> Answer:
        """Renewals of a task's attempts: who had how much more time given, and when."""
        return Answer(await self._reads.renewals(call.identity.tenant, task_id_of(call)))

    async def revoke(self, call: Call) -> Answer:
        """Take the authority of one attempt away. Asking again gives the first answer."""
        request = read_model(await call.body(), RevocationRequest)
        check_value(request.reason, "reason")
        task_id, tenant = task_id_of(call), call.identity.tenant
        (outcome,) = await self._authority.revoke(
            [
                Revoke(
                    command_id=derived_id(tenant, "revoke", request.attempt_id),
                    fingerprint=fingerprint(["revoke", task_id, request.attempt_id]),
                    tenant=tenant,
                    actor=call.identity.name,
                    task_id=task_id,
                    attempt_id=AttemptId(request.attempt_id),
                    message=request.reason,
                )
            ]
        )
        reply = wire.applied(outcome)
        if reply.attempt_state is None or reply.task_state is None:
            raise AssertionError("the reply to a revocation names both states")
        log.info(
            "attempt revoked", by=call.identity.name, task_id=task_id,
            attempt_id=request.attempt_id, reason=request.reason, outcome=reply.outcome,
        )  # fmt: skip
        return Answer(
            Revoked(
                task_id=task_id,
                attempt_id=request.attempt_id,
                outcome="revoked" if reply.outcome == "applied" else "already_ended",
                attempt_state=reply.attempt_state,
                task_state=reply.task_state,
                # Read now, when nothing prolongs it any more: a renewal may have come before.
                writable_until=await self._reads.lease_end(tenant, request.attempt_id),
            )
        )

    async def quarantine(self, call: Call) -> Answer:
        """Take a node out of service, under this and every later incarnation."""
        request = read_model(await call.body(), QuarantineRequest)
        check_value(request.reason, "reason")
        node_id = await self._set_quarantine(call, request.reason)
        attempts = await self._reads.open_attempts(call.identity.tenant, node_id)
        return Answer(Quarantined(node_id=node_id, attempts=attempts))

    async def reviews(self, call: Call) -> Answer:
        """Health reviews of a node's starts."""
        return Answer(await self._reads.reviews(call.identity.tenant, node_id_of(call)))

    async def close_review(self, call: Call) -> Answer:
        """Somebody has looked at the node. While it is silent, it gets nothing new all the same."""
        request = read_model(await call.body(), ReviewClosing)
        check_value(request.reason, "reason")
        node_id, command_id = node_id_of(call), str(uuid4())
        outcome = await self._authority.review(
            CloseReview(
                command_id=CommandId(command_id),
                fingerprint=command_id.encode(),
                tenant=call.identity.tenant,
                actor=call.identity.name,
                node_id=node_id,
                incarnation=None,
                message=request.reason,
            )
        )
        wire.applied(outcome)
        return Answer(await self._reads.reviews(call.identity.tenant, node_id))

    async def release_node(self, call: Call) -> Answer:
        """Let a quarantined node back."""
        await refuse_body(call)
        await self._set_quarantine(call, None)
        return Answer(Nothing())

    async def _set_quarantine(self, call: Call, reason: str | None) -> NodeId:
        node_id = node_id_of(call)
        command_id = str(uuid4())
        wire.applied(
            await self._authority.quarantine(
                Quarantine(
                    command_id=CommandId(command_id),
                    fingerprint=command_id.encode(),
                    tenant=call.identity.tenant,
                    actor=call.identity.name,
                    node_id=node_id,
                    reason=reason,
                )
            )
        )
        log.info(
            "node let back" if reason is None else "node quarantined",
            by=call.identity.name, node_id=node_id, reason=reason,
        )  # fmt: skip
        return node_id

    async def present(self, call: Call) -> Answer:
        """What somebody has seen of this authority, against what the database knows."""
        evidence = read_model(await call.body(), Evidence)
        tenant, by = call.identity.tenant, call.identity.name
        proven = 0
        if evidence.tokens:
            proven += sum(await self._reads.present_tokens(tenant, evidence.tokens, by))
        if evidence.positions:
            proven += sum(await self._reads.present_positions(tenant, evidence.positions, by))
        if proven:
            log.error(
                "history was lost: nothing is granted until somebody recovers the authority",
                code=Code.AUTHORITY_HISTORY_LOST, by=by, proven=proven,
            )  # fmt: skip
        return Answer(EvidenceJudged(proven=proven))


def _changed(policy: LeasePolicy, change: PolicyChange) -> LeasePolicy:
    """The policy after ``policy``, with what the request names."""
    given: dict[str, Any] = {}
    for name in _DURATIONS:
        field = f"{name}_seconds"
        if field not in change.model_fields_set:
            continue
        seconds = getattr(change, field)
        if seconds is None and name != "renewal_margin":
            raise InvalidRequest(f"{field}: null is no duration; leave it out to keep it.")
        given[f"{name}_microseconds"] = None if seconds is None else round(seconds * _SECOND)
    if change.on_promotion is not None:
        given["on_promotion"] = change.on_promotion
    return replace(policy, version=policy.version + 1, **given)


def _view(stored: StoredPolicy) -> PolicyView:
    policy = stored.policy
    durations: dict[str, Any] = {}
    for name in _DURATIONS:
        microseconds = getattr(policy, f"{name}_microseconds")
        durations[f"{name}_seconds"] = None if microseconds is None else microseconds / _SECOND
    return PolicyView(
        version=policy.version,
        on_promotion=policy.on_promotion,
        set_by=stored.set_by,
        reason=stored.reason,
        set_at=stored.set_at,
        **durations,
    )


def _changed_meanwhile(after: int, in_force: int) -> RequestRefused:
    return RequestRefused(
        Code.STALE_VERSION,
        f"Policy {in_force} is in force, and not the {after} that this would change.",
    )
