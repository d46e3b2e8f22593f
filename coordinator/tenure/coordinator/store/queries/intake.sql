-- What applications enqueued in transactions of their own. Every read is bound to a tenant.

-- name: enqueued
-- What became of task $2 in the intake; of several rows the newest.
select state, code, message from tenure.intake
where tenant = $1 and task_id = $2::uuid
order by intake_id desc
limit 1

-- name: list_intake
-- Newest first, for each of the states $2. $3 after (an intake id), $4 number of rows.
select
    q.intake_id, q.task_id::text as task_id, q.type, q.state, q.code, q.message, q.idempotency_key,
    q.priority, q.not_before, q.deadline, q.enqueued_by, q.created_at, q.decided_at
from unnest($2::text[]) s (state)
cross join lateral (
    select * from tenure.intake i
    where i.state = s.state and i.tenant = $1 and ($3::bigint is null or i.intake_id < $3)
    order by i.intake_id desc
    limit $4
) q
order by q.intake_id desc
limit $4

-- name: retry_intake
-- Refused rows wait once more: $2 only with this code, $3 only of this type, $4 at most so many.
select tenure.retry_intake($1, $2, $3, $4) as retried
