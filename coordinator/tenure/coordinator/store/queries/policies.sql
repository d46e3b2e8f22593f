-- Terms of leases and retries, by version.

-- name: in_force
select * from tenure.policies order by version desc limit 1

-- name: of_version
select * from tenure.policies where version = $1

-- name: history
-- Newest first; $1 how many.
select * from tenure.policies order by version desc limit $1

-- name: set_policy
-- $1 after this version. Durations in microseconds: $2 lease, $3 renewal margin (null: two thirds of the
-- lease), $4 clock tolerance, $5 silence of a node, $6 and $7 base and cap of retries; $8 what follows a promotion, $9 by whom, $10 why.
select tenure.set_policy($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
