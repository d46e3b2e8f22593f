-- Replays (REPLAY-01): bounded cursors over the log, each publishing what matches once more to one
-- queue. A relay works on a replay under a claim with a fencing token, as it does on a shard.

create table replays (
    replay_id uuid primary key,             -- chosen by the caller: the same request once more is none
    fingerprint text not null,
    queue text not null,
    asked jsonb not null,                   -- the filter as it was sent
    -- What that came to: positions, both included, and what rows have to be beside. null: anything.
    from_position bigint not null,
    to_position bigint not null,
    since timestamptz,                      -- recorded at or after
    until timestamptz,                      -- recorded before
    tenant text,
    task_id uuid,
    entity_type text,
    entity_id uuid,
    types text[],
    destination text,                       -- the queue that rows went to; else events only
    order_key uuid,                         -- all matching rows have it, where that is known
    -- How
    rate integer not null check (rate > 0), -- rows a second
    forced boolean not null,
    expected bigint not null,               -- rows, as counted when it began
    expected_exactly boolean not null,
    -- How far: everything up to ``position`` is confirmed by the broker, or does not match.
    state text not null check (state in ('running', 'paused', 'completed', 'cancelled')),
    pause_code text check (pause_code <> ''),
    pause_detail text,
    position bigint not null,
    replayed bigint not null default 0,     -- rows up to there that were published
    held_back bigint not null default 0,    -- rows up to there of streams that are held
    -- Who works on it
    relay_id uuid,
    claim_token bigint not null default 0,
    claimed_until timestamptz not null default '-infinity',
    -- Who, why, when
    reason text not null,
    created_by text not null,
    created_at timestamptz not null,
    moved_at timestamptz not null,
    ended_at timestamptz,
    constraint replay_is_in_its_bounds check (
        position between from_position - 1 and greatest(to_position, from_position - 1)),
    constraint replay_paused_for_a_reason check ((state = 'paused') = (pause_code is not null)),
    constraint replay_ended_once check (
        (state in ('completed', 'cancelled')) = (ended_at is not null)),
    constraint replay_completed_whole check (state <> 'completed' or position >= to_position)
);
create index replays_ended on replays (ended_at) where ended_at is not null;
create index replays_by_age on replays (created_at, replay_id);
create index replays_running on replays (created_at) where state = 'running';
create index replays_open on replays (position) where state in ('running', 'paused');

-- Who began, paused, resumed and cancelled a replay, and why. Appended, never changed.
create table replay_changes (
    replay_id uuid not null references replays on delete cascade,
    at timestamptz not null,
    change text not null check (change in ('started', 'paused', 'resumed', 'cancelled', 'completed')),
    actor text not null,
    reason text not null
);
create index replay_changes_of on replay_changes (replay_id, at);

-- Whoever looks for the next rows of a range reads them in the order of the index and stops: a bitmap
-- of the whole range, to be sorted, would cost as much as the range is long, however few are wanted.

-- Up to where every shard's cursor has passed every row: what is beyond is not published so far, and
-- no replay overtakes it.
create function replay_horizon() returns bigint
language sql stable security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
    select coalesce(
        (
            select min(waiting.position) - 1
            from relay_shards s cross join lateral (
                select l.position from log l
                where l.shard = s.shard and l.position > s.position
                order by l.position limit 1
            ) waiting
        ),
        (select l.position from log l order by l.position desc limit 1),
        0)
$$;

-- Whether a row is asked for, apart from its position. Inlined where it is used, which a setting of its
-- own would prevent: it names nothing that a search path finds.
create function replay_matches(r replays, l log) returns boolean
language sql immutable
as $$
    select case when r.destination is null then not l.copy
            else l.exchange = '' and l.routing_key = r.destination end
        and (r.order_key is null or l.order_key = r.order_key)
        and (r.tenant is null or l.tenant = r.tenant)
        and (r.task_id is null or l.order_key = r.task_id)
        and (r.entity_type is null or l.entity_type = r.entity_type)
        and (r.entity_id is null or l.entity_id = r.entity_id)
        and (r.since is null or l.recorded_at >= r.since)
        and (r.until is null or l.recorded_at < r.until)
        and (r.types is null or 'tenure.' || l.entity_type || '.' || l.next_state = any (r.types))
$$;

