-- What explains and steers the scheduler. Every one is bound to a tenant.

-- name: judged_task
-- A task as nodes are judged for it, with what its tenant may use. Position: how many tasks of the
-- tenant are served before it, counted up to $3.
select
    clock_timestamp() as clock,
    t.task_id, t.tenant, t.type, t.state, t.version, t.sequence, t.generation,
    t.current_attempt_id, t.failures, t.losses, t.not_before, t.deadline, t.effects, t.max_attempts,
    t.cpu_millis, t.memory_bytes, t.cancel_requested_at,
    t.cancel_delivered_at, t.rejected_by, t.decided_at, t.concurrency_key, t.traceparent, t.reason,
    t.profile_digest, p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    p.operations, p.objects,
    e.tenant as fact_tenant, e.version as tenant_version, e.state as tenant_state, e.weight,
    e.node_pools, e.locations as tenant_locations, e.networks as tenant_networks, e.budget_minor,
    e.budget_unlimited, b.held_minor, b.spent_minor, e.pauses::text as pauses,
    e.limits::text as limits,
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

-- name: backlog
-- What waits of a tenant, in groups that are judged alike, the largest first: with each a task of it as
-- nodes are judged for it. $2: so many tasks are counted at most.
with waiting as (
    select w.* from tenure.tasks w
    where w.tenant = $1 and w.state = 'open' and w.current_attempt_id is null and w.ripe
    limit $2
),
groups as (
    select count(*) as tasks, min(created_at) as oldest,
        (array_agg(task_id order by queued_as_of, task_id))[1] as example
    from waiting
    group by type, profile_digest, cpu_millis, memory_bytes,
        case when exists (
            select from tenure.limits l where l.tenant = $1 and l.scope in ('key', 'each_key'))
        then concurrency_key end
    order by tasks desc, oldest
    limit 100
)
select
    g.tasks, g.oldest, sum(g.tasks) over () as counted,
    clock_timestamp() as clock,
    t.task_id, t.tenant, t.type, t.state, t.version, t.sequence, t.generation,
    t.current_attempt_id, t.failures, t.losses, t.not_before, t.deadline, t.effects, t.max_attempts,
    t.cpu_millis, t.memory_bytes, t.cancel_requested_at,
    t.cancel_delivered_at, t.rejected_by, t.decided_at, t.concurrency_key, t.traceparent,
    t.profile_digest,
    p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    p.operations, p.objects,
    e.tenant as fact_tenant, e.version as tenant_version, e.state as tenant_state, e.weight,
    e.node_pools, e.locations as tenant_locations, e.networks as tenant_networks, e.budget_minor,
    e.budget_unlimited, b.held_minor, b.spent_minor, e.pauses::text as pauses,
    e.limits::text as limits
from groups g
join tenure.tasks t on t.task_id = g.example
left join tenure.profiles p on p.tenant = t.tenant and p.digest = t.profile_digest
left join tenure.tenants e on e.tenant = t.tenant
left join tenure.accounts b on b.tenant = t.tenant
order by g.tasks desc, g.oldest

-- name: waiting_counts
-- Tasks of a tenant that wait for a node, and for their time: each counted up to $2.
select
    (select count(*) from (
        select from tenure.tasks w where w.tenant = $1 and w.state = 'open'
            and w.current_attempt_id is null and w.ripe limit $2) w) as waiting,
    (select count(*) from (
        select from tenure.tasks w where w.tenant = $1 and w.state = 'open'
            and w.current_attempt_id is null and not w.ripe limit $2) w) as not_before

-- name: declared
-- What a submission of a type $2 would be recorded with, and how many tasks would be served before one
-- that counts as queued $3 microseconds earlier than it is; counted up to $4.
select
    clock_timestamp() as clock,
    y.name, p.digest as profile_digest, p.effects, p.max_attempts, p.cpu_millis, p.memory_bytes,
    p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    p.operations, p.objects,
    e.tenant as fact_tenant, e.version as tenant_version, e.state as tenant_state, e.weight,
    e.node_pools, e.locations as tenant_locations, e.networks as tenant_networks, e.budget_minor,
    e.budget_unlimited, b.held_minor, b.spent_minor, e.pauses::text as pauses,
    e.limits::text as limits,
    (select count(*) + 1 from (
        select from tenure.tasks w where w.tenant = $1 and w.state = 'open'
            and w.current_attempt_id is null and w.ripe
            and w.queued_as_of < (select clock_timestamp() - $3::bigint * interval '1 microsecond')
        limit $4) w) as position
from (values ($1::text)) as i (tenant)
left join tenure.task_types y on y.tenant = i.tenant and y.name = $2
left join tenure.profiles p on p.tenant = y.tenant and p.digest = y.profile_digest
left join tenure.tenants e on e.tenant = i.tenant
left join tenure.accounts b on b.tenant = i.tenant

-- name: profile
-- A profile of a type $2, by digest $3 or (null) the current one.
select
    p.digest as profile_digest,
    p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    p.operations, p.objects
from tenure.profiles p
where p.tenant = $1 and p.type = $2 and p.digest = coalesce($3, (
    select y.profile_digest from tenure.task_types y where y.tenant = $1 and y.name = $2))

-- name: list_profiles
select
    p.type, encode(p.digest, 'hex') as digest, p.registered_at, p.content::text as content,
    y.profile_digest is not null as current
from tenure.profiles p
left join tenure.task_types y
    on y.tenant = p.tenant and y.name = p.type and y.profile_digest = p.digest
where p.tenant = $1 and ($2::text is null or p.type = $2)
order by p.registered_at desc, p.digest
limit 1000

-- name: list_executables
select
    x.name, x.version, encode(x.digest, 'hex') as digest,
    encode(x.inventory_digest, 'hex') as inventory_digest, x.state, x.registered_at, x.seen_at,
    (
        select count(*) from tenure.incarnations n
        where n.tenant = x.tenant and n.state <> 'gone' and n.executable_digest = x.digest
    ) as nodes
from tenure.executables x
where x.tenant = $1 and ($2::bytea is null or x.digest = $2)
order by x.seen_at desc, x.digest
limit 1000

-- name: set_executable
select tenure.set_executable($1, $2, $3, $4) as nodes

-- name: push_profiles
select tenure.push_profiles($1::tenure.task_type_upsert[], $2, $3, $4, $5, $6) as confirmed

-- name: judged_nodes
-- Every node of a tenant that has not ended.
select
    n.incarnation, n.tenant as node_tenant, n.node_id, n.state as node_state,
    n.version as node_version, n.sequence as node_sequence, n.slots,
    n.cpu_millis as node_cpu_millis, n.memory_bytes as node_memory_bytes, n.slots_used,
    n.cpu_used, n.memory_used, n.task_types, n.last_seen_at, n.facts::text as node_facts,
    n.profile_digests, n.type_effects, n.executable_digest, n.executable_withdrawn,
    n.under_review, n.type_concurrency,
    case when n.type_concurrency is not null then tenure.running_types(n.incarnation)::text end
        as running_types
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
