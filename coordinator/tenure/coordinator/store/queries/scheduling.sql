-- What explains and steers the scheduler. Every one is bound to a tenant.

-- name: judged_task
-- A task as nodes are judged for it, with what its tenant may use. Position: how many tasks of the
-- tenant are served before it, counted up to $3.
select
    clock_timestamp() as clock,
    t.task_id, t.tenant, t.type, t.state, t.version, t.sequence, t.generation,
    t.current_attempt_id, t.failures, t.losses, t.not_before, t.deadline, t.effects, t.max_attempts,
    t.cpu_millis, t.memory_bytes, t.cancel_requested_at,
    t.cancel_delivered_at, t.rejected_by, t.decided_at, t.reason,
    t.profile_digest, p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    e.tenant as fact_tenant, e.version as tenant_version, e.state as tenant_state, e.weight,
    e.node_pools, e.locations as tenant_locations, e.networks as tenant_networks, e.budget_minor,
    e.budget_unlimited, b.held_minor, b.spent_minor,
    a.state as attempt_state, a.node_id,
    case when t.state = 'open' and t.current_attempt_id is null then (
        select count(*) + 1 from (
            select from tenure.tasks w
            where w.tenant = t.tenant and w.state = 'open' and w.current_attempt_id is null
                and w.ripe and (w.queued_as_of, w.task_id) < (t.queued_as_of, t.task_id)
            limit $3
        ) before
    ) end as position
from tenure.tasks t
left join tenure.profiles p on p.tenant = t.tenant and p.digest = t.profile_digest
left join tenure.tenants e on e.tenant = t.tenant
left join tenure.accounts b on b.tenant = t.tenant
left join tenure.attempts a on a.attempt_id = t.current_attempt_id
where t.tenant = $1 and t.task_id = $2::uuid

-- name: judged_nodes
-- Every node of a tenant that has not ended.
select
    n.incarnation, n.tenant as node_tenant, n.node_id, n.state as node_state,
    n.version as node_version, n.sequence as node_sequence, n.slots,
    n.cpu_millis as node_cpu_millis, n.memory_bytes as node_memory_bytes, n.slots_used,
    n.cpu_used, n.memory_used, n.task_types, n.last_seen_at, n.facts::text as node_facts,
    n.profile_digests, n.type_effects, n.executable_digest, n.executable_withdrawn,
    n.under_review
from tenure.incarnations n
where n.tenant = $1 and n.state <> 'gone'
order by n.node_id, n.incarnation
limit $2

-- name: tenants
-- What is stated, of one tenant or (null) of all.
select
    e.tenant, e.state, e.weight, e.node_pools, e.locations, e.networks, e.budget_minor,
    e.budget_unlimited, e.currency, b.held_minor, b.spent_minor, e.version, e.changed_at,
    e.changed_by
from tenure.tenants e
join tenure.accounts b using (tenant)
where $1::text is null or e.tenant = $1
order by e.tenant

-- name: set_tenant
select tenure.set_tenant($1, $2::jsonb, $3) as confirmed

-- name: set_node_facts
select tenure.set_node_facts($1, $2, $3::jsonb, $4) as confirmed
