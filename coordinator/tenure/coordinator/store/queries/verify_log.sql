-- Invariants of the log, by position; see verify_tasks.sql.

-- name: page
select max(p.position) as last, count(*) as rows
from (select position from tenure.log where position > $1 order by position limit $2) p

-- name: events-are-of-known-streams
-- No event is ahead of its row, or of the authority's epoch.
select 'position ' || l.position as subject,
    format('%s %s at epoch %s, sequence %s; the row is at %s', l.entity_type, l.entity_id, l.epoch,
        l.sequence, coalesce(r.sequence::text, 'none')) as detail
from tenure.log l
left join lateral (
    select t.sequence from tenure.tasks t
    where l.entity_type = 'task' and t.task_id = l.entity_id and l.order_key = t.task_id
    union all
    select a.sequence from tenure.attempts a
    where l.entity_type = 'attempt' and a.attempt_id = l.entity_id and l.order_key = a.task_id
    union all
    select n.sequence from tenure.incarnations n
    where l.entity_type = 'node' and n.incarnation = l.entity_id and l.order_key = n.incarnation
) r on true
where l.position > $1 and l.position <= $2
  and (l.sequence > r.sequence
      or (r.sequence is null and l.recorded_at > (
          select removed_to from tenure.retention
          where kind = case when l.entity_type = 'node' then 'nodes' else 'tasks' end))
      or l.epoch > (select epoch from tenure.authority))

-- name: events-say-what-the-log-says
-- The bytes that are published tell the row's columns.
select 'position ' || l.position as subject,
    format('body: %s; row: %s', b.said, b.stored) as detail
from tenure.log l
cross join lateral (select convert_from(l.body, 'UTF8')::json as event) e
cross join lateral (
    select concat_ws(' ', e.event ->> 'id', e.event ->> 'tenant', e.event ->> 'entitytype',
            e.event ->> 'subject', e.event ->> 'epoch', e.event ->> 'sequence',
            e.event -> 'data' ->> 'next_state', (e.event ->> 'time')::timestamptz) as said,
        concat_ws(' ', l.event_id, l.tenant, l.entity_type, l.entity_id, l.epoch, l.sequence,
            l.next_state, l.recorded_at) as stored
) b
where l.position > $1 and l.position <= $2 and b.said <> b.stored

-- name: copies-have-an-original
select 'position ' || l.position as subject,
    'there is no event ' || l.event_id || ' with these bytes' as detail
from tenure.log l
where l.position > $1 and l.position <= $2 and l.copy
  and l.recorded_at > (select removed_to from tenure.retention where kind = 'log')
  and not exists (
    select from tenure.log g
    where g.order_key = l.order_key and g.event_id = l.event_id and not g.copy and g.body = l.body)

-- name: log-has-its-partitions
select 'position ' || l.position as subject,
    'it is in the default partition: no coordinator has made another in time' as detail
from tenure.log_default l
where l.position > $1 and l.position <= $2
