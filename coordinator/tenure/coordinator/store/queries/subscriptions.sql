-- Subscriptions, for people and for the broker's topology.

-- name: subscriptions
-- Of one tenant; null: of every tenant, and those to the events of all.
select
    u.tenant, u.name, u.queue, u.patterns,
    extract(epoch from u.dedupe_retention)::float8 as dedupe_retention_seconds,
    u.created_at, u.created_by, u.changed_at, u.changed_by
from tenure.subscriptions u
where u.removed_at is null and (u.tenant = $1 or $1::text is null)
order by u.tenant nulls first, u.name

-- name: subscription_queues
-- What must be on the broker, and what may go.
select u.queue, u.patterns, u.former_patterns, u.removed_at is null as needed
from tenure.subscriptions u

-- name: set_subscription
select tenure.set_subscription(
    $1, $2, $3, $4, make_interval(secs => $5::float8), $6
) as confirmed

-- name: remove_subscription
select tenure.remove_subscription($1, $2, $3) as removed
