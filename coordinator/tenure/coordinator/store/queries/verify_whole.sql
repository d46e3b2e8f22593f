-- Invariants of small tables, each looked at whole; see verify_tasks.sql.

-- name: authority-has-its-epoch
select 'authority' as subject,
    format('epoch %s, highest seen %s; the last one opened is %s', a.epoch, a.highest_epoch_seen,
        coalesce(e.epoch::text, 'none')) as detail
from (values (true)) one (row)
left join tenure.authority a on true
left join lateral (select max(epoch) as epoch from tenure.authority_epochs) e on true
where a.epoch is distinct from e.epoch or a.highest_epoch_seen < a.epoch

-- name: policies-are-counted
select 'policy version ' || p.version as subject, 'expected version ' || p.place as detail
from (select version, row_number() over (order by version) as place from tenure.policies) p
where p.version <> p.place

-- name: accounts-equal-reservations
select 'tenant ' || coalesce(c.tenant, e.tenant) as subject,
    format('holds %s minor units, reserved are %s', c.held_minor, e.cost_minor) as detail
from tenure.accounts c
full join (
    select tenant, sum(cost_minor) as cost_minor from tenure.reservations
    where cost_minor > 0 group by tenant
) e on e.tenant = c.tenant
where coalesce(c.held_minor, 0) <> coalesce(e.cost_minor, 0)

-- name: accounts-equal-deliveries
-- What a tenant has spent is what its delivered tasks cost. Once tasks were removed it is more.
select 'tenant ' || coalesce(c.tenant, d.tenant) as subject,
    format('has spent %s minor units, its delivered tasks cost %s%s', c.spent_minor, d.cost_minor,
        case when r.some then ', without those that were removed' end) as detail
from tenure.accounts c
full join (
    select t.tenant, sum(p.cost_minor) as cost_minor
    from tenure.tasks t
    join tenure.profiles p on p.tenant = t.tenant and p.digest = t.profile_digest
    where t.state = 'delivered' and p.cost_minor > 0
    group by t.tenant
) d on d.tenant = c.tenant
cross join (select removed_rows > 0 as some from tenure.retention where kind = 'tasks') r
where coalesce(c.spent_minor, 0) < coalesce(d.cost_minor, 0)
    or not r.some and coalesce(c.spent_minor, 0) > coalesce(d.cost_minor, 0)

-- name: reservations-are-of-open-attempts
select 'reservation of attempt ' || e.attempt_id as subject,
    case when a.attempt_id is null then 'there is no such attempt'
        else 'the attempt is ' || a.state end as detail
from tenure.reservations e
left join tenure.attempts a on a.attempt_id = e.attempt_id
where a.attempt_id is null or a.ended_at is not null

-- name: reservations-count-with-their-task
select 'reservation of attempt ' || e.attempt_id as subject,
    format('counts as type %s, key %s; its task is of type %s, key %s', e.type,
        coalesce(e.concurrency_key, 'none'), t.type, coalesce(t.concurrency_key, 'none')) as detail
from tenure.reservations e
join tenure.attempts a on a.attempt_id = e.attempt_id
join tenure.tasks t on t.task_id = a.task_id
where (e.type, e.concurrency_key) is distinct from (t.type, t.concurrency_key)

-- name: limits-are-kept
-- More may run than a limit lets only where nothing has begun since the limit was stated.
select concat_ws(' ', 'limit', l.scope, l.name, 'of tenant', l.tenant, nullif(r.key, '')) as subject,
    format('%s run of at most %s; the last one began %s', r.running, l.max_running, r.last) as detail
from tenure.limits l
cross join lateral (
    select k.key, count(*) as running, max(e.created_at) as last
    from tenure.reservations e
    cross join lateral (
        select case l.scope when 'each_key' then e.concurrency_key else '' end as key) k
    where e.tenant = l.tenant and case l.scope
        when 'tenant' then true
        when 'type' then e.type = l.name
        when 'key' then e.concurrency_key = l.name
        else e.concurrency_key is not null and l.name in (e.type, '*') end
    group by k.key
) r
where r.running > l.max_running and r.last > l.set_at

-- name: tenants-carry-their-flow
-- Pauses and limits as decisions read them are those that are stated.
select 'tenant ' || e.tenant as subject,
    format('carries pauses %s, limits %s; stated are %s, %s', coalesce(e.pauses::text, 'none'),
        coalesce(e.limits::text, 'none'), coalesce(s.pauses::text, 'none'),
        coalesce(s.limits::text, 'none')) as detail
from tenure.tenants e
cross join lateral (
    select tenure.pauses_of(e.tenant) as pauses, tenure.limits_of(e.tenant) as limits) s
