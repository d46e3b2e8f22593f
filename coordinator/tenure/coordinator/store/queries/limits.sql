-- What counts under limits, and what operators say about them.

-- name: usage
-- For tenants $1: what runs by type and key, and the buckets of starts: those of each key for the keys
-- $2, and of the others the one that has a token first.
select
    e.tenant,
    (
        select coalesce(json_agg(json_build_array(g.type, g.concurrency_key, g.tasks)), '[]')
        from (
            select r.type, r.concurrency_key, count(*) as tasks
            from tenure.reservations r where r.tenant = e.tenant group by 1, 2
        ) g
    )::text as running,
    (
        select coalesce(json_agg(json_build_array(b.scope, b.name, b.key,
            (extract(epoch from b.full_at) * 1000000)::bigint)), '[]')
        from (
            select b.scope, b.name, b.key, b.full_at from tenure.limit_buckets b
            where b.tenant = e.tenant and b.scope in ('tenant', 'type', 'key')
            union all
            select f.scope, f.name, f.key, f.full_at
            from tenure.limits l
            cross join lateral (
                (
                    select b.* from tenure.limit_buckets b
                    where b.tenant = l.tenant and b.scope = l.scope and b.name = l.name
                        and b.key = any ($2::text[])
                )
                union
                (
                    select b.* from tenure.limit_buckets b
                    where b.tenant = l.tenant and b.scope = l.scope and b.name = l.name
                        and b.full_at > (select clock_timestamp())
                            + (l.burst - 1) * l.interval_microseconds * interval '1 microsecond'
                    order by b.full_at
                    limit 1
                )
            ) f
            where l.tenant = e.tenant and l.scope = 'each_key' and l.starts is not null
        ) b
    )::text as buckets
from unnest($1::text[]) as e (tenant)

-- name: limits
-- Stated ones of one tenant, or (null) of all. What runs: for each key that of which most runs.
select
    l.tenant, l.scope, l.name, l.max_running, l.starts, l.period_seconds, l.burst, l.set_by, l.set_at,
    case l.scope
        when 'tenant' then (
            select count(*) from tenure.reservations r where r.tenant = l.tenant)
        when 'type' then (
            select count(*) from tenure.reservations r where r.tenant = l.tenant and r.type = l.name)
        when 'key' then (
            select count(*) from tenure.reservations r
            where r.tenant = l.tenant and r.concurrency_key = l.name)
        else (
            select coalesce(max(g.tasks), 0) from (
                select count(*) as tasks from tenure.reservations r
                where r.tenant = l.tenant and r.concurrency_key is not null
                    and l.name in (r.type, '*')
                group by r.concurrency_key
            ) g
        )
    end as running,
    (
        select min(b.full_at) - (l.burst - 1) * l.interval_microseconds * interval '1 microsecond'
        from tenure.limit_buckets b
        where b.tenant = l.tenant and b.scope = l.scope and b.name = l.name
            and b.full_at > (select clock_timestamp())
                + (l.burst - 1) * l.interval_microseconds * interval '1 microsecond'
    ) as next_start
from tenure.limits l
where l.tenant = $1 or $1::text is null
order by l.tenant, l.scope, l.name

-- name: set_limit
select tenure.set_limit($1, $2, $3, $4, $5, $6, $7, $8, $9) as stated

-- name: remove_limit
select tenure.remove_limit($1, $2, $3, $4) as removed