-- The position with which ``p_rows`` rows of the log after ``p_after`` are looked through, at most
-- ``p_upto``. A replay of one stream's task finds its rows by an index and looks through no others.
create function replay_scan_end(r replays, p_after bigint, p_upto bigint, p_rows integer)
returns bigint
language plpgsql stable
set search_path = tenure, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
begin
    if r.order_key is not null then
        return p_upto;
    end if;
    return coalesce((
        select l.position from log l
        where l.position > p_after and l.position <= p_upto
        order by l.position offset p_rows - 1 limit 1
    ), p_upto);
end
$$;

-- What was recorded before this instant, consumers of a queue may have forgotten to know; null: nobody
-- said how long they remember. They get a row after it is recorded, so that what is younger they know.
create function remembered_since(p_queue text) returns timestamptz
language plpgsql volatile
set search_path = tenure, pg_temp
as $$
begin
    return (
        select clock_timestamp() - u.dedupe_retention from subscriptions u
        where u.queue = p_queue and u.removed_at is null
    );
end
$$;

-- What is asked for, from the request: bounds narrowed to what the log has. Rows are recorded in about
-- the order of their positions; 512 of them say between which the instants lie, with a minute to
-- spare. A clock that was set back shows in these, unless within a 512th of the log.
create function replay_asked(p_filter jsonb) returns replays
language plpgsql stable
set search_path = tenure, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    r replays;
    v_first bigint;
    v_last bigint;
    v_low bigint;
    v_high bigint;
    slack constant interval := interval '1 minute';
begin
    r.since := p_filter ->> 'since';
    r.until := p_filter ->> 'until';
    r.tenant := p_filter ->> 'tenant';
    r.task_id := p_filter ->> 'task_id';
    r.entity_type := p_filter ->> 'entity_type';
    r.entity_id := p_filter ->> 'entity_id';
    r.destination := p_filter ->> 'destination';
    if jsonb_array_length(p_filter -> 'types') > 0 then
        select array_agg(t) into r.types from jsonb_array_elements_text(p_filter -> 'types') t;
    end if;
    r.order_key := case
        when r.task_id is not null then r.task_id
        when r.entity_type in ('task', 'node') then r.entity_id
        when r.entity_type = 'attempt' then
            (select a.task_id from attempts a where a.attempt_id = r.entity_id)
        end;
    select l.position into v_first from log l order by l.position limit 1;
    select l.position into v_last from log l order by l.position desc limit 1;
    r.from_position := greatest((p_filter ->> 'from_position')::bigint, v_first, 1);
    r.to_position := least((p_filter ->> 'to_position')::bigint, coalesce(v_last, 0));
    if r.from_position <= r.to_position and coalesce(r.since, r.until) is not null then
        with samples as materialized (
            select distinct found.position, found.recorded_at
            from generate_series(0, 511) n cross join lateral (
                select l.position, l.recorded_at from log l
                where l.position >= r.from_position + (r.to_position - r.from_position) * n / 512
                    and l.position <= r.to_position
                order by l.position limit 1
            ) found
        )
        select
            (
                select max(s.position) from samples s
                where s.position < coalesce(
                    (select min(e.position) from samples e where e.recorded_at >= r.since - slack),
                    r.to_position + 1)
            ),
            (
                select min(s.position) from samples s
                where s.position > coalesce(
                    (select max(e.position) from samples e where e.recorded_at < r.until + slack),
                    r.from_position - 1)
            )
        into v_low, v_high;
        if r.since is not null then
            r.from_position := greatest(r.from_position, v_low);
        end if;
        if r.until is not null then
            r.to_position := least(r.to_position, v_high);
        end if;
    end if;
    r.position := r.from_position - 1;
    return r;
end
$$;

-- What a replay would publish: its bounds, how many rows (exactly, or estimated from 40 pieces of the
-- log), the first of them among those looked at, the log's own beginning, and what consumers of the
-- queue remember. Changes nothing.
create function replay_preview(
    p_filter jsonb, p_queue text,
    out from_position bigint, out to_position bigint, out row_count bigint, out exact boolean,
    out oldest_recorded_at timestamptz, out sample json, out log_from_position bigint,
    out log_recorded_from timestamptz, out remembered_since timestamptz
)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    r replays := replay_asked(p_filter);
    pieces constant integer := 40;
    piece constant bigint := 1000;
    v_span bigint;
    v_looked_to bigint := replay_scan_end(r, r.position, r.to_position, 5000);
