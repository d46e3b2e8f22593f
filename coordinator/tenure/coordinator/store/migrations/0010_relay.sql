-- Claims and cursors of the relay. A claim gives one relay one shard for a time; its token is raised
-- by every change of hands. Each function locks its rows by shard, and reads the clock after that:
-- a claim that ran out while the call waited for a lock gives nothing.

create function relay_lease_is_sane(lease interval) returns void
language plpgsql stable set search_path = tenure, pg_temp as $$
begin
    if lease is null or lease <= interval '0' or lease > interval '5 minutes' then
        raise exception 'a claim for % is not in (0, 5 minutes]', lease using errcode = '22023';
    end if;
end
$$;

-- Relays that can publish now, as far as is known: each says so again before its time is over.
create table relays (
    relay_id uuid primary key,
    joined_at timestamptz not null,
    attends_until timestamptz not null
);

-- Says that ``relay`` takes part for the length of ``lease``. Returns how many relays do, and how many
-- of them joined before it: from these each works out the same shares (RELAY-03).
create function relay_attend(relay uuid, lease interval, out relays integer, out earlier integer)
language plpgsql security definer set search_path = tenure, pg_temp as $$
#variable_conflict use_column
declare
    clock timestamptz := clock_timestamp();
begin
    perform relay_lease_is_sane(lease);
    if relay is null then
        raise exception 'to attend takes a relay' using errcode = '22023';
    end if;
    -- Written a few times a lease only, since it is asked far more often.
    if not exists (
        select from tenure.relays r
        where r.relay_id = relay and r.attends_until > clock + lease * 0.6
    ) then
        insert into tenure.relays as r (relay_id, joined_at, attends_until)
        values (relay, clock, clock + lease)
        on conflict (relay_id) do update set
            joined_at = case when r.attends_until > clock then r.joined_at else clock end,
            attends_until = excluded.attends_until;
        -- Those that left without a word; whichever row somebody else has is theirs to delete.
        delete from tenure.relays r where r.relay_id = any(array(
            select gone.relay_id from tenure.relays gone
            where gone.attends_until < clock - interval '1 hour'
            for update skip locked
        ));
    end if;
    select count(*), count(*) filter (where (r.joined_at, r.relay_id) < (own.joined_at, own.relay_id))
    into relay_attend.relays, relay_attend.earlier
    from tenure.relays r, (select * from tenure.relays o where o.relay_id = relay) own
    where r.attends_until > clock or r.relay_id = relay;
end
$$;

-- Says that ``relay`` takes part no more, so that the others need not wait.
create function relay_leave(relay uuid) returns void
language plpgsql security definer set search_path = tenure, pg_temp as $$
begin
    delete from relays r where r.relay_id = relay;
end
$$;

-- Takes shards that nobody holds, until ``relay`` holds ``want``; returns what it took. A shard of
-- its own whose claim ran out is taken like any other, with a new token.
create function relay_claim(relay uuid, want integer, lease interval)
returns table (shard smallint, claim_token bigint, "position" bigint, parked integer)
language plpgsql security definer set search_path = tenure, pg_temp as $$
#variable_conflict use_column
declare
    held integer;
    found_free smallint[];
    clock timestamptz;
begin
    perform relay_lease_is_sane(lease);
    if relay is null then
        raise exception 'a claim needs a relay' using errcode = '22023';
    end if;
    select count(*) into held from relay_shards s
    where s.relay_id = relay and s.claimed_until > clock_timestamp();
    -- Rows that somebody else is changing are not free, or will be seen next time.
    select array_agg(f.shard) into found_free
    from (
        select s.shard from relay_shards s
        where s.relay_id is null or s.claimed_until <= clock_timestamp()
        order by s.shard
        limit greatest(want - held, 0)
        for no key update skip locked
    ) f;
    if found_free is null then
        return;
    end if;
    clock := clock_timestamp();
    return query
    update relay_shards s
    set relay_id = relay, claim_token = s.claim_token + 1, claimed_until = clock + lease
    where s.shard = any(found_free) and (s.relay_id is null or s.claimed_until <= clock)
    returning s.shard, s.claim_token, s.position, s.parked;
end
$$;

-- Prolongs claims that still hold; returns their shards. What is missing in the answer is lost.
create function relay_renew(relay uuid, shards smallint[], claim_tokens bigint[], lease interval)
returns setof smallint
language plpgsql security definer set search_path = tenure, pg_temp as $$
#variable_conflict use_column
declare
    clock timestamptz;
begin
    perform relay_lease_is_sane(lease);
    perform 1 from relay_shards s where s.shard = any(shards)
    order by s.shard for no key update;
    clock := clock_timestamp();
    return query
    update relay_shards s
    set claimed_until = clock + lease
    from unnest(shards, claim_tokens) given (shard, claim_token)
    where s.shard = given.shard and s.claim_token = given.claim_token
        and s.relay_id = relay and s.claimed_until > clock
    returning s.shard;
end
$$;

-- Gives claims back before they run out, so that another relay need not wait.
create function relay_release(relay uuid, shards smallint[], claim_tokens bigint[])
returns setof smallint
language plpgsql security definer set search_path = tenure, pg_temp as $$
#variable_conflict use_column
begin
    perform 1 from relay_shards s where s.shard = any(shards)
    order by s.shard for no key update;
    return query
    update relay_shards s
    set relay_id = null, claimed_until = '-infinity'
    from unnest(shards, claim_tokens) given (shard, claim_token)
    where s.shard = given.shard and s.claim_token = given.claim_token and s.relay_id = relay
    returning s.shard;
end
$$;

-- Of the given attempts those that have ended. A message to a node about such an attempt (its
-- assignment, or the request to cancel it) is void: nobody may act on it any more. The relay asks when
-- the node's queue is gone, so that what can never be routed does not hold up its shard.
create function relay_withdrawn(attempt_ids uuid[]) returns setof uuid
language plpgsql stable security definer set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
begin
    return query
    select a.attempt_id from attempts a
    where a.attempt_id = any(attempt_ids) and a.ended_at is not null;
end
$$;
