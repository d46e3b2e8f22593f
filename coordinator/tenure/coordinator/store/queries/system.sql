-- The log and the system as a whole, for operators and metrics.

-- name: outbox
-- How far publishing is behind, by shard. Rows are counted up to $1 a shard.
select
    s.shard, s.position, s.relay_id::text as owner,
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

-- name: figures
-- Gauges for a scrape, all tenants together; waiting tasks are counted up to $1.
select
    waiting.tasks as waiting,
    waiting.oldest_seconds as oldest_waiting_seconds,
    (
        select coalesce(json_object_agg(reason, number), '{}')::text
        from (
            select reason, count(*) as number from tenure.tasks where state = 'held'
            group by reason
        ) held_tasks
    ) as held,
    (
        select coalesce(json_object_agg(state, number), '{}')::text
        from (
            select state, count(*) as number from tenure.attempts where ended_at is null
            group by state
        ) open_attempts
    ) as open_attempts,
    (
        select coalesce(json_object_agg(state, number), '{}')::text
        from (
            select state, count(*) as number from tenure.incarnations where state <> 'gone'
            group by state
        ) live
    ) as nodes,
    (
        select count(*) from tenure.incarnations where state <> 'gone' and under_review
    ) as nodes_under_review
from (
    select
        count(*) as tasks,
        coalesce(extract(epoch from clock_timestamp() - min(since)), 0)::float8 as oldest_seconds
    from (
        select greatest(created_at, not_before) as since
        from tenure.tasks
        where state = 'open' and current_attempt_id is null
            and (not_before is null or not_before <= clock_timestamp())
        limit $1
    ) found
) waiting

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
