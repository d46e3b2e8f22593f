-- Invariants of incarnations of nodes; see verify_tasks.sql.

-- name: page
select (array_agg(p.incarnation order by p.incarnation desc))[1] as last, count(*) as rows
from (
    select incarnation from tenure.incarnations
    where incarnation > $1 order by incarnation limit $2
) p

-- name: streams-of-nodes-count-without-gaps
select 'incarnation ' || s.incarnation as subject,
    format('position %s has epoch %s, sequence %s; expected sequence %s in epoch %s or later',
        s.position, s.epoch, s.sequence, s.expected, s.epoch_before) as detail
from (
    select l.position, n.incarnation, l.epoch, l.sequence,
        row_number() over stream + case
            when n.registered_at <= (select removed_to from tenure.retention where kind = 'log')
            then min(l.sequence) over (partition by l.entity_type, l.entity_id) - 1 else 0
            end as expected,
        coalesce(lag(l.epoch) over stream, l.epoch) as epoch_before
    from tenure.incarnations n
    join tenure.log l on l.order_key = n.incarnation and not l.copy
    where n.incarnation > $1 and n.incarnation <= $2
    window stream as (partition by l.entity_type, l.entity_id order by l.position)
) s
where s.sequence <> s.expected or s.epoch < s.epoch_before

-- name: every-state-of-a-node-has-its-event
select 'incarnation ' || n.incarnation as subject,
    format('is %s at %s; its last event says %s at %s', n.state, n.sequence,
        coalesce(e.next_state, 'nothing'), coalesce(e.sequence, 0)) as detail
from tenure.incarnations n
left join lateral (
    select l.next_state, l.sequence from tenure.log l
    where l.order_key = n.incarnation and l.entity_type = 'node'
      and l.entity_id = n.incarnation and not l.copy
    order by l.position desc limit 1
) e on true
where n.incarnation > $1 and n.incarnation <= $2
  and (e.next_state, e.sequence) is distinct from (n.state, n.sequence)
  and not (e.next_state is null and n.registered_at
      <= (select removed_to from tenure.retention where kind = 'log'))

-- name: counters-equal-reservations
select 'incarnation ' || n.incarnation as subject,
    format('counts %s slots, %s millis, %s bytes; reserved are %s, %s, %s', n.slots_used, n.cpu_used,
        n.memory_used, r.slots, r.cpu_millis, r.memory_bytes) as detail
from tenure.incarnations n
cross join lateral (
    select coalesce(sum(e.slots), 0) as slots, coalesce(sum(e.cpu_millis), 0) as cpu_millis,
        coalesce(sum(e.memory_bytes), 0) as memory_bytes
    from tenure.attempts a
    join tenure.reservations e on e.attempt_id = a.attempt_id
    where a.incarnation = n.incarnation and a.ended_at is null
) r
where n.incarnation > $1 and n.incarnation <= $2
  and (n.slots_used, n.cpu_used, n.memory_used)
      is distinct from (r.slots, r.cpu_millis, r.memory_bytes)

-- name: nodes-are-not-oversold
select 'incarnation ' || n.incarnation as subject,
    format('%s of %s slots, %s of %s millis, %s of %s bytes', n.slots_used, n.slots, n.cpu_used,
        n.cpu_millis, n.memory_used, n.memory_bytes) as detail
from tenure.incarnations n
where n.incarnation > $1 and n.incarnation <= $2
  and (n.slots_used > n.slots or n.cpu_used > n.cpu_millis or n.memory_used > n.memory_bytes)

-- name: types-are-within-their-concurrency
select 'incarnation ' || n.incarnation as subject,
    format('has %s tasks of type %s, and takes %s at once', r.tasks, t.type, t.at_once) as detail
from tenure.incarnations n
cross join unnest(n.task_types, n.type_concurrency) as t (type, at_once)
cross join lateral (
    select count(*) as tasks from tenure.attempts a
    join tenure.reservations e on e.attempt_id = a.attempt_id
    where a.incarnation = n.incarnation and a.ended_at is null and e.type = t.type
) r
where n.incarnation > $1 and n.incarnation <= $2 and r.tasks > t.at_once

-- name: one-live-incarnation-per-node
select 'incarnation ' || n.incarnation as subject,
    format('is %s, and the current one of node %s is %s', n.state, n.node_id,
        coalesce(o.incarnation::text, 'none')) as detail
from tenure.incarnations n
left join tenure.nodes o on o.tenant = n.tenant and o.node_id = n.node_id
where n.incarnation > $1 and n.incarnation <= $2
  and (n.state <> 'gone') is distinct from coalesce(o.incarnation = n.incarnation, false)
