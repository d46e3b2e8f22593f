-- How long what has ended is kept, how far removal has come, and what it would remove now.

-- name: policy
-- The version in force.
select version, keep::text as keep, set_by, reason, set_at
from tenure.retention_policies order by version desc limit 1

-- name: progress
select kind, nullif(removed_to, '-infinity') as removed_to, removed_rows, removed_at,
    removed_position
from tenure.retention order by kind

-- name: overdue
-- Of each kind of which something is due and still there: for how many seconds it has been.
select kind, extract(epoch from before - oldest_at)::float8 as seconds from tenure.retention_due()

-- name: set_retention
select tenure.set_retention($1, $2::text::jsonb, $3, $4) as done

-- name: remove_old
select tenure.remove_old($1, $2) as rows

-- name: cut_log
select tenure.cut_log() as done

-- name: remove_old_log
select name, dropped from tenure.remove_old_log()

-- name: needed_from
select tenure.log_needed_from() as position

-- name: partitions
select name, first_position, end_position, oldest_at, rows, bytes, old, before
from tenure.log_partitions()

-- name: plan_tasks
-- Rows that are too old, counted up to $1, before when they are, and about how many bytes they are with
-- what belongs to them.
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (
        select count(*) from (
            select from tenure.tasks t where t.ended_at < b.before and not exists (
                select from tenure.intake q where q.task_id = t.task_id and q.state = 'taken')
            limit $1
        ) found
    ) as rows
    from (select tenure.too_old_before('tasks') as before) b
) p
cross join (
    select pg_stat_get_live_tuples('tenure.tasks'::regclass) as live,
        pg_total_relation_size('tenure.tasks') + pg_total_relation_size('tenure.task_inputs')
            + pg_total_relation_size('tenure.attempts')
            + pg_total_relation_size('tenure.receipts') as bytes
) s

-- name: plan_commands
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.commands c where c.decided_at < b.before limit $1) found) as rows
    from (select tenure.too_old_before('commands') as before) b
) p
cross join (select pg_stat_get_live_tuples('tenure.commands'::regclass) as live,
    pg_total_relation_size('tenure.commands') as bytes) s

-- name: plan_intake
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.intake q where q.decided_at < b.before limit $1) found) as rows
    from (select tenure.too_old_before('intake') as before) b
) p
cross join (select pg_stat_get_live_tuples('tenure.intake'::regclass) as live,
    pg_total_relation_size('tenure.intake') as bytes) s

-- name: plan_renewals
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.renewals w where w.at < b.before limit $1) found) as rows
    from (select tenure.too_old_before('renewals') as before) b
) p
cross join (select pg_stat_get_live_tuples('tenure.renewals'::regclass) as live,
    pg_total_relation_size('tenure.renewals') as bytes) s

-- name: plan_reviews
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.health_reviews h where h.closed_at < b.before limit $1) found) as rows
    from (select tenure.too_old_before('reviews') as before) b
) p
cross join (select pg_stat_get_live_tuples('tenure.health_reviews'::regclass) as live,
    pg_total_relation_size('tenure.health_reviews') as bytes) s

-- name: plan_nodes
-- Without the names of nodes that would go with their last start.
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.incarnations n
        where n.state = 'gone'
            and n.ended_at < least(b.before, b.unpublished - interval '10 minutes')
            and not exists (select from tenure.attempts a
                where a.incarnation = n.incarnation and a.ended_at is null)
        limit $1) found) as rows
    from (select tenure.too_old_before('nodes') as before,
        tenure.oldest_unpublished_at() as unpublished) b
) p
cross join (select pg_stat_get_live_tuples('tenure.incarnations'::regclass) as live,
    pg_total_relation_size('tenure.incarnations') as bytes) s

-- name: plan_dead_letters
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.dead_letters d where greatest(d.last_at, d.settled_at) < b.before
        limit $1) found) as rows
    from (select tenure.too_old_before('dead_letters') as before) b
) p
cross join (select pg_stat_get_live_tuples('tenure.dead_letters'::regclass) as live,
    pg_total_relation_size('tenure.dead_letters') as bytes) s

-- name: plan_changes
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        (select from tenure.fact_changes f where f.at < b.before limit $1)
        union all
        (select from tenure.parked_requests q where q.carried_out_at < b.before limit $1)
        union all
        (select from tenure.replays r where r.ended_at < b.before limit $1)) found) as rows
    from (select tenure.too_old_before('changes') as before) b
) p
cross join (
    select sum(pg_stat_get_live_tuples(c.name)) as live, sum(pg_total_relation_size(c.name)) as bytes
    from unnest(array['tenure.fact_changes', 'tenure.parked_requests', 'tenure.replays']::regclass[])
        as c (name)
) s

-- name: plan_profiles
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.unreferenced u where u.kind = 'profiles' and u.since < b.before
        limit $1) found) as rows
    from (select tenure.too_old_before('profiles') as before) b
) p
cross join (select pg_stat_get_live_tuples('tenure.profiles'::regclass) as live,
    pg_total_relation_size('tenure.profiles') as bytes) s

-- name: plan_executables
select p.before, p.rows, (p.rows * s.bytes / greatest(s.live, p.rows, 1))::bigint as bytes
from (
    select b.before, (select count(*) from (
        select from tenure.unreferenced u where u.kind = 'executables' and u.since < b.before
        limit $1) found) as rows
    from (select tenure.too_old_before('executables') as before) b
) p
cross join (select pg_stat_get_live_tuples('tenure.executables'::regclass) as live,
    pg_total_relation_size('tenure.executables') as bytes) s
