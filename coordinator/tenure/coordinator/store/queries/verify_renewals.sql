-- Invariants of renewals, by their place in the table; see verify_tasks.sql. Rows stay where they are.

-- name: page
-- Whole blocks of about a hundred rows, since nothing leads to the next row by its place.
select case when p.first < p.blocks then p.last end as last, (
    select count(*) from tenure.renewals where ctid > $1 and ctid <= p.last) as rows
from (
    select f.first, format('(%s,0)', f.first + $2::integer / 100 + 1)::tid as last,
        pg_relation_size('tenure.renewals') / current_setting('block_size')::bigint as blocks
    from (select (($1::tid::text::point)[0])::bigint as first) f
) p

-- name: renewals-lengthen-live-leases
select 'renewal of attempt ' || r.attempt_id || ' at ' || r.at as subject,
    format('from %s to %s, lease %s', r.prior_expires_at, r.new_expires_at,
        case when a.attempt_id is null then 'unknown' else 'known' end) as detail
from tenure.renewals r
left join tenure.attempts a on a.attempt_id = r.attempt_id and a.lease_id = r.lease_id
where r.ctid > $1 and r.ctid <= $2
  and (r.new_expires_at < r.prior_expires_at or r.at >= r.prior_expires_at or (a.attempt_id is null
          and r.at > (select removed_to from tenure.retention where kind = 'tasks')))
