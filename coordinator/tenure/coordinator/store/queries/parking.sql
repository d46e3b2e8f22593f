-- Parked rows of the outbox, for people.

-- name: parked
-- Of tenant $1 (null: all), in state $2 and parked for $3 (null: any), after $4, oldest first; at most $5.
select
    p.position, p.shard, p.state, p.reason, p.detail, p.tenant, p.stream_type,
    p.stream_id::text as stream_id, p.event_id::text as event_id, p.exchange, p.routing_key, p.required,
    p.holds, p.tries, nullif(p.due_at, 'infinity') as due_at, p.skip,
    octet_length(p.body) as body_bytes, p.recorded_at, p.parked_at
from tenure.parked p
where (p.tenant = $1 or $1::text is null)
    and (p.state = $2 or $2::text is null)
    and (p.reason = $3 or $3::text is null)
    and p.position > $4
order by p.position
limit $5

-- name: parked_row
select
    p.position, p.shard, p.state, p.reason, p.detail, p.tenant, p.stream_type,
    p.stream_id::text as stream_id, p.event_id::text as event_id, p.exchange, p.routing_key, p.required,
    p.holds, p.tries, nullif(p.due_at, 'infinity') as due_at, p.skip,
    octet_length(p.body) as body_bytes, p.recorded_at, p.parked_at, p.body
from tenure.parked p
where p.position = $2 and (p.tenant = $1 or $1::text is null)

-- name: requests
select r.action, r.reason, r.requested_by, r.requested_at, r.carried_out_at, r.result
from tenure.parked_requests r
where r.position = $2 and (r.tenant = $1 or $1::text is null)
order by r.request_id desc
limit 100

-- name: ask
select tenure.ask_parked($1, $2, $3, $4, $5, $6) as positions