begin
    from_position := r.from_position;
    to_position := r.to_position;
    select l.position, l.recorded_at into log_from_position, log_recorded_from
    from log l order by l.position limit 1;
    v_span := greatest(r.to_position - r.from_position + 1, 0);
    if r.order_key is not null then
        select count(*) into row_count from (
            select from log l
            where l.order_key = r.order_key and l.position between r.from_position and r.to_position
                and replay_matches(r, l)
            limit 100001
        ) found;
        exact := row_count <= 100000;
    elsif v_span <= pieces * piece then
        select count(*) into row_count from log l
        where l.position between r.from_position and r.to_position and replay_matches(r, l);
        exact := true;
    else
        select count(l.position) * v_span / (pieces * piece) into row_count
        from generate_series(0, pieces - 1) n
        cross join lateral (select r.from_position + (v_span - piece) * n / (pieces - 1) as start) at
        cross join lateral (
            select l.position from log l
            where l.position >= at.start and l.position < at.start + piece
                and replay_matches(r, l)
        ) l;
        exact := false;
    end if;
    select json_agg(json_build_object(
            'position', first.position, 'recorded_at', first.recorded_at, 'tenant', first.tenant,
            'type', 'tenure.' || first.entity_type || '.' || first.next_state,
            'entity_id', first.entity_id, 'event_id', first.event_id,
            'destination', case when first.exchange = '' then first.routing_key end)
            order by first.position),
        min(first.recorded_at)
    into sample, oldest_recorded_at
    from (
        select l.* from log l
        where r.order_key is not null and l.order_key = r.order_key
            and l.position between r.from_position and r.to_position and replay_matches(r, l)
        union all
        select l.* from (
            select b.* from log b
            where r.order_key is null and b.position > r.position
                and b.position <= v_looked_to
            order by b.position
        ) l
        where replay_matches(r, l)
        limit 5
    ) first;
    if oldest_recorded_at is null then
        -- None among the first: at the earliest as old as the oldest row of the range.
        select greatest(l.recorded_at, r.since) into oldest_recorded_at from log l
        where l.position between r.from_position and r.to_position order by l.position limit 1;
    end if;
    sample := coalesce(sample, '[]');
    remembered_since := remembered_since(p_queue);
end
$$;

-- Begin a replay. Returns started; same (this id has begun with the same content); conflict (with
-- other content); null when the authority is not confirmed.
create function start_replay(
    p_id uuid, p_fingerprint text, p_queue text, p_filter jsonb, p_rate integer, p_forced boolean,
    p_expected bigint, p_expected_exactly boolean, p_reason text, p_actor text
) returns text
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
declare
    r replays;
    v_known text;
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    select e.fingerprint into v_known from replays e where e.replay_id = p_id;
    if found then
        return case when v_known = p_fingerprint then 'same' else 'conflict' end;
    end if;
    r := replay_asked(p_filter);
    r.replay_id := p_id;
    r.fingerprint := p_fingerprint;
    r.queue := p_queue;
    r.asked := p_filter;
    r.rate := p_rate;
    r.forced := p_forced;
    r.expected := p_expected;
    r.expected_exactly := p_expected_exactly;
    r.state := 'running';
    r.replayed := 0;
    r.held_back := 0;
    r.claim_token := 0;
    r.claimed_until := '-infinity';
    r.reason := p_reason;
    r.created_by := p_actor;
    r.created_at := clock_timestamp();
    r.moved_at := r.created_at;
    if r.from_position > r.to_position then
        r.state := 'completed';
        r.ended_at := r.created_at;
    end if;
    begin
        insert into replays select r.*;
    exception when unique_violation then
        select e.fingerprint into v_known from replays e where e.replay_id = p_id;
        return case when v_known = p_fingerprint then 'same' else 'conflict' end;
    end;
    insert into replay_changes values (p_id, r.created_at, 'started', p_actor, p_reason);
    if r.state = 'completed' then
        insert into replay_changes values (p_id, r.created_at, 'completed', 'relay', '');
    end if;
    return 'started';
end
$$;

-- Pause, resume or cancel a replay. Returns done; same (it is so already); ended; unknown; null when it
-- would go on while the authority is not confirmed. ``p_force``: it goes on also with what consumers may
-- have forgotten to know. Its relay hears of it at its next word.
create function change_replay(
    p_id uuid, p_change text, p_reason text, p_actor text, p_force boolean
) returns text
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
declare
    r replays;
    v_now timestamptz;
