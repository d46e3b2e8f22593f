-- Rows of the log that cannot be published for now, set aside with their bytes, so that they hold up no
-- other stream (RELAY-04). A row gets here by the move of its shard's cursor past it, and leaves when it
-- was published, is void, or somebody has it skipped. Only the shard's relay changes them, under its
-- claim: each function locks rows of relay_shards first, then parked rows by position.
create table parked (
    position bigint primary key,
    shard smallint not null references relay_shards,
    tenant text not null,
    stream_type text not null,
    stream_id uuid not null,
    attempt_id uuid,
    event_id uuid not null,
    exchange text not null,
    routing_key text not null,
    required boolean not null,
    recorded_at timestamptz not null,
    body bytea not null,
    state text not null check (state in ('failed', 'behind')),
    reason text not null,                   -- how its last publish ended; 'behind': it was not tried
    detail text not null,
    holds boolean not null,                 -- later rows of its stream wait for it
    tries integer not null default 0,       -- since it was parked
    -- When it may be published: null waits for earlier rows of its stream, infinity for somebody to ask.
    due_at timestamptz,
    skip boolean not null default false,    -- asked for
    parked_at timestamptz not null,
    constraint what_holds_nothing_waits_for_nothing check (holds or due_at is not null),
    constraint what_is_behind_holds check (state = 'failed' or holds)
);
create index parked_by_stream on parked (stream_type, stream_id, position);
create index parked_due on parked (shard, due_at) where due_at is not null;
-- Of the rows that hold a stream the first is due some time, and no other.
create unique index parked_first on parked (stream_type, stream_id) where holds and due_at is not null;

-- What operators asked for, and what came of it. Appended; carried out by the shard's relay.
create table parked_requests (
    request_id bigint generated always as identity primary key,
    position bigint not null,
    tenant text not null,
    event_id uuid not null,
    stream_type text not null,
    stream_id uuid not null,
    action text not null check (action in ('retry', 'skip')),
    reason text not null,
    requested_by text not null,
    requested_at timestamptz not null,
    carried_out_at timestamptz,
    result text check (result in ('published', 'withdrawn', 'skipped', 'failed')),
    constraint requests_have_a_result_once_carried_out check (
        (carried_out_at is null) = (result is null))
);
create index parked_requests_by_position on parked_requests (position, request_id);
create index parked_requests_carried_out on parked_requests (carried_out_at)
    where carried_out_at is not null;
create index parked_requests_open on parked_requests (position) where carried_out_at is null;

-- Moves cursors under live claims (RELAY-03), never backwards and never past the log's end, and parks
-- what the move passes; returns the shards that were moved. A shard of a lost claim is left alone
-- without an error. Nothing passes a row of a held stream without parking it.
create function relay_advance(
    relay uuid, shards smallint[], claim_tokens bigint[], positions bigint[],
    park_positions bigint[], park_reasons text[], park_details text[], park_holds boolean[],
    park_retries interval[])
returns setof smallint
language plpgsql security definer set search_path = tenure, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    clock timestamptz;
    log_end bigint;
    moving smallint[];
    came_from bigint[];
    moves_to bigint[];
begin
    select last_value into log_end from log_position;
    if (select max(p) from unnest(positions) p) > log_end then
        raise exception 'a cursor would pass the end of the log, %', log_end
            using errcode = '22023';
    end if;
    perform 1 from relay_shards s where s.shard = any(shards)
    order by s.shard for no key update;
    clock := clock_timestamp();
    select array_agg(s.shard), array_agg(s.position), array_agg(given.position)
    into moving, came_from, moves_to
    from unnest(shards, claim_tokens, positions) given (shard, claim_token, position)
    join relay_shards s on s.shard = given.shard
    where s.claim_token = given.claim_token and s.relay_id = relay and s.claimed_until > clock
        and s.position < given.position;
    if moving is null then
        return;
    end if;
    if cardinality(park_positions) > 0 then
        insert into parked (position, shard, tenant, stream_type, stream_id, attempt_id, event_id,
            exchange, routing_key, required, recorded_at, body, state, reason, detail, holds,
            due_at, parked_at)
        select l.position, l.shard, l.tenant, l.entity_type, l.entity_id, l.attempt_id, l.event_id,
            l.exchange, l.routing_key, l.required, l.recorded_at, l.body,
            case when p.reason = 'behind' then 'behind' else 'failed' end, p.reason, p.detail, p.holds,
            case when p.reason <> 'behind' then coalesce(clock + p.retry, 'infinity') end, clock
        from unnest(park_positions, park_reasons, park_details, park_holds, park_retries)
            p (position, reason, detail, holds, retry)
        join log l on l.position = p.position
        join unnest(moving, came_from, moves_to) m (shard, came_from, moves_to)
            on m.shard = l.shard and l.position > m.came_from and l.position <= m.moves_to
        order by l.position;
        -- What a row was to wait for may have been published meanwhile: then it is the first.
        update parked p set due_at = clock
        where p.position = any(park_positions) and p.due_at is null and not exists (
            select from parked earlier
            where earlier.stream_type = p.stream_type and earlier.stream_id = p.stream_id
                and earlier.holds and earlier.position < p.position);
        update relay_shards s set parked = s.parked + n.rows
        from (
            select p.shard, count(*) as rows from parked p
            where p.position = any(park_positions) and p.parked_at = clock
            group by p.shard
        ) n
        where s.shard = n.shard;
    end if;
    if exists (
        select from relay_shards s
        join unnest(moving, came_from, moves_to) m (shard, came_from, moves_to) on m.shard = s.shard
        join log l on l.shard = s.shard and l.position > m.came_from and l.position <= m.moves_to
        where s.parked > 0
            and exists (
                select from parked earlier
                where earlier.stream_type = l.entity_type and earlier.stream_id = l.entity_id
                    and earlier.holds and earlier.position < l.position)
            and not exists (select from parked p where p.position = l.position)
    ) then
        raise exception 'a cursor would pass a row of a stream that is held'
            using errcode = '22023';
    end if;
    return query
    update relay_shards s set position = m.moves_to, moved_at = clock
    from unnest(moving, moves_to) m (shard, moves_to)
    where s.shard = m.shard
    returning s.shard;
