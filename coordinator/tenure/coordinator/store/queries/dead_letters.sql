-- Dead letters, for people, and what becomes of them.

-- name: dead_letters
-- Of tenant $1 (null: all), in state $2 and of queue $3 (null: any), before $4, newest first; at most $5.
select
    d.dead_letter_id, d.queue, d.event_id, d.tenant, d.task_id, d.event_type, d.reason, d.times,
    d.body_bytes, d.first_at, d.last_at, d.state, d.settled_at, d.settled_by, d.settled_reason
from tenure.dead_letters d
where (d.tenant = $1 or $1::text is null)
    and (d.state = $2 or $2::text is null)
    and (d.queue = $3 or $3::text is null)
    and (d.dead_letter_id < $4 or $4::bigint is null)
order by d.dead_letter_id desc
limit $5

-- name: dead_letter
select
    d.dead_letter_id, d.queue, d.event_id, d.tenant, d.task_id, d.event_type, d.reason, d.times,
    d.body_bytes, d.first_at, d.last_at, d.state, d.settled_at, d.settled_by, d.settled_reason,
    d.body
from tenure.dead_letters d
where d.dead_letter_id = $2 and (d.tenant = $1 or $1::text is null)

-- name: record_dead_letters
select tenure.record_dead_letters($1, $2, $3, $4, $5, $6, $7, $8, $9) as recorded

-- name: settle_dead_letter
select tenure.settle_dead_letter($1, $2, $3, $4, $5) as found
