-- The authority's own row.

-- name: standing
select tenure.confirmed_epoch() as epoch, epoch as stored_epoch, lost_at, clock_timestamp() as clock
from tenure.authority

-- name: show
select
    a.authority_id::text as authority_id, tenure.confirmed_epoch() as epoch, a.epoch as stored_epoch,
    a.highest_epoch_seen, a.opened_at, a.lost_at, a.lost_proof::text as lost_proof,
    a.system_identifier::text as system_identifier, a.timeline,
    r.system_identifier::text as running_system_identifier, r.timeline as running_timeline
from tenure.authority a cross join tenure.running_server() r

-- name: epochs
-- Newest first; $1 how many.
select epoch, opened_at, opened_by, cause, reason from tenure.authority_epochs
order by epoch desc limit $1

-- name: open_epoch_after_promotion
select tenure.open_epoch_after_promotion($1)

-- name: recover
-- $1 by whom, $2 why, $3 above which epoch (null: what is known here).
select epoch, wait_seconds from tenure.recover_authority($1, $2, $3)

-- name: present_tokens
-- $1 tenants, $2 task ids, $3 fencing tokens, $4 by whom.
select tenure.present_token(p.tenant, p.task_id, p.token, p.presenter) as proven
from unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) with ordinality
    as p (tenant, task_id, token, presenter, ord)
order by p.ord

-- name: present_positions
-- $1 tenant, $2 kinds and $3 ids of entities, $4 epochs, $5 sequences, $6 by whom.
select tenure.present_position($1, p.kind, p.entity_id, p.epoch, p.sequence, $6) as proven
from unnest($2::text[], $3::uuid[], $4::integer[], $5::bigint[]) with ordinality
    as p (kind, entity_id, epoch, sequence, ord)
order by p.ord
