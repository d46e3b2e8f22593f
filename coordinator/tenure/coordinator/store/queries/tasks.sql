-- Reads of applications and operators. Every one is bound to a tenant: an id of another tenant is not
-- found.

-- name: task
-- The whole story of a task by one statement, so that its parts agree.
select
    t.task_id::text as task_id, t.tenant, t.type, t.state, t.reason, t.message, t.priority,
    t.profile_digest,
    t.created_at, t.not_before, t.deadline, t.generation, t.failures, t.losses,
    t.max_attempts, t.effects,
    t.cpu_millis, t.memory_bytes, t.cancel_requested_at,
    t.cancel_delivered_at, t.concurrency_key, t.traceparent,
    case when t.state = 'cancelled' and
        (t.ended_at = t.cancel_requested_at or latest.state = 'cancelled')
        then t.ended_at end as cancel_confirmed_at,
    t.retry_of::text as retry_of,
    (select n.task_id::text from tenure.tasks n where n.retry_of = t.task_id) as retried_by,
    t.ended_at,
    current_attempt.state as attempt_state,
    latest.node_id,
    i.input::text as input, i.scope::text as scope,
    (select to_json(e)::text from (
        select task_id, erased_at, erased_by, reason from tenure.erasures
        where task_id = t.task_id
    ) e) as erasure,
    r.output::text as output,
    (select to_json(g)::text from (
        select fencing_token, fraction, message, at, checkpoint, checkpoint_fencing_token,
            checkpoint_at
        from tenure.task_progress where task_id = t.task_id
    ) g) as progress,
    (
        select coalesce(json_agg(a order by a.ordinal), '[]')::text
        from (
            select
                attempt_id, ordinal, state, reason, message, node_id, incarnation, lease_id,
                fencing_token, decision, scope, submitted_at, accepted_at, started_at, ended_at, expires_at,
                retry_delay_microseconds / 1e6::float8 as retry_delay_seconds
            from tenure.attempts
            where task_id = t.task_id
        ) a
    ) as attempt_list,
    (
        select coalesce(json_agg(d order by d.admitted_at, d.receipt_id), '[]')::text
        from (
            select
                receipt_id, attempt_id, node_id, admitted, code, admitted_at, state_version,
                generation, fencing_token, encode(content_digest, 'hex') as content_digest,
                enforced
            from tenure.receipts
            where task_id = t.task_id
        ) d
    ) as receipts,
    -- Copies to a node's queue are the same events again.
    array(
        select body from tenure.log where order_key = t.task_id and not copy order by position
    ) as events
from tenure.tasks t
left join tenure.attempts current_attempt on current_attempt.attempt_id = t.current_attempt_id
left join tenure.attempts latest on latest.task_id = t.task_id and latest.ordinal = t.generation
left join tenure.task_inputs i on i.task_id = t.task_id
left join tenure.receipts r
    on t.state = 'delivered' and r.attempt_id = t.current_attempt_id and r.admitted
where t.tenant = $1 and t.task_id = $2::uuid

-- name: receipts
-- Every receipt of a task with its content.
select t.task_id, (
    select coalesce(json_agg(d order by d.admitted_at, d.receipt_id), '[]')::text
    from (
        select
            receipt_id, attempt_id, node_id, admitted, code, admitted_at, state_version,
            generation, fencing_token, encode(content_digest, 'hex') as content_digest, enforced,
            output, output is null as erased
        from tenure.receipts
        where task_id = t.task_id
    ) d
) as receipts
from tenure.tasks t
where t.tenant = $1 and t.task_id = $2::uuid

-- name: result
-- ``head``: everything up to it is visible to this statement, and whatever is committed later gets a
-- higher position. A tail that starts there misses no end of this task.
select
    t.task_id::text as task_id, t.state, t.reason, t.message,
    t.current_attempt_id::text as attempt_id,
    a.state as attempt_state,
    r.output::text as output,
    r.receipt_id is not null and r.output is null as erased,
    coalesce((select l.position from tenure.log l order by l.position desc limit 1), 0) as head,
    null as intake_state, null as code
from tenure.tasks t
left join tenure.attempts a on a.attempt_id = t.current_attempt_id
left join tenure.receipts r
    on t.state = 'delivered' and r.attempt_id = t.current_attempt_id and r.admitted
where t.tenant = $1 and t.task_id = $2::uuid
union all (
    -- Enqueued, and not a task so far. By the same statement, or it could be missed in between.
    select
        q.task_id::text, 'open', null, q.message, null, null, null, false,
        coalesce((select l.position from tenure.log l order by l.position desc limit 1), 0),
        q.state, q.code
    from tenure.intake q
    where q.tenant = $1 and q.task_id = $2::uuid and q.state <> 'taken'
        and not exists (select from tenure.tasks t where t.task_id = $2::uuid)
    order by q.intake_id desc
    limit 1
)

