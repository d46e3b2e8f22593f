-- Replays, as operators begin, see and change them.

-- name: preview
select
    p.from_position, p.to_position, p.row_count, p.exact, p.oldest_recorded_at,
    p.sample::text as sample, p.log_from_position, p.log_recorded_from, p.remembered_since
from tenure.replay_preview($1::jsonb, $2) p

-- name: start
select tenure.start_replay($1, $2, $3, $4::jsonb, $5, $6, $7, $8, $9, $10) as outcome

-- name: change
select tenure.change_replay($1, $2, $3, $4, $5) as outcome

-- name: replays
-- Newest first: the one with id $1, or all (null); in state $2, or any; older than the one with id $3.
with horizon as materialized (select tenure.replay_horizon() as position)
select
    r.replay_id::text, r.queue, r.asked::text as filter, r.from_position, r.to_position, r.rate,
    r.forced, r.state, r.pause_code, r.pause_detail, r.position, r.replayed, r.held_back, r.expected, r.expected_exactly, r.reason, r.created_by, r.created_at,
    r.moved_at, r.ended_at,
    case when r.claimed_until > clock_timestamp() then r.relay_id::text end as relay,
    r.state = 'running' and r.position < r.to_position
        and r.position >= (select h.position from horizon h) as waits_for_live
from tenure.replays r
where ($1::uuid is null or r.replay_id = $1)
    and ($2::text is null or r.state = $2)
    and ($3::uuid is null or (r.created_at, r.replay_id) < (
        select e.created_at, e.replay_id from tenure.replays e where e.replay_id = $3))
order by r.created_at desc, r.replay_id desc
limit $4

-- name: history
select c.at, c.change, c.actor, c.reason from tenure.replay_changes c
where c.replay_id = $1
order by c.at
