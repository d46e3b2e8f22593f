-- Invariants of tasks and what belongs to them. Each query reports what breaks its invariant among the
-- rows after $1 up to $2: the subject, and what is wrong with it. Its name is the invariant's. What the
-- retention policy has passed may be missing: of a stream that began before, the first events.

-- name: page
-- The last key of the next $2 rows after $1, and how many they are.
select (array_agg(p.task_id order by p.task_id desc))[1] as last, count(*) as rows
from (select task_id from tenure.tasks where task_id > $1 order by task_id limit $2) p

-- name: streams-count-without-gaps
select s.entity_type || ' ' || s.entity_id as subject,
    format('position %s has epoch %s, sequence %s; expected sequence %s in epoch %s or later',
        s.position, s.epoch, s.sequence, s.expected, s.epoch_before) as detail
from (
    select l.position, l.entity_type, l.entity_id, l.epoch, l.sequence,
        row_number() over stream + case
            when coalesce(a.submitted_at, t.created_at)
                <= (select removed_to from tenure.retention where kind = 'log')
            then min(l.sequence) over (partition by l.entity_type, l.entity_id) - 1 else 0
            end as expected,
        coalesce(lag(l.epoch) over stream, l.epoch) as epoch_before
    from tenure.tasks t
    join tenure.log l on l.order_key = t.task_id and not l.copy
    left join tenure.attempts a on l.entity_type = 'attempt' and a.attempt_id = l.entity_id
    where t.task_id > $1 and t.task_id <= $2
    window stream as (partition by l.entity_type, l.entity_id order by l.position)
) s
where s.sequence <> s.expected or s.epoch < s.epoch_before

-- name: streams-keep-their-shard
select 'task ' || t.task_id as subject,
    'its events are in shards ' || string_agg(distinct l.shard::text, ', ') as detail
from tenure.tasks t
join tenure.log l on l.order_key = t.task_id
where t.task_id > $1 and t.task_id <= $2
group by t.task_id
having count(distinct l.shard) > 1

-- name: every-state-has-its-event
-- The outbox row of the last change of every task and attempt that goes on.
select r.subject, format('is %s at %s; its last event says %s at %s', r.state, r.sequence,
    coalesce(e.next_state, 'nothing'), coalesce(e.sequence, 0)) as detail
from (
    select 'task ' || t.task_id as subject, t.task_id, 'task' as entity_type,
        t.task_id as entity_id, t.state, t.sequence, t.created_at as born_at
    from tenure.tasks t
    where t.task_id > $1 and t.task_id <= $2 and t.ended_at is null
    union all
    select 'attempt ' || a.attempt_id, t.task_id, 'attempt', a.attempt_id, a.state, a.sequence,
        a.submitted_at
    from tenure.tasks t
    join tenure.attempts a on a.task_id = t.task_id
    where t.task_id > $1 and t.task_id <= $2 and a.ended_at is null
) r
left join lateral (
    select l.next_state, l.sequence from tenure.log l
    where l.order_key = r.task_id and l.entity_type = r.entity_type
      and l.entity_id = r.entity_id and not l.copy
    order by l.position desc limit 1
) e on true
where (e.next_state, e.sequence) is distinct from (r.state, r.sequence)
  and not (e.next_state is null and r.born_at
      <= (select removed_to from tenure.retention where kind = 'log'))

-- name: ended-records-are-unchanged
-- What has ended is as its last event told it (STATE-02).
select r.subject, format('row: %s; log: %s', r.ended, coalesce(e.ended, 'nothing')) as detail
from (
    select 'task ' || t.task_id as subject, t.task_id, 'task' as entity_type,
        t.task_id as entity_id, t.ended_at,
        concat_ws(' ', t.state, t.sequence, t.ended_at, t.reason) as ended
    from tenure.tasks t
    where t.task_id > $1 and t.task_id <= $2 and t.ended_at is not null
    union all
    select 'attempt ' || a.attempt_id, t.task_id, 'attempt', a.attempt_id, a.ended_at,
        concat_ws(' ', a.state, a.sequence, a.ended_at, a.reason, a.node_id, a.incarnation,
            a.ordinal, a.fencing_token)
    from tenure.tasks t
    join tenure.attempts a on a.task_id = t.task_id
    where t.task_id > $1 and t.task_id <= $2 and a.ended_at is not null
) r
left join lateral (
    select concat_ws(' ', l.next_state, l.sequence, l.recorded_at,
        b.data ->> 'reason', b.data ->> 'node_id', b.data ->> 'incarnation',
        b.data ->> 'ordinal', b.data ->> 'fencing_token') as ended
    from (
        select * from tenure.log g
        where g.order_key = r.task_id and g.entity_type = r.entity_type
          and g.entity_id = r.entity_id and not g.copy
        order by g.position desc limit 1
    ) l
    cross join lateral (
        select convert_from(l.body, 'UTF8')::json -> 'data' as data
    ) b
) e on true
where e.ended is distinct from r.ended
  and not (e.ended is null and r.ended_at
      <= (select removed_to from tenure.retention where kind = 'log'))

