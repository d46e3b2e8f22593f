-- What decisions are made from: one set-based statement a batch, without locks, one row an item in
-- the order of the arguments. The commit checks again whatever was read here. The epoch is a subquery of
-- its own, so that it is looked up once a statement and not once a row: it reads the control file.

-- name: attempts
-- $1 command ids, $2 task ids, $3 attempt ids (null: the task's current one), $4 digests of contents
-- (null: none presented), $5 whether the input is wanted.
select
    (select tenure.confirmed_epoch()) as epoch, clock_timestamp() as clock,
    c.command_id, c.tenant as command_tenant, c.fingerprint, c.reply, c.decided_at as command_at,
    t.task_id, t.tenant, t.type, t.state, t.version, t.sequence, t.generation,
    t.current_attempt_id, t.failures, t.losses, t.not_before, t.deadline, t.effects,
    t.max_attempts, t.cpu_millis, t.memory_bytes, t.cancel_requested_at,
    t.cancel_delivered_at, t.rejected_by, t.decided_at, t.concurrency_key, t.traceparent,
    a.attempt_id, a.task_id as attempt_task_id, a.tenant as attempt_tenant, a.ordinal,
    a.state as attempt_state, a.version as attempt_version, a.sequence as attempt_sequence,
    a.node_id, a.incarnation, a.lease_id, a.fencing_token, a.policy_version, a.lease_microseconds,
    a.expires_at, a.decided_at as attempt_decided_at,
    e.receipt_id, e.admitted, e.code, e.admitted_at, e.state_version,
    e.generation as receipt_generation, e.content_digest,
    p.input, case when i.with_input then a.scope::text end as scope, p.scope::text as narrowed,
    g.checkpoint::text as checkpoint
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bytea[], $5::boolean[]) with ordinality
    as i (command_id, task_id, attempt_id, content_digest, with_input, ord)
left join tenure.commands c on c.command_id = i.command_id
left join tenure.tasks t on t.task_id = i.task_id
left join tenure.attempts a on a.attempt_id = coalesce(i.attempt_id, t.current_attempt_id)
left join tenure.receipts e on e.attempt_id = a.attempt_id and e.content_digest = i.content_digest
left join tenure.task_inputs p on p.task_id = t.task_id and i.with_input
left join tenure.task_progress g on g.task_id = t.task_id and i.with_input
order by i.ord;

-- name: frozen_profiles
-- The profiles of tasks $1.
select
    t.task_id, p.digest as profile_digest,
    p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    p.operations, p.objects
from tenure.tasks t
join tenure.profiles p on p.tenant = t.tenant and p.digest = t.profile_digest
where t.task_id = any ($1::uuid[]);

-- name: submissions
-- $1 command ids, $2 tenants, $3 types.
select
    (select tenure.confirmed_epoch()) as epoch, clock_timestamp() as clock,
    c.command_id, c.tenant as command_tenant, c.fingerprint, c.reply, c.decided_at as command_at,
    y.name, y.profile_digest, p.effects, p.max_attempts, p.cpu_millis, p.memory_bytes,
    q.task_id as enqueued_task_id
from unnest($1::uuid[], $2::text[], $3::text[]) with ordinality as i (command_id, tenant, type, ord)
left join tenure.commands c on c.command_id = i.command_id
left join tenure.task_types y on y.tenant = i.tenant and y.name = i.type
left join tenure.profiles p on p.tenant = y.tenant and p.digest = y.profile_digest
left join tenure.intake q on q.command_id = i.command_id and q.state = 'waiting'
order by i.ord;

-- name: intake
-- $1 rows of the intake, $2 ids of their submissions (null: what the row asks for is none), $3 tenants,
-- $4 types.
select
    (select tenure.confirmed_epoch()) as epoch, clock_timestamp() as clock,
    c.command_id, c.tenant as command_tenant, c.fingerprint, c.reply, c.decided_at as command_at,
    y.name, y.profile_digest, p.effects, p.max_attempts, p.cpu_millis, p.memory_bytes,
    q.state as intake_state
from unnest($1::bigint[], $2::uuid[], $3::text[], $4::text[]) with ordinality
    as i (intake_id, command_id, tenant, type, ord)