-- name: list_tasks
-- Newest first: task ids are ordered by time. $2 state, $3 type, $4 phase, $5 after (a task id), $6
-- created before, $7 number of rows; null: any.
select
    t.task_id::text as task_id, t.type, t.state, t.reason, t.priority, t.created_at, t.not_before,
    t.deadline, t.generation,
    current_attempt.state as attempt_state,
    latest.node_id
from tenure.tasks t
left join tenure.attempts current_attempt on current_attempt.attempt_id = t.current_attempt_id
left join tenure.attempts latest on latest.task_id = t.task_id and latest.ordinal = t.generation
where t.tenant = $1
    and ($2::text is null or t.state = $2)
    and ($3::text is null or t.type = $3)
    and ($4::text is null or $4 = case
        when t.state <> 'open' then t.state
        when current_attempt.state = 'submitted' then 'assigned'
        when current_attempt.state = 'accepted' then 'taken'
        when current_attempt.state = 'running' then 'running'
        else 'waiting'
    end)
    and ($5::text is null or t.task_id < $5::uuid)
    and ($6::timestamptz is null or t.created_at < $6)
order by t.task_id desc
limit $7

-- name: bulk_page
-- Oldest first: of the $8 tasks after $5 (a task id; null: from the first) those of states $2, type $3,
-- phase $4, created before $6 (null: any): the first $7 (null: all), how many these are, and where to
-- read on.
with scanned as (
    select t.task_id, t.type, t.state, t.created_at, t.current_attempt_id
    from tenure.tasks t
    where t.tenant = $1 and ($5::text is null or t.task_id > $5::uuid)
    order by t.task_id
    limit $8
),
found as (
    select s.task_id
    from scanned s
    left join tenure.attempts a on a.attempt_id = s.current_attempt_id and s.state = 'open'
    where s.state = any ($2::text[])
        and ($3::text is null or s.type = $3)
        and ($4::text is null or $4 = case
            when s.state <> 'open' then s.state
            when a.state = 'submitted' then 'assigned'
            when a.state = 'accepted' then 'taken'
            when a.state = 'running' then 'running'
            else 'waiting'
        end)
        and ($6::timestamptz is null or s.created_at < $6)
    order by s.task_id
    limit $7
)
select
    clock_timestamp() as clock,
    (select count(*) from found) as matched,
    case when $7::bigint is not null then array(select task_id::text from found order by task_id)
        else '{}' end as task_ids,
    case
        when (select count(*) from found) = $7 then
            (select task_id from found order by task_id desc limit 1)
        when (select count(*) from scanned) = $8 then
            (select task_id from scanned order by task_id desc limit 1)
    end::text as next

-- name: stream
-- One statement, so that the entity's sequence and its events agree. $2 entity type, $3 entity id, $4
-- after (a sequence), $5 number of events.
with entity as (
    select state, sequence, task_id as order_key
    from tenure.tasks where $2 = 'task' and tenant = $1 and task_id = $3::uuid
    union all
    select state, sequence, task_id
    from tenure.attempts where $2 = 'attempt' and tenant = $1 and attempt_id = $3::uuid
    union all
    select state, sequence, incarnation
    from tenure.incarnations where $2 = 'node' and tenant = $1 and incarnation = $3::uuid
)
select
    entity.state, entity.sequence,
    (select epoch from tenure.authority) as epoch,
    -- The first event that is still there: retention may have removed earlier ones.
    (
        select l.sequence from tenure.log l
        where l.order_key = entity.order_key and l.entity_type = $2 and l.entity_id = $3::uuid
            and not l.copy
        order by l.position limit 1
    ) as first_sequence,
    array(
        select l.body
        from tenure.log l
        where l.order_key = entity.order_key and l.entity_type = $2 and l.entity_id = $3::uuid
            and l.sequence > $4 and not l.copy
        order by l.position
        limit $5
    ) as events
from entity

-- name: ended_since
-- The tail of the log for waiting clients: tasks that ended or were held after position $1, at most
-- $2 of them, and the head up to which that is all when there are fewer.
select
    coalesce((select l.position from tenure.log l order by l.position desc limit 1), 0) as head,
    ended.positions,
    ended.task_ids
from (
    select
        coalesce(array_agg(position order by position), '{}') as positions,
        coalesce(array_agg(entity_id::text order by position), '{}') as task_ids
    from (
        select position, entity_id
        from tenure.log
        where position > $1 and entity_type = 'task' and not copy
            and next_state in ('held', 'delivered', 'failed', 'cancelled', 'expired')
        order by position
        limit $2
    ) found
) ended

-- name: erase
select outcome, erased_at, erased_by, reason from tenure.erase_task($1, $2::uuid, $3, $4)