-- name: attempts-move-as-permitted
-- $3: the permitted moves, each as 'from>to' (STATE-04).
select 'attempt ' || s.entity_id as subject,
    format('moved from %s to %s at position %s', coalesce(s.before, 'nothing'), s.next_state,
        s.position) as detail
from (
    select l.position, l.entity_id, l.next_state, lag(l.next_state) over stream as before,
        a.submitted_at
    from tenure.tasks t
    join tenure.log l on l.order_key = t.task_id and l.entity_type = 'attempt' and not l.copy
    left join tenure.attempts a on a.attempt_id = l.entity_id
    where t.task_id > $1 and t.task_id <= $2
    window stream as (partition by l.entity_id order by l.position)
) s
where not coalesce(s.before, '') || '>' || s.next_state = any ($3::text[])
  and not (s.before is null and coalesce(s.submitted_at
      <= (select removed_to from tenure.retention where kind = 'log'), false))

-- name: tasks-move-as-permitted
-- Nothing follows an end (STATE-02).
select 'task ' || s.entity_id as subject,
    format('moved from %s to %s at position %s', s.before, s.next_state, s.position) as detail
from (
    select l.position, l.entity_id, l.next_state, lag(l.next_state) over stream as before
    from tenure.tasks t
    join tenure.log l on l.order_key = t.task_id and l.entity_type = 'task' and not l.copy
    where t.task_id > $1 and t.task_id <= $2
    window stream as (partition by l.entity_id order by l.position)
) s
where s.before in ('delivered', 'failed', 'cancelled', 'expired')

-- name: one-open-attempt-per-task
-- And it is the task's current one, of an open task.
select 'task ' || t.task_id as subject,
    format('is %s with current attempt %s; open attempts: %s', t.state,
        coalesce(t.current_attempt_id::text, 'none'), coalesce(a.open_ones, 'none')) as detail
from tenure.tasks t
left join lateral (
    select string_agg(a.attempt_id::text, ', ') as open_ones, count(*) as number,
        bool_and(a.attempt_id = t.current_attempt_id) as current
    from tenure.attempts a where a.task_id = t.task_id and a.ended_at is null
) a on true
where t.task_id > $1 and t.task_id <= $2
  and case when t.state = 'open' and t.current_attempt_id is not null
      then a.number <> 1 or not coalesce(a.current, false) else a.number <> 0 end

-- name: one-active-delivery-per-task
-- A delivered task has one delivered attempt, its current one, with one admitted receipt; no other
-- task has any (STATE-06, LATE-04).
select 'task ' || t.task_id as subject,
    format('is %s; delivered attempts %s, admitted receipts %s', t.state,
        coalesce(a.delivered, 'none'), r.number) as detail
from tenure.tasks t
cross join lateral (
    select string_agg(a.attempt_id::text, ', ') as delivered, count(*) as number,
        coalesce(bool_and(a.attempt_id = t.current_attempt_id), false) as current
    from tenure.attempts a where a.task_id = t.task_id and a.state = 'delivered'
) a
cross join lateral (
    select count(*) as number, coalesce(bool_and(e.attempt_id = t.current_attempt_id), false) as current
    from tenure.receipts e where e.task_id = t.task_id and e.admitted
) r
where t.task_id > $1 and t.task_id <= $2
  and case when t.state = 'delivered'
      then a.number <> 1 or not a.current or r.number <> 1 or not r.current
      else a.number <> 0 or r.number <> 0 end

-- name: tokens-grow-per-task
-- Ordinals count the allocations; the token is the epoch and the ordinal, above every earlier one.
select 'task ' || s.task_id as subject,
    format('attempt %s of %s has ordinal %s and token %s after %s', s.place, s.generation,
        coalesce(s.ordinal::text, 'none'), coalesce(s.fencing_token::text, 'none'),
        coalesce(s.token_before::text, 'none')) as detail
from (
    select t.task_id, t.generation, a.ordinal, a.fencing_token, row_number() over attempts as place,
        count(a.attempt_id) over (partition by t.task_id) as number,
        lag(a.fencing_token) over attempts as token_before
    from tenure.tasks t
    left join tenure.attempts a on a.task_id = t.task_id
    where t.task_id > $1 and t.task_id <= $2
    window attempts as (partition by t.task_id order by a.ordinal)
) s
where s.number <> s.generation
   or s.ordinal <> s.place
   or s.fencing_token <= s.token_before
   or s.fencing_token & 4294967295 <> s.ordinal
   or s.fencing_token >> 32 > (select epoch from tenure.authority)

-- name: leases-end-by-the-deadline
select 'attempt ' || a.attempt_id as subject,
    format('its lease ends %s, the deadline is %s', a.expires_at, t.deadline) as detail
from tenure.tasks t
join tenure.attempts a on a.task_id = t.task_id
where t.task_id > $1 and t.task_id <= $2 and a.expires_at > t.deadline

