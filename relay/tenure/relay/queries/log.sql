-- What the relay asks of the database. One statement after each `-- name:` line; parameters by number.
-- All names carry their schema, so that no search path matters.

-- name: schema
-- Whether the functions below are there, from the catalogue: before the first migration there is
-- nothing else to ask.
select exists (
    select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = 'tenure' and p.proname = 'relay_advance'
) as migrated

-- name: attend
select relays, earlier from tenure.relay_attend($1, $2)

-- name: leave
select tenure.relay_leave($1)

-- name: claim
select shard, claim_token, "position", parked from tenure.relay_claim($1, $2, $3)

-- name: renew
select tenure.relay_renew($1, $2, $3, $4) as shard

-- name: release
select tenure.relay_release($1, $2, $3) as shard

-- name: advance
select tenure.relay_advance($1, $2, $3, $4, $5, $6, $7, $8, $9) as shard

-- name: held
-- The streams of the shards $1 that wait for a parked row.
select shard, stream_type, stream_id from tenure.parked
where shard = any($1::smallint[]) and due_at is not null and holds

-- name: due
-- Of the shards $1 the parked rows that are due, up to $2 streams, longest due first; with each up to $3
-- rows of its stream, in order, and none after the one with which the bodies reach $4 bytes.
select f.shard, f."position", f.stream_type, f.stream_id, f.event_id, f.exchange, f.routing_key,
    f.required, f.body, f.attempt_id, f.tries, f.skip, (
        select count(*) || ' ' || coalesce(sum(hashtextextended(u.queue || u.patterns::text, 0)), 0)
        from tenure.subscriptions u where u.removed_at is null
    ) as routes
from (
    select p.*, sum(octet_length(p.body)) over (order by head.due_at, head."position", p."position")
        - octet_length(p.body) as before, head.due_at as head_due_at, head."position" as head_position
    from (
        select h."position", h.stream_type, h.stream_id, h.holds, h.due_at from tenure.parked h
        where h.shard = any($1::smallint[]) and h.due_at <= clock_timestamp()
        order by h.due_at, h."position" limit $2
    ) head
    cross join lateral (
        select * from tenure.parked b
        where b.stream_type = head.stream_type and b.stream_id = head.stream_id
            and (b."position" = head."position"
                or (head.holds and b.holds and b."position" > head."position"))
        order by b."position" limit $3
    ) p
) f
where f.before < $4
order by f.head_due_at, f.head_position, f."position"

-- name: unpark
select stream_type, stream_id, held from tenure.relay_unpark($1, $2, $3, $4, $5, $6, $7, $8)

-- name: withdrawn
-- Of the attempts $1 those that have ended.
select tenure.relay_withdrawn($1) as attempt_id

-- name: routes
-- What subscriptions ask for. The statements that read rows tell by ``routes`` whether this has changed:
-- a row that was committed after a subscription is never read without it.
select u.patterns from tenure.subscriptions u where u.removed_at is null

-- name: follow
-- The last position after $1, in every row; and the rows after it whose shard is one of $2, by position:
-- at most $3, and none after the one with which the bodies reach $4 bytes. No row where the log ends
-- at $1: then this reads one index entry of each partition behind $1, the cheap question of an idle
-- relay.
select r."position", r.shard, r.entity_type, r.entity_id, r.event_id, r.exchange, r.routing_key,
    r.required, r.body, r.attempt_id, h."position" as log_end, (
        select count(*) || ' ' || coalesce(sum(hashtextextended(u.queue || u.patterns::text, 0)), 0)
        from tenure.subscriptions u where u.removed_at is null
    ) as routes
from (
    select "position" from tenure.log where "position" > $1 order by "position" desc limit 1
) h
left join (
    select l.*, sum(octet_length(l.body)) over (order by l."position") - octet_length(l.body) as before
    from (
        select * from tenure.log
        where "position" > $1 and shard = any($2::smallint[])
        order by "position"
        limit $3
    ) l
) r on r.before < $4
order by r."position"

-- name: read
-- The last position of the log, in every row, and at least in one; and for each shard ($1) the rows
-- after its position ($2), by position: at most $3, and none after the one with which the bodies
-- reach $4 bytes.
select r."position", r.shard, r.entity_type, r.entity_id, r.event_id, r.exchange, r.routing_key,
    r.required, r.body, r.attempt_id,
    (select "position" from tenure.log order by "position" desc limit 1) as log_end, (
        select count(*) || ' ' || coalesce(sum(hashtextextended(u.queue || u.patterns::text, 0)), 0)
        from tenure.subscriptions u where u.removed_at is null
    ) as routes
from (select) once
left join (
    unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[])
        as want (shard, after, row_limit, byte_limit)
    cross join lateral (
        select b.*
        from (
            select l."position", l.entity_type, l.entity_id, l.attempt_id, l.event_id,
                l.exchange, l.routing_key, l.required, l.body,
                sum(octet_length(l.body)) over (order by l."position") - octet_length(l.body)
                    as before
            from (
                select * from tenure.log
                where log.shard = want.shard and log."position" > want.after
                order by log."position"
                limit want.row_limit
            ) l
        ) b
        where b.before < want.byte_limit
        order by b."position"
    ) found
) r on true

-- name: lag
-- Rows behind the cursors of all shards, counted up to $1 for each, and the age of the oldest.
select coalesce(sum(waiting.count), 0)::bigint as row_count,
    coalesce(extract(epoch from clock_timestamp() - min(oldest.recorded_at)), 0)::float8 as seconds
from tenure.relay_shards s
left join lateral (
    select l.recorded_at from tenure.log l
    where l.shard = s.shard and l."position" > s."position"
    order by l."position" limit 1
) oldest on true
left join lateral (
    select count(*) from (
        select from tenure.log l
        where l.shard = s.shard and l."position" > s."position"
        limit $1
    ) counted
) waiting on true
