-- What `tenure doctor` looks at. Works before the first migration, and for any login.

-- name: session
-- The login, its limits, and room for more connections.
select
    current_user as user_name,
    r.rolsuper as superuser,
    r.rolconnlimit as connection_limit,
    coalesce(
        (select pg_has_role(n.nspowner, 'usage') from pg_namespace n where n.nspname = 'tenure'),
        false
    ) as owner,
    current_setting('server_version') as server_version,
    current_setting('max_connections')::integer as max_connections,
    (
        select sum(setting::integer)::integer from pg_settings
        where name in ('superuser_reserved_connections', 'reserved_connections')
    ) as reserved_connections,
    (
        select count(*)::integer from pg_stat_activity where backend_type = 'client backend'
    ) as open_connections,
    (
        select json_object_agg(name, setting)::text from pg_settings
        where name in (
            'lock_timeout', 'statement_timeout', 'transaction_timeout',
            'idle_in_transaction_session_timeout'
        )
    ) as limits
from pg_roles r where r.rolname = current_user

-- name: lacking
-- Of the functions named in $1 and the tables named in $2 the ones that are there and that this login
-- may not execute or read.
select p.proname::text as name
from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'tenure' and p.proname = any($1::text[])
    and not has_function_privilege(p.oid, 'execute')
union all
select c.relname::text
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'tenure' and c.relname = any($2::text[])
    and not has_table_privilege(c.oid, 'select')
order by name

-- name: writable
-- Tables that this login may change without the functions.
select c.relname::text as name
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'tenure' and c.relkind in ('r', 'p')
    and has_table_privilege(c.oid, 'insert, update, delete, truncate')
order by name

-- name: clock
select clock_timestamp() as now

-- name: left_undone
-- What waits for a person. For coordinators, and only where the schema is this release's.
select
    (select coalesce(sum(parked), 0)::bigint from tenure.relay_shards) as parked,
    (
        select coalesce(json_object_agg(pause_code, number), '{}')::text
        from (
            select pause_code, count(*) as number from tenure.replays
            where state = 'paused' group by pause_code
        ) paused
    ) as paused_replays,
    (
        select coalesce(
            json_object_agg(kind, extract(epoch from before - oldest_at)::float8), '{}')::text
        from tenure.retention_due()
    ) as overdue_seconds,
    (
        -- Looks at so many waiting tasks at most. Nodes that take nothing at the moment count too.
        select coalesce(json_object_agg(type, number), '{}')::text
        from (
            select w.type, sum(w.number)::bigint as number
            from (
                select tenant, type, count(*) as number
                from (
                    select t.tenant, t.type from tenure.tasks t
                    where t.state = 'open' and t.current_attempt_id is null and t.ripe
                    limit 100000
                ) waiting
                group by tenant, type
            ) w
            where not exists (
                select from tenure.incarnations n
                where n.tenant = w.tenant and n.state <> 'gone' and w.type = any (n.task_types)
            )
            group by w.type
        ) not_run
    ) as waiting_for_a_type