left join tenure.intake q on q.intake_id = i.intake_id
left join tenure.commands c on c.command_id = i.command_id
left join tenure.task_types y on y.tenant = i.tenant and y.name = i.type
left join tenure.profiles p on p.tenant = y.tenant and p.digest = y.profile_digest
order by i.ord;

-- name: allocations
-- $1 task ids, $2 incarnations.
select
    (select tenure.confirmed_epoch()) as epoch, clock_timestamp() as clock,
    t.task_id, t.tenant, t.type, t.state, t.version, t.sequence, t.generation,
    t.current_attempt_id, t.failures, t.losses, t.not_before, t.deadline, t.effects,
    t.max_attempts, t.cpu_millis, t.memory_bytes, t.cancel_requested_at,
    t.cancel_delivered_at, t.rejected_by, t.decided_at, t.concurrency_key, t.traceparent,
    n.incarnation, n.tenant as node_tenant, n.node_id, n.state as node_state,
    n.version as node_version, n.sequence as node_sequence, n.slots,
    n.cpu_millis as node_cpu_millis, n.memory_bytes as node_memory_bytes, n.slots_used,
    n.cpu_used, n.memory_used, n.task_types, n.last_seen_at, n.facts::text as node_facts,
    n.profile_digests, n.type_effects, n.executable_digest, n.executable_withdrawn,
    n.under_review, n.type_concurrency,
    case when n.type_concurrency is not null then tenure.running_types(n.incarnation)::text end
        as running_types,
    t.profile_digest, p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    p.operations, p.objects,
    e.tenant as fact_tenant, e.version as tenant_version, e.state as tenant_state, e.weight,
    e.node_pools, e.locations as tenant_locations, e.networks as tenant_networks, e.budget_minor,
    e.budget_unlimited, b.held_minor, b.spent_minor, e.pauses::text as pauses,
    e.limits::text as limits
from unnest($1::uuid[], $2::uuid[]) with ordinality as i (task_id, incarnation, ord)
left join tenure.tasks t on t.task_id = i.task_id
left join tenure.incarnations n on n.incarnation = i.incarnation
left join tenure.profiles p on p.tenant = t.tenant and p.digest = t.profile_digest
left join tenure.tenants e on e.tenant = t.tenant
left join tenure.accounts b on b.tenant = t.tenant
order by i.ord;

-- name: allocated
-- Of the attempts $1 those that are there.
select
    a.attempt_id, a.task_id as attempt_task_id, a.tenant as attempt_tenant, a.ordinal,
    a.state as attempt_state, a.version as attempt_version, a.sequence as attempt_sequence,
    a.node_id, a.incarnation, a.lease_id, a.fencing_token, a.policy_version, a.lease_microseconds,
    a.expires_at, a.decided_at as attempt_decided_at
from tenure.attempts a
where a.attempt_id = any($1::uuid[]);

-- name: fleets
-- $1 tenants: their active incarnations, by id.
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
where n.tenant = any($1::text[]) and n.state = 'active'
order by n.incarnation;

-- name: nodes
-- $1 command ids, $2 incarnations (null: the node's current one), $3 tenants, $4 node ids.
select
    (select tenure.confirmed_epoch()) as epoch, clock_timestamp() as clock,
    c.command_id, c.tenant as command_tenant, c.fingerprint, c.reply, c.decided_at as command_at,
    n.incarnation, n.tenant as node_tenant, n.node_id, n.state as node_state,
    n.version as node_version, n.sequence as node_sequence, n.slots,
    n.cpu_millis as node_cpu_millis, n.memory_bytes as node_memory_bytes, n.slots_used,
    n.cpu_used, n.memory_used, n.task_types, n.last_seen_at, n.facts::text as node_facts,
    n.profile_digests, n.type_effects, n.executable_digest, n.executable_withdrawn,
    n.under_review, n.type_concurrency,
    case when n.type_concurrency is not null then tenure.running_types(n.incarnation)::text end
        as running_types,
    o.node_id is not null as node_known, o.quarantined_at is not null as node_quarantined,
    o.incarnation as node_incarnation
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) with ordinality
    as i (command_id, incarnation, tenant, node_id, ord)
left join tenure.commands c on c.command_id = i.command_id
left join tenure.nodes o on o.tenant = i.tenant and o.node_id = i.node_id
left join tenure.incarnations n on n.incarnation = coalesce(i.incarnation, o.incarnation)
order by i.ord;
