-- What the loops look for. They decide nothing: each row found becomes a command for the lanes. Epoch
-- and clock are asked for in queries of their own: once a statement and not once a row, and what may
-- differ from row to row is of no use to an index.

-- name: free_nodes
-- Incarnations that may take new work: active, heard of within $1, with a free slot. With each what
-- its tenant may use, and with the first what belongs to all of them: slots in use by tenant, the
-- kinds of tasks that wait (tenant and profile), found by jumping from one to the next in the index,
-- and how many tasks have just become ripe ($2 at most).
select
    clock_timestamp() as clock,
    n.incarnation, n.tenant as node_tenant, n.node_id, n.state as node_state,
    n.version as node_version, n.sequence as node_sequence, n.slots,
    n.cpu_millis as node_cpu_millis, n.memory_bytes as node_memory_bytes, n.slots_used,
    n.cpu_used, n.memory_used, n.task_types, n.last_seen_at, n.facts::text as node_facts,
    n.profile_digests, n.type_effects, n.executable_digest, n.executable_withdrawn,
    n.under_review, n.type_concurrency,
    case when n.type_concurrency is not null then tenure.running_types(n.incarnation)::text end
        as running_types,
    e.tenant as fact_tenant, e.version as tenant_version, e.state as tenant_state, e.weight,
    e.node_pools, e.locations as tenant_locations, e.networks as tenant_networks, e.budget_minor,
    e.budget_unlimited, b.held_minor, b.spent_minor, e.pauses::text as pauses,
    e.limits::text as limits,
    case when row_number() over (order by n.incarnation) = 1 then (
        select json_build_object(
            'ripened', (select tenure.ripen($2)),
            'used', (
                select coalesce(json_object_agg(u.tenant, u.slots), '{}')
                from (
                    select i.tenant, sum(i.slots_used) as slots from tenure.incarnations i
                    where i.state <> 'gone' group by i.tenant
                ) u
            ),
            'kinds', (
                with recursive kinds as (
                    (
                        select tenant, profile_digest from tenure.tasks
                        where state = 'open' and current_attempt_id is null and ripe
                        order by tenant, profile_digest limit 1
                    )
                    union all
                    select next.* from kinds k
                    cross join lateral (
                        select w.tenant, w.profile_digest from tenure.tasks w
                        where w.state = 'open' and w.current_attempt_id is null and w.ripe
                            and (w.tenant, w.profile_digest) > (k.tenant, k.profile_digest)
                        order by w.tenant, w.profile_digest limit 1
                    ) next
                )
                select coalesce(
                    json_agg(json_build_array(tenant, encode(profile_digest, 'hex'))), '[]')
                from kinds
            )
        )::text
    ) end as around
from tenure.incarnations n
left join tenure.tenants e on e.tenant = n.tenant
left join tenure.accounts b on b.tenant = n.tenant
where n.state = 'active' and not n.under_review and n.slots_used < n.slots
  and n.last_seen_at > (select clock_timestamp() - $1::interval)
order by n.incarnation;

-- name: profiles
-- Profiles by tenant $1 and digest $2.
select
    p.tenant, p.digest as profile_digest, p.type as profile_type, p.effects as profile_effects,
    p.max_attempts as profile_max_attempts, p.cpu_millis as profile_cpu_millis,
    p.memory_bytes as profile_memory_bytes, p.locations as profile_locations,
    p.networks as profile_networks, p.labels::text as profile_labels, p.match, p.cost_minor,
    p.operations, p.objects
from unnest($1::text[], $2::bytea[]) as k (tenant, digest)
join tenure.profiles p on p.tenant = k.tenant and p.digest = k.digest;

-- name: waiting_tasks
-- Tasks that may be given to a node now: for each tenant $1 and profile $2 those that need at most $3
-- thousandths of a core and $4 bytes (null: not limited), the first $5 of each in the order they are
-- served, without those whose concurrency key is one of $6 (an object for each kind: its members are
-- looked up, not read through; null: none), or has had its starts where $7 says that each key has a
-- number of them; with $8 and $9 those behind this place in the queue. Asked by kind, so that however
-- many nobody can take, no others wait for them.
select
    (select tenure.confirmed_epoch()) as epoch, clock_timestamp() as clock, k.page,
    t.task_id, t.tenant, t.type, t.state, t.version, t.sequence, t.generation,
    t.current_attempt_id, t.failures, t.losses, t.not_before, t.deadline, t.effects,
    t.max_attempts, t.cpu_millis, t.memory_bytes, t.cancel_requested_at,
    t.cancel_delivered_at, t.rejected_by, t.decided_at, t.concurrency_key, t.traceparent, t.profile_digest, t.queued_as_of
from unnest(
        $1::text[], $2::bytea[], $3::bigint[], $4::bigint[], $5::integer[], $6::jsonb[], $7::boolean[],
        $8::timestamptz[], $9::uuid[]) with ordinality
    as k (tenant, profile_digest, cpu_millis, memory_bytes, most, closed_keys, paces_keys, after_at,
        after_id, page)