end
$$;

-- Notes what became of parked rows that were due, under live claims; returns the streams these rows are
-- of, and whether something of the stream is still parked that holds it. Of a lost claim nothing is
-- noted and nothing returned.
create function relay_unpark(
    relay uuid, shards smallint[], claim_tokens bigint[], positions bigint[], results text[],
    reasons text[], details text[], retries interval[])
returns table (stream_type text, stream_id uuid, held boolean)
language plpgsql security definer set search_path = tenure, pg_temp set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    clock timestamptz;
    noted bigint[];
    types text[];
    ids uuid[];
begin
    perform 1 from relay_shards s where s.shard = any(shards)
    order by s.shard for no key update;
    perform 1 from parked p where p.position = any(positions)
    order by p.position for update;
    clock := clock_timestamp();
    select array_agg(p.position), array_agg(p.stream_type), array_agg(p.stream_id)
    into noted, types, ids
    from unnest(shards, claim_tokens, positions) given (shard, claim_token, position)
    join relay_shards s on s.shard = given.shard
    join parked p on p.position = given.position and p.shard = given.shard
    where s.claim_token = given.claim_token and s.relay_id = relay and s.claimed_until > clock;
    if noted is null then
        return;
    end if;
    update parked_requests r set carried_out_at = clock, result = given.result
    from unnest(positions, results) given (position, result)
    where r.position = given.position and r.position = any(noted) and r.carried_out_at is null
        and (r.action <> 'skip' or given.result <> 'failed');
    update parked p set state = 'failed', reason = given.reason, detail = given.detail,
        tries = p.tries + 1,
        due_at = case when p.skip then clock else coalesce(clock + given.retry, 'infinity') end
    from unnest(positions, results, reasons, details, retries)
        given (position, result, reason, detail, retry)
    where p.position = given.position and p.position = any(noted) and given.result = 'failed';
    with gone as (
        delete from parked p using unnest(positions, results) given (position, result)
        where p.position = given.position and p.position = any(noted) and given.result <> 'failed'
        returning p.shard
    )
    update relay_shards s set parked = s.parked - n.rows
    from (select g.shard, count(*) as rows from gone g group by g.shard) n
    where s.shard = n.shard;
    update parked p set due_at = clock
    from unnest(types, ids) touched (stream_type, stream_id)
    where p.stream_type = touched.stream_type and p.stream_id = touched.stream_id
        and p.holds and p.due_at is null and not exists (
            select from parked earlier
            where earlier.stream_type = p.stream_type and earlier.stream_id = p.stream_id
                and earlier.holds and earlier.position < p.position);
    return query
    select distinct touched.stream_type, touched.stream_id, exists (
        select from parked p
        where p.stream_type = touched.stream_type and p.stream_id = touched.stream_id and p.holds)
    from unnest(types, ids) touched (stream_type, stream_id);
end
$$;

-- Asks for parked rows of ``p_tenant`` (null: of all) to be tried again now, or to be skipped; returns the
-- positions that this reaches, and null when the authority is not confirmed.
-- Without ``p_positions`` those that failed with ``p_failed_as`` (null: in whatever way), up to ten
-- thousand. Who asks to retry a row that is behind another asks for the first of its stream; a row that
-- is behind another is skipped when its turn comes.
create function ask_parked(
    p_tenant text, p_action text, p_positions bigint[], p_failed_as text, p_reason text, p_actor text)
returns bigint[]
language plpgsql volatile security definer set search_path = tenure, pg_temp set enable_seqscan = off
as $$
declare
    clock timestamptz;
    targets bigint[];
    reached bigint[];
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    if p_positions is null then
        select array_agg(f.position) into targets from (
            select p.position from parked p
            where p.state = 'failed' and (p_failed_as is null or p.reason = p_failed_as)
                and (p_tenant is null or p.tenant = p_tenant)
            order by p.position limit 10000
        ) f;
    elsif p_action = 'retry' then
        select array_agg(distinct case when p.due_at is not null then p.position else (
            select min(f.position) from parked f
            where f.stream_type = p.stream_type and f.stream_id = p.stream_id and f.holds) end)
        into targets
        from parked p
        where p.position = any(p_positions) and (p_tenant is null or p.tenant = p_tenant);
    else
        select array_agg(p.position) into targets from parked p
        where p.position = any(p_positions) and (p_tenant is null or p.tenant = p_tenant);
    end if;
    perform 1 from parked p where p.position = any(targets) order by p.position for update;
    clock := clock_timestamp();
    update parked p set
        skip = p.skip or p_action = 'skip',
        due_at = case when p.due_at is not null then clock end
    where p.position = any(targets);
    with asked as (
        insert into parked_requests as r (position, tenant, event_id, stream_type, stream_id, action,
            reason, requested_by, requested_at)
        select p.position, p.tenant, p.event_id, p.stream_type, p.stream_id, p_action, p_reason,
            p_actor, clock
        from parked p where p.position = any(targets)
        order by p.position
        returning r.position
    )
    select coalesce(array_agg(a.position order by a.position), '{}') into reached from asked a;
    return reached;
end
$$;