where (e.pauses::text, e.limits::text) is distinct from (s.pauses::text, s.limits::text)

-- name: nodes-point-to-live-incarnations
select 'node ' || o.node_id as subject,
    format('its current incarnation %s %s', o.incarnation,
        coalesce('is ' || n.state || ' of node ' || n.node_id, 'does not exist')) as detail
from tenure.nodes o
left join tenure.incarnations n on n.incarnation = o.incarnation and n.tenant = o.tenant
where o.incarnation is not null
  and (n.incarnation is null or n.state = 'gone' or n.node_id <> o.node_id)

-- name: cursors-are-within-the-log
select 'shard ' || k.shard as subject,
    format('%s; the log ends at %s', coalesce('its cursor is at ' || s.position, 'it has no cursor'),
        l.position) as detail
from generate_series(0, 63) k (shard)
left join tenure.relay_shards s on s.shard = k.shard
cross join (select coalesce(max(position), 0) as position from tenure.log) l
where s.position is null or s.position > l.position

-- name: parked-rows-are-passed
-- What is parked was passed by its shard's cursor, and says what the log says, where that is still there.
select 'position ' || p.position as subject,
    case when p.position > s.position then 'its shard''s cursor is at ' || s.position
        else 'the log has other bytes, or another event' end as detail
from tenure.parked p
join tenure.relay_shards s on s.shard = p.shard
left join tenure.log l on l.position = p.position
where p.position > s.position or l.shard <> p.shard or l.event_id <> p.event_id or l.body <> p.body

-- name: parked-rows-are-counted
select 'shard ' || s.shard as subject, format('%s are counted, %s are there', s.parked, n.rows) as detail
from tenure.relay_shards s
cross join lateral (select count(*) as rows from tenure.parked p where p.shard = s.shard) n
where s.parked <> n.rows

-- name: held-streams-go-on
-- Of the rows that hold a stream the first is due some time, so that it does not wait for ever.
select 'position ' || p.position as subject,
    case when p.due_at is null then 'it waits for nothing that is there'
        else 'it is due, and an earlier row of its stream holds it' end as detail
from tenure.parked p
where p.holds and (p.due_at is null) = not exists (
    select from tenure.parked earlier
    where earlier.stream_type = p.stream_type and earlier.stream_id = p.stream_id
        and earlier.holds and earlier.position < p.position)

-- name: replays-find-their-rows
-- What a replay that has not ended comes to is in the log, and its end is not beyond the log's.
select 'replay ' || r.replay_id as subject,
    format('goes on at %s, up to %s; the log has %s to %s', r.position + 1, r.to_position,
        t.removed_position + 1, e.position) as detail
from tenure.replays r
cross join (select removed_position from tenure.retention where kind = 'log') t
cross join (
    select coalesce((select position from tenure.log order by position desc limit 1), 0) as position
) e
where (r.state in ('running', 'paused') and r.position < t.removed_position)
  or r.to_position > e.position

-- name: replays-say-who-said-what
-- Its history begins with who began it, and its last word is its state.
select 'replay ' || r.replay_id as subject,
    format('is %s, begun by %s; its history says %s', r.state, r.created_by,
        coalesce(h.said, 'nothing')) as detail
from tenure.replays r
left join lateral (
    select string_agg(c.change || ' by ' || c.actor, ', ' order by c.at) as said,
        (array_agg(c.change || ' ' || c.actor order by c.at, c.change <> 'started'))[1] as first,
        (array_agg(c.change order by c.at desc, c.change = 'started'))[1] as last
    from tenure.replay_changes c where c.replay_id = r.replay_id
) h on true
where h.first is distinct from 'started ' || r.created_by
  or h.last is null
  or r.state <> case when h.last in ('started', 'resumed') then 'running' else h.last end

-- name: guards-are-in-place
-- Triggers that are switched off, and partitions of the log that nobody has to lock for.
select t.tgrelid::regclass || ' ' || t.tgname as subject, 'the trigger is switched off' as detail
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'tenure'::regnamespace and not t.tgisinternal
  and t.tgenabled not in ('O', 'A')
union all
select p.inhrelid::regclass::text, 'the partition has no trigger append_lock_first'
from pg_inherits p
where p.inhparent = 'tenure.log'::regclass and not exists (
    select from pg_trigger t where t.tgrelid = p.inhrelid and t.tgname = 'append_lock_first')
union all
select c.conrelid::regclass || ' ' || c.conname, 'the constraint is not validated or not enforced'
from pg_constraint c
where c.connamespace = 'tenure'::regnamespace and not c.convalidated
