-- Invariants of attempts; see verify_tasks.sql.

-- name: page
select (array_agg(p.attempt_id order by p.attempt_id desc))[1] as last, count(*) as rows
from (
    select attempt_id from tenure.attempts where attempt_id > $1 order by attempt_id limit $2
) p

-- name: attempts-are-of-a-task
select 'attempt ' || a.attempt_id as subject, 'its task ' || a.task_id || ' does not exist' as detail
from tenure.attempts a
where a.attempt_id > $1 and a.attempt_id <= $2
  and not exists (select from tenure.tasks t where t.task_id = a.task_id)

-- name: attempts-are-at-a-node
select 'attempt ' || a.attempt_id as subject,
    format('incarnation %s of node %s does not exist for tenant %s', a.incarnation, a.node_id,
        a.tenant) as detail
from tenure.attempts a
where a.attempt_id > $1 and a.attempt_id <= $2 and not exists (
    select from tenure.incarnations n
    where n.incarnation = a.incarnation and n.node_id = a.node_id and n.tenant = a.tenant)
  and not (a.ended_at is not null and a.submitted_at
      <= (select removed_to from tenure.retention where kind = 'nodes')
      and not exists (select from tenure.incarnations n where n.incarnation = a.incarnation))

-- name: open-attempts-have-reservations
-- And ended ones have none.
select 'attempt ' || a.attempt_id as subject,
    case when a.ended_at is not null then 'has ended and still has a reservation'
        when e.attempt_id is null then 'is open and has no reservation'
        else 'its reservation is at incarnation ' || e.incarnation end as detail
from tenure.attempts a
left join tenure.reservations e on e.attempt_id = a.attempt_id
where a.attempt_id > $1 and a.attempt_id <= $2
  and case when a.ended_at is null
      then (e.incarnation, e.tenant) is distinct from (a.incarnation, a.tenant)
      else e.attempt_id is not null end

-- name: leases-are-under-a-policy
select 'attempt ' || a.attempt_id as subject,
    'there is no policy version ' || a.policy_version as detail
from tenure.attempts a
where a.attempt_id > $1 and a.attempt_id <= $2
  and not exists (select from tenure.policies p where p.version = a.policy_version)