begin
    if p_change not in ('paused', 'resumed', 'cancelled') then
        raise exception 'a replay is not %', p_change using errcode = '22023';
    end if;
    if p_change = 'resumed' and confirmed_epoch() is null then
        return null;
    end if;
    select * into r from replays e where e.replay_id = p_id for no key update;
    if not found then
        return 'unknown';
    end if;
    v_now := clock_timestamp();
    if r.state = (case p_change when 'resumed' then 'running' else p_change end) then
        return 'same';
    elsif r.ended_at is not null then
        return 'ended';
    end if;
    case p_change
        when 'paused' then
            update replays set state = 'paused', pause_code = 'operator', pause_detail = p_reason
            where replay_id = p_id;
        when 'resumed' then
            update replays set state = 'running', pause_code = null, pause_detail = null,
                forced = forced or p_force
            where replay_id = p_id;
        else
            update replays set state = 'cancelled', ended_at = v_now, pause_code = null,
                pause_detail = null
            where replay_id = p_id;
    end case;
    insert into replay_changes values (p_id, v_now, p_change, p_actor, p_reason);
    return 'done';
end
$$;

-- Takes running replays that nobody holds, the oldest first, until ``relay`` holds ``want``; each with a
-- new token. A claim lasts for ``lease`` at a time.
create function replay_claim(relay uuid, want integer, lease interval)
returns table (
    replay_id uuid, claim_token bigint, "position" bigint, to_position bigint, queue text,
    rate integer, replayed bigint, held_back bigint
)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    held integer;
    found_free uuid[];
    clock timestamptz;
begin
    perform relay_lease_is_sane(lease);
    if relay is null then
        raise exception 'a claim needs a relay' using errcode = '22023';
    end if;
    select count(*) into held from replays r
    where r.relay_id = relay and r.claimed_until > clock_timestamp()
        and r.state in ('running', 'paused');
    select array_agg(f.replay_id) into found_free
    from (
        select r.replay_id from replays r
        where r.state = 'running' and (r.relay_id is null or r.claimed_until <= clock_timestamp())
        order by r.created_at
        limit greatest(want - held, 0)
        for no key update skip locked
    ) f;
    if found_free is null then
        return;
    end if;
    clock := clock_timestamp();
    return query
    update replays r
    set relay_id = relay, claim_token = r.claim_token + 1, claimed_until = clock + lease
    where r.replay_id = any (found_free) and r.state = 'running'
        and (r.relay_id is null or r.claimed_until <= clock)
    returning r.replay_id, r.claim_token, r.position, r.to_position, r.queue, r.rate, r.replayed,
        r.held_back;
end
$$;

-- How many running replays nobody holds: what an idle relay asks.
create function replay_unclaimed() returns integer
language sql stable security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
    select count(*)::integer from (
        select from replays r
        where r.state = 'running' and (r.relay_id is null or r.claimed_until <= clock_timestamp())
        limit 100
    ) free
$$;

-- The next rows of a replay after position ``after``: at most ``row_limit``, and none after the one
-- with which the bodies reach ``byte_limit``. ``scanned_to`` is in every row, and in at least one while
-- the claim is live: up to there nothing else matches. It stays where the live cursors are, and stops
-- before what consumers of the queue may have forgotten to know, unless that is forced. Rows that are
-- parked, and what waits behind them, have not been published: ``held`` says so.
create function replay_read(
    relay uuid, replay uuid, token bigint, after bigint, row_limit integer, byte_limit bigint
) returns table (
    "position" bigint, shard smallint, entity_type text, entity_id uuid, event_id uuid, body bytea,
    held boolean, scanned_to bigint, stop_code text, stop_detail text
)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    r replays;
    v_end bigint;
    v_remembered timestamptz;
