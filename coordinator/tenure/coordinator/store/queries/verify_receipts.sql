-- Invariants of delivery submissions; see verify_tasks.sql.

-- name: page
select (array_agg(p.receipt_id order by p.receipt_id desc))[1] as last, count(*) as rows
from (
    select receipt_id from tenure.receipts where receipt_id > $1 order by receipt_id limit $2
) p

-- name: receipts-are-of-attempts
-- An admitted one of a delivered attempt, under its token (LATE-02, LEASE-02).
select 'receipt ' || e.receipt_id as subject,
    format('%s, token %s; attempt %s', case when e.admitted then 'admitted' else e.code end,
        e.fencing_token, coalesce(concat_ws(' ', a.state, 'token', a.fencing_token), 'unknown'))
        as detail
from tenure.receipts e
left join tenure.attempts a on a.attempt_id = e.attempt_id and a.task_id = e.task_id
where e.receipt_id > $1 and e.receipt_id <= $2
  and (a.attempt_id is null
      or (e.admitted and (a.state <> 'delivered' or a.fencing_token <> e.fencing_token)))