cross join lateral (
    select * from tenure.tasks w
    where w.tenant = k.tenant and w.profile_digest = k.profile_digest
      and w.state = 'open' and w.current_attempt_id is null and w.ripe
      and (w.queued_as_of, w.task_id) > (k.after_at, k.after_id)
      and coalesce(w.cpu_millis <= k.cpu_millis, true)
      and coalesce(w.memory_bytes <= k.memory_bytes, true)
      and coalesce(w.not_before <= (select clock_timestamp()), true)
      and coalesce(w.deadline > (select clock_timestamp()), true)
      and (k.closed_keys is null or w.concurrency_key is null
          or not k.closed_keys ? w.concurrency_key)
      and (not k.paces_keys or w.concurrency_key is null or not exists (
          select from tenure.limits l
          join tenure.limit_buckets b on b.tenant = l.tenant and b.scope = l.scope
              and b.name = l.name and b.key = w.concurrency_key
          where l.tenant = w.tenant and l.scope = 'each_key' and l.name in (w.type, '*')
              and b.full_at - (l.burst - 1) * l.interval_microseconds * interval '1 microsecond'
                  > (select clock_timestamp())))
    order by w.queued_as_of, w.task_id
    limit k.most
) t;

-- name: lost_tasks
-- Tasks whose attempt's lease ran out, and waiting ones past their deadline. $1 how many.
(
    select a.tenant, a.task_id from tenure.attempts a
    where a.ended_at is null and a.expires_at <= (select clock_timestamp())
    limit $1
)
union
(
    select t.tenant, t.task_id from tenure.tasks t
    where t.deadline <= (select clock_timestamp()) and t.ended_at is null
      and t.current_attempt_id is null
    limit $1
);

-- name: attempts_to_revoke
-- Attempts that a node had not taken when its process ended, and all of quarantined nodes. $1 how many.
-- A start that was deleted has ended.
select
    a.tenant, a.task_id, a.attempt_id,
    case when n.state = 'quarantined' then 'the node is quarantined: ' || coalesce(
        (select o.quarantine_reason from tenure.nodes o
         where o.tenant = n.tenant and o.node_id = n.node_id), '') end as message
from tenure.attempts a
left join tenure.incarnations n on n.incarnation = a.incarnation
where a.ended_at is null
  and (n.state = 'quarantined' or a.state = 'submitted' and coalesce(n.state = 'gone', true))
limit $1;

-- name: rejected_tasks
-- Waiting tasks that some node has rejected, after $1. $2 how many.
select tenant, task_id from tenure.tasks
where state = 'open' and current_attempt_id is null and rejected_by <> '{}' and task_id > $1
order by task_id
limit $2;

-- name: unanswered_attempts
-- Assignments that nobody accepted within $1 of their last dispatch. $2 how many.
select a.attempt_id from tenure.attempts a
where a.ended_at is null and a.state = 'submitted'
  and a.dispatched_at < (select clock_timestamp() - $1::interval)
  and a.expires_at > (select clock_timestamp())
order by a.dispatched_at
limit $2;

-- name: silent_incarnations
-- Incarnations that hold no open attempt and were not heard of within $1. $2 how many.
select n.tenant, n.node_id, n.incarnation from tenure.incarnations n
where n.state <> 'gone' and n.last_seen_at < (select clock_timestamp() - $1::interval)
  and not exists (
      select 1 from tenure.attempts a where a.incarnation = n.incarnation and a.ended_at is null)
limit $2;

-- name: nodes_to_review
-- Incarnations not heard of within $1 that nobody has looked at since they were heard of last, and
-- those under review that were heard of again. $2 how many.
select n.tenant, n.node_id, n.incarnation, n.under_review
from tenure.incarnations n
where n.state <> 'gone' and case
    when n.under_review then n.last_seen_at > (select clock_timestamp() - $1::interval)
    else n.last_seen_at <= (select clock_timestamp() - $1::interval)
        and n.last_seen_at is distinct from n.reviewed_seen_at
    end
limit $2;

-- name: waiting_intake
-- Rows of the intake to take in now, in turn from each tenant: $1 how many, $2 bytes of input
-- altogether, though one row at least.
with recursive tenants as (
    (
        select tenant from tenure.intake where state = 'waiting' order by tenant limit 1
    )
    union all
    select (
        select i.tenant from tenure.intake i
        where i.state = 'waiting' and i.tenant > t.tenant
        order by i.tenant limit 1
    )
    from tenants t where t.tenant is not null
)
select
    intake_id, tenant, command_id, task_id, type, input::text as input, priority, not_before,
    deadline, cpu_millis, memory_bytes, concurrency_key, scope::text as scope, traceparent,
    enqueued_by
from (
    select
        w.*,
        row_number() over turns as number,
        sum(octet_length(w.input::text)) over turns as bytes
    from (
        select q.*, row_number() over (partition by q.tenant order by q.intake_id) as turn
        from tenants t
        cross join lateral (
            select * from tenure.intake q
            where q.state = 'waiting' and q.tenant = t.tenant
            order by q.intake_id
            limit $1
        ) q
        order by turn, q.intake_id
        limit $1
    ) w
    window turns as (order by w.turn, w.intake_id)
) in_turn
where number = 1 or bytes <= $2
order by number;

-- name: hint
-- To whoever listens on channel $1. Nothing is lost with it, so its commit waits for no disk.
select set_config('synchronous_commit', 'off', true), pg_notify($1, '');