begin
    select * into r from replays e
    where e.replay_id = replay and e.claim_token = token and e.relay_id = relay
        and e.claimed_until > clock_timestamp();
    if not found then
        return;
    end if;
    v_end := least(r.to_position, replay_horizon());
    if v_end <= after then
        return query select null::bigint, null::smallint, null::text, null::uuid, null::uuid,
            null::bytea, null::boolean, after, null::text, null::text;
        return;
    end if;
    v_end := replay_scan_end(r, after, v_end, 5000);
    if not r.forced then
        v_remembered := remembered_since(r.queue);
    end if;
    return query
    with found as materialized (
        select b.*
        from (
            select f.*, sum(octet_length(f.body)) over by_position - octet_length(f.body) as before,
                row_number() over by_position as number
            from (
                select l.* from log l
                where r.order_key is null and l.position > after and l.position <= v_end
                    and replay_matches(r, l)
                union all
                select l.* from log l
                where r.order_key is not null and l.order_key = r.order_key
                    and l.position > after and l.position <= v_end and replay_matches(r, l)
                order by position
                limit row_limit
            ) f
            window by_position as (order by f.position)
        ) b
        where b.before < byte_limit
    ),
    reached as (
        -- Fewer than asked for, in rows and in bytes: then there are no more up to the end.
        select case
            when bool_or(f.recorded_at < v_remembered)
            then min(f.position) filter (where f.recorded_at < v_remembered) - 1
            when count(*) >= row_limit or sum(octet_length(f.body)) >= byte_limit
            then max(f.position) else v_end end as position,
            min(f.recorded_at) filter (where f.recorded_at < v_remembered) as forgotten
        from found f
    )
    select f.position, f.shard, f.entity_type, f.entity_id, f.event_id, f.body,
        -- Its stream is held from an earlier row on, or it is set aside itself.
        exists (
            select from parked p
            where p.stream_type = f.entity_type and p.stream_id = f.entity_id
                and p.position <= f.position and (p.holds or p.position = f.position)
        ),
        reached.position,
        case when reached.forgotten is not null then 'behind_dedupe_retention' end,
        format('recorded at %s; consumers of %s remember since %s',
            reached.forgotten, r.queue, v_remembered)
    from reached left join found f on f.position <= reached.position
    order by f.position;
end
$$;

-- Moves replays under live claims, never backwards, prolongs the claims and completes what is done;
-- returns the state of each that is still held. Numbers are totals, so that saying it twice counts once.
-- What a paused or cancelled replay has published by then is still noted.
create function replay_advance(
    relay uuid, replay_ids uuid[], claim_tokens bigint[], positions bigint[],
    replayed_totals bigint[], held_totals bigint[], lease interval
) returns table (replay_id uuid, state text)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    clock timestamptz;
begin
    perform relay_lease_is_sane(lease);
    perform 1 from replays r where r.replay_id = any (replay_ids)
    order by r.replay_id for no key update;
    clock := clock_timestamp();
    return query
    with moved as (
        update replays r
        set position = greatest(r.position, given.position),
            replayed = greatest(r.replayed, given.replayed),
            held_back = greatest(r.held_back, given.held_back),
            moved_at = case when given.position > r.position then clock else r.moved_at end,
            claimed_until = clock + lease,
            state = case when r.state = 'running' and given.position >= r.to_position
                then 'completed' else r.state end,
            ended_at = case when r.state = 'running' and given.position >= r.to_position
                then clock else r.ended_at end
        from unnest(replay_ids, claim_tokens, positions, replayed_totals, held_totals)
            given (replay_id, claim_token, position, replayed, held_back)
        where r.replay_id = given.replay_id and r.claim_token = given.claim_token
            and r.relay_id = relay and r.claimed_until > clock
        returning r.replay_id, r.state, r.ended_at
    ),
    ended as (
        insert into replay_changes
        select m.replay_id, clock, 'completed', 'relay', '' from moved m
        where m.state = 'completed' and m.ended_at = clock
    )
    select m.replay_id, m.state from moved m;
end
$$;

-- Gives claims back before they run out.
create function replay_release(relay uuid, replay_ids uuid[], claim_tokens bigint[])
returns setof uuid
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    perform 1 from replays r where r.replay_id = any (replay_ids)
    order by r.replay_id for no key update;
    return query
    update replays r
    set relay_id = null, claimed_until = '-infinity'
    from unnest(replay_ids, claim_tokens) given (replay_id, claim_token)
    where r.replay_id = given.replay_id and r.claim_token = given.claim_token
        and r.relay_id = relay
    returning r.replay_id;
end
$$;

-- Pauses a replay that cannot go on, and gives it back: somebody has to see to it and resume it.
-- Returns whether it was running under this claim.
create function replay_stop(relay uuid, replay uuid, token bigint, code text, detail text)
returns boolean
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
declare
    clock timestamptz;
begin
    perform 1 from replays r where r.replay_id = replay for no key update;
    clock := clock_timestamp();
    update replays r
    set state = 'paused', pause_code = code, pause_detail = detail, relay_id = null,
        claimed_until = '-infinity'
    where r.replay_id = replay and r.claim_token = token and r.relay_id = relay
        and r.claimed_until > clock and r.state = 'running';
    if not found then
        return false;
    end if;
    insert into replay_changes values (replay, clock, 'paused', 'relay', code || ': ' || detail);
    return true;
end
$$;
