-- What a relay asks for replays. One statement after each `-- name:` line; parameters by number.

-- name: unclaimed
select tenure.replay_unclaimed() as number

-- name: claim
select replay_id, claim_token, "position", to_position, queue, rate, replayed, held_back
from tenure.replay_claim($1, $2, $3)

-- name: read
select "position", shard, entity_type, entity_id, event_id, body, held, scanned_to, stop_code, stop_detail
from tenure.replay_read($1, $2, $3, $4, $5, $6)

-- name: advance
select replay_id, state from tenure.replay_advance($1, $2, $3, $4, $5, $6, $7)

-- name: release
select tenure.replay_release($1, $2, $3) as replay_id

-- name: stop
select tenure.replay_stop($1, $2, $3, $4, $5) as stopped
