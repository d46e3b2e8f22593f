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

-- name: reservations-are-of-open-attempts
select 'reservation of attempt ' || e.attempt_id as subject,
    case when a.attempt_id is null then 'there is no such attempt'
        else 'the attempt is ' || a.state end as detail
from tenure.reservations e
left join tenure.attempts a on a.attempt_id = e.attempt_id
where a.attempt_id is null or a.ended_at is not null

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