-- name: deliveries-are-under-authority
-- Delivered before the lease was over (LEASE-03), and never after the task's end.
select 'attempt ' || a.attempt_id as subject,
    format('delivered %s, its lease ended %s', a.ended_at, a.expires_at) as detail
from tenure.tasks t
join tenure.attempts a on a.task_id = t.task_id
where t.task_id > $1 and t.task_id <= $2
  and a.state = 'delivered' and (a.ended_at >= a.expires_at or a.ended_at <> t.ended_at)

-- name: limits-of-tasks-are-kept
select 'task ' || t.task_id as subject,
    format('%s failures of at most %s, %s losses', t.failures, t.max_attempts, t.losses) as detail
from tenure.tasks t
where t.task_id > $1 and t.task_id <= $2
  and (t.failures not between 0 and t.max_attempts or t.losses < 0
      or (t.state = 'open' and t.failures >= t.max_attempts))

-- name: times-run-forward
select r.subject, r.detail
from (
    select 'task ' || t.task_id as subject,
        format('created %s, decided %s, ended %s', t.created_at, t.decided_at, t.ended_at) as detail,
        t.created_at <= t.decided_at and t.ended_at is not distinct from case
            when t.ended_at is not null then t.decided_at end as forward
    from tenure.tasks t
    where t.task_id > $1 and t.task_id <= $2
    union all
    select 'attempt ' || a.attempt_id,
        format('submitted %s, accepted %s, started %s, ended %s', a.submitted_at, a.accepted_at,
            a.started_at, a.ended_at),
        a.submitted_at >= t.created_at
            and coalesce(a.accepted_at, a.submitted_at) >= a.submitted_at
            and coalesce(a.started_at, a.accepted_at, a.submitted_at)
                >= coalesce(a.accepted_at, a.submitted_at)
            and coalesce(a.ended_at, a.decided_at)
                >= coalesce(a.started_at, a.accepted_at, a.submitted_at)
    from tenure.tasks t
    join tenure.attempts a on a.task_id = t.task_id
    where t.task_id > $1 and t.task_id <= $2
) r
where not r.forward

-- name: tenants-are-kept-apart
-- What belongs to a task is its tenant's (SEC: one tenant never sees another's).
select 'task ' || t.task_id as subject,
    format('of tenant %s has %s of tenant %s', t.tenant, o.what, o.tenant) as detail
from tenure.tasks t
cross join lateral (
    select 'attempt ' || a.attempt_id as what, a.tenant from tenure.attempts a
    where a.task_id = t.task_id
    union all
    select 'receipt ' || e.receipt_id, e.tenant from tenure.receipts e where e.task_id = t.task_id
    union all
    select 'an input', i.tenant from tenure.task_inputs i where i.task_id = t.task_id
    union all
    select 'progress', g.tenant from tenure.task_progress g where g.task_id = t.task_id
    union all
    select 'event ' || l.event_id, l.tenant from tenure.log l where l.order_key = t.task_id
) o
where t.task_id > $1 and t.task_id <= $2 and o.tenant <> t.tenant

-- name: tasks-have-their-profile
select 'task ' || t.task_id as subject,
    'its profile ' || encode(t.profile_digest, 'hex') || ' is not registered' as detail
from tenure.tasks t
where t.task_id > $1 and t.task_id <= $2 and not exists (
    select from tenure.profiles p where p.tenant = t.tenant and p.digest = t.profile_digest)

-- name: erased-tasks-keep-nothing
select 'task ' || t.task_id as subject, 'was erased and still has ' || concat_ws(', ',
    case when i.task_id is not null then 'an input' end,
    case when g.task_id is not null then 'progress' end,
    case when r.outputs > 0 then r.outputs || ' outputs' end,
    case when m.messages > 0 then m.messages || ' messages' end) as detail
from tenure.tasks t
join tenure.erasures e on e.task_id = t.task_id
left join tenure.task_inputs i on i.task_id = t.task_id
left join tenure.task_progress g on g.task_id = t.task_id
cross join lateral (
    select count(*) as outputs from tenure.receipts c
    where c.task_id = t.task_id and c.output is not null
) r
cross join lateral (
    select count(a.message) + case when t.message is null then 0 else 1 end as messages
    from tenure.attempts a where a.task_id = t.task_id
) m
where t.task_id > $1 and t.task_id <= $2
  and (t.ended_at is null or i.task_id is not null or g.task_id is not null or r.outputs > 0 or m.messages > 0)

-- name: repetitions-are-of-ended-tasks
select 'task ' || t.task_id as subject,
    format('does task %s again, which %s', t.retry_of,
        coalesce('is ' || o.state, 'does not exist')) as detail
from tenure.tasks t
left join tenure.tasks o on o.task_id = t.retry_of and o.tenant = t.tenant
where t.task_id > $1 and t.task_id <= $2 and t.retry_of is not null and o.ended_at is null
  and not (o.task_id is null
      and (select removed_to from tenure.retention where kind = 'tasks') > '-infinity')
