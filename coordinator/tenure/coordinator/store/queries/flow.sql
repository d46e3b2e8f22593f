-- What is paused, and what operators say about it.

-- name: pauses
-- In force, of one tenant and of all; null: of every tenant.
select
    f.scope, nullif(f.tenant, '*') as tenant,
    case when f.scope = 'tenant' then f.tenant else f.name end as name, f.reason, f.until,
    f.paused_by, f.paused_at
from tenure.pauses f
where (f.tenant in ($1, '*') or $1::text is null)
    and coalesce(f.until > (select clock_timestamp()), true)
order by f.tenant, f.scope, f.name

-- name: set_pause
select tenure.set_pause($1, $2, $3, $4, $5, $6) as ahead

-- name: end_pause
select tenure.end_pause($1, $2, $3, $4) as resumed
