-- Reads about nodes, for executors, operators and the broker's topology.

-- name: incarnation
select node_id, state, queue, under_review
from tenure.incarnations where tenant = $1 and incarnation = $2::uuid

-- name: assignments
-- Attempts of an incarnation that have not ended. $3: at most so many.
select
    a.task_id::text as task_id, a.attempt_id::text as attempt_id, a.fencing_token, t.type as task_type, a.state,
    a.ordinal, a.dispatch_event_id::text as event_id, t.cancel_requested_at is not null as cancel_requested
from tenure.attempts a
join tenure.tasks t on t.task_id = a.task_id
where a.tenant = $1 and a.incarnation = $2::uuid and a.ended_at is null
order by a.submitted_at, a.attempt_id
limit $3

-- name: reviews
-- Of node $2, newest first; $3: at most so many.
select
    incarnation::text as incarnation, last_seen_at, opened_at, closed_at, outcome, closed_by, message
from tenure.health_reviews
where tenant = $1 and node_id = $2
order by review_id desc
limit $3

-- name: renewals
-- Of task $2, newest first; $3: at most so many. Asked by time too: that is what the index knows.
select
    r.attempt_id::text as attempt_id, r.lease_id::text as lease_id, r.at, r.prior_expires_at,
    r.new_expires_at, r.renewed_by
from tenure.attempts a
cross join lateral (
    select * from tenure.renewals w
    where w.attempt_id = a.attempt_id
      and w.at between a.submitted_at and coalesce(a.ended_at, a.decided_at)
) r
where a.tenant = $1 and a.task_id = $2::uuid
order by r.at desc
limit $3

-- name: lease_end
select expires_at from tenure.attempts where tenant = $1 and attempt_id = $2::uuid

-- name: open_attempts
-- Of every incarnation of node $2: attempts that have not ended, and revoked ones whose lease would not
-- have run out yet. $3: at most so many.
select
    a.task_id::text as task_id, a.attempt_id::text as attempt_id, a.state, a.fencing_token,
    a.expires_at
from tenure.incarnations n
join tenure.attempts a on a.incarnation = n.incarnation
where n.tenant = $1 and n.node_id = $2
    and (n.state <> 'gone' or n.ended_at > clock_timestamp() - interval '1 day')
    and (a.ended_at is null
        or a.reason = 'revoked' and a.accepted_at is not null and a.expires_at > clock_timestamp())
order by a.expires_at, a.attempt_id
limit $3

-- name: list_nodes
-- Those that are alive, and those that ended within the last hour.
select
    node_id, incarnation::text as incarnation, state, software, protocol_version, slots, slots_used,
    cpu_millis, memory_bytes, cpu_used, memory_used, task_types, profile_digests,
    type_concurrency, facts::text as facts, executable_name, executable_version, executable_digest,
    executable_withdrawn, under_review, registered_at, last_seen_at,
    extract(epoch from clock_timestamp() - last_seen_at)::float8 as seconds_since_seen
from tenure.incarnations
where tenant = $1
    and (state <> 'gone' or ended_at > clock_timestamp() - interval '1 hour')
order by node_id, registered_at desc
limit $2

-- name: node
-- A node by name, with what operators state about it, and its current incarnation if it has one.
select
    o.node_id, o.stated_facts::text as stated_facts,
    n.incarnation::text as incarnation, n.state, n.software, n.protocol_version, n.slots,
    n.slots_used, n.cpu_millis, n.memory_bytes, n.cpu_used, n.memory_used, n.task_types,
    n.profile_digests, n.type_concurrency, n.facts::text as facts, n.executable_name, n.executable_version,
    n.executable_digest, n.executable_withdrawn, n.under_review, n.registered_at, n.last_seen_at,
    extract(epoch from clock_timestamp() - n.last_seen_at)::float8 as seconds_since_seen
from tenure.nodes o
left join tenure.incarnations n on n.incarnation = o.incarnation
where o.tenant = $1 and o.node_id = $2

-- name: queues
-- Queues that must exist, and queues to delete. A queue is needed as long as a message for it may
-- come or wait in the log: the relay could not get past a message whose required queue is gone. So a
-- node that is gone keeps its queue until its last attempt has ended and everything that was recorded
-- by then (ten minutes are for attempts that ended after their node) has been published.
with unpublished as (
    select min(first.recorded_at) as oldest
    from tenure.relay_shards s
    cross join lateral (
        select l.recorded_at from tenure.log l
        where l.shard = s.shard and l.position > s.position
        order by l.position
        limit 1
    ) first
)
select
    i.queue,
    i.state <> 'gone'
        or i.ended_at > (select oldest from unpublished) - interval '10 minutes'
        or exists (
            select from tenure.attempts a
            where a.incarnation = i.incarnation and a.ended_at is null
        ) as needed
from tenure.incarnations i
where i.queue <> '' and (
    i.state <> 'gone' or i.ended_at > clock_timestamp() - interval '25 hours')

-- name: heard_queues
-- Of nodes that were heard within $1 seconds and are their queues' consumers for longer.
select i.queue
from tenure.incarnations i
where i.state <> 'gone'
    and i.last_seen_at > clock_timestamp() - make_interval(secs => $1::float8)
    and i.registered_at < clock_timestamp() - make_interval(secs => $1::float8)
