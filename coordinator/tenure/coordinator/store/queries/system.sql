-- The log and the system as a whole, for operators and metrics.

-- name: outbox
-- How far publishing is behind, by shard. Rows are counted up to $1 a shard.
select
    s.shard, s.position, s.relay_id::text as owner, s.parked,
    nullif(s.claimed_until, '-infinity') as claimed_until,
    (
        select count(*) from (
            select from tenure.log l
            where l.shard = s.shard and l.position > s.position
            limit $1
        ) waiting
    ) as lag_rows,
    (
        select extract(epoch from clock_timestamp() - l.recorded_at)::float8
        from tenure.log l
        where l.shard = s.shard and l.position > s.position
        order by l.position
        limit 1
    ) as oldest_seconds,
    coalesce((select l.position from tenure.log l order by l.position desc limit 1), 0) as head
from tenure.relay_shards s
order by s.shard

-- name: waiting_for_standby
-- Commits that have waited for a synchronous standby for longer than $1.
select count(*) from pg_stat_activity
where datname = current_database() and wait_event = 'SyncRep'
    and query_start < clock_timestamp() - $1::interval

-- name: probe_standby
-- Writes something that nobody reads, so that its commit waits for the standby.
select pg_logical_emit_message(true, 'tenure', '')

-- name: log_size
-- Of the log on disk, and how many rows (up to $1) no partition was made for in time.
select
    (
        select coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint
        from pg_inherits i where i.inhparent = 'tenure.log'::regclass
    ) as bytes,
    (select count(*) from (select from tenure.log_default limit $1) found) as misplaced

-- name: figures
-- Gauges for a scrape, all tenants together; waiting tasks are counted up to $1. Reads what goes on,
-- never what has ended.
with waiting as (
    select type, greatest(created_at, not_before) as since
    from tenure.tasks
    where state = 'open' and current_attempt_id is null and ripe
    limit $1
),
held as (
    select type, reason from tenure.tasks where state = 'held'
),
under_way as (
    select t.type, a.state
    from tenure.attempts a
    join tenure.tasks t on t.task_id = a.task_id
    where a.ended_at is null
),
live as (
    select state, under_review, slots, slots_used from tenure.incarnations where state <> 'gone'
)
select
    (select count(*) from waiting) as waiting,
    (
        select coalesce(extract(epoch from clock_timestamp() - min(since)), 0)::float8 from waiting
    ) as oldest_waiting_seconds,
    (
        select count(*) from (
            select from tenure.tasks
            where state = 'open' and current_attempt_id is null and not ripe
            limit $1
        ) later
    ) as not_before,
    (
        select coalesce(json_object_agg(reason, number), '{}')::text
        from (select reason, count(*) as number from held group by reason) held_tasks
    ) as held,
    (
        select coalesce(json_object_agg(state, number), '{}')::text
        from (select state, count(*) as number from under_way group by state) open_attempts
    ) as open_attempts,
    (
        select coalesce(json_agg(json_build_array(type, phase, number) order by number desc), '[]')::text
        from (
            select type, phase, count(*) as number
            from (
                select type, 'waiting' as phase from waiting
                union all select type, 'held' from held
                union all select type, 'under_way' from under_way
            ) going_on
            group by type, phase
        ) by_type
    ) as tasks_by_type,
    (
        select coalesce(json_object_agg(state, number), '{}')::text
        from (select state, count(*) as number from live group by state) nodes
    ) as nodes,
    (select count(*) from live where under_review) as nodes_under_review,
    (
        select coalesce(sum(slots), 0) from live where state = 'active'
    ) as slots,
    (select coalesce(sum(slots_used), 0) from live) as slots_used,
    (
        select count(*) from pg_stat_activity
        where datname = current_database() and wait_event = 'SyncRep'
    ) as commits_waiting_for_standby,
    (
        select count(*) from (
            select from tenure.dead_letters where state = 'waiting' limit $1
        ) letters
    ) as dead_letters,
    (
        select coalesce(json_object_agg(scope, number), '{}')::text
        from (
            select scope, count(*) as number from tenure.pauses
            where coalesce(until > clock_timestamp(), true) group by scope
        ) paused
    ) as pauses,
    -- Those of tenants and types: of keys there may be many.
    (
        select coalesce(json_agg(json_build_array(l.tenant, l.name, l.max_running,
            case l.scope when 'tenant' then t.running else y.running end)
            order by l.tenant, l.name), '[]')::text
        from tenure.limits l
        cross join lateral (
            select count(*) as running from tenure.reservations r
            where r.tenant = l.tenant and l.scope = 'tenant') t
        cross join lateral (
            select count(*) as running from tenure.reservations r
            where r.tenant = l.tenant and r.type = l.name and l.scope = 'type') y
        where l.scope in ('tenant', 'type') and l.max_running is not null
    ) as limits,
    (
        select coalesce(json_object_agg(scope, number), '{}')::text
        from (select scope, count(*) as number from tenure.limits group by scope) stated
    ) as limits_by_scope,
    (
        select coalesce(json_object_agg(state, number), '{}')::text
        from (
            select state, count(*) as number from tenure.replays
            where state in ('running', 'paused') group by state
        ) going_on
    ) as replays

-- name: intake
-- Gauges for a scrape, all tenants together; rows of a state are counted up to $1.
select
    waiting.number as waiting, waiting.oldest_seconds,
    (
        select count(*) from (
            select from tenure.intake where state = 'refused' limit $1
        ) found
    ) as refused
from (
    select
        count(*) as number,
        coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::float8
            as oldest_seconds
    from (
        select created_at from tenure.intake where state = 'waiting'
        limit $1
    ) found
) waiting
