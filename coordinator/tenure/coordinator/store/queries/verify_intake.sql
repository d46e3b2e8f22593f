-- Invariants of what applications enqueued; see verify_tasks.sql.

-- name: page
select max(p.intake_id) as last, count(*) as rows
from (
    select intake_id from tenure.intake where intake_id > $1 order by intake_id limit $2
) p

-- name: taken-rows-have-a-task
select 'intake row ' || q.intake_id as subject, 'its task ' || q.task_id || ' does not exist' as detail
from tenure.intake q
where q.intake_id > $1 and q.intake_id <= $2 and q.state = 'taken' and not exists (
    select from tenure.tasks t where t.task_id = q.task_id and t.tenant = q.tenant)
