-- Limits (FLOW-01): how many tasks run at once, and how many start in a time.

-- What counts together: all tasks of a tenant, those of a type, those with one concurrency key, or those
-- of a type with each key by itself (the type '*': of every type). Nothing is counted in a row: what
-- runs is what is reserved, so that whatever ends an attempt, however it was lost, makes room.
create table limits (
    tenant text not null,
    scope text not null check (scope in ('tenant', 'type', 'key', 'each_key')),
    name text not null,                     -- the type or key; of a tenant empty
    max_running integer check (max_running >= 1),
    starts integer check (starts >= 1),     -- so many
    period_seconds integer check (period_seconds >= 1), -- in so long
    burst integer check (burst >= 1),       -- of which so many at once
    -- Rounded up, so that no more start than is stated.
    interval_microseconds bigint generated always as
        ((period_seconds::bigint * 1000000 + starts - 1) / starts) stored,
    set_by text not null,
    set_at timestamptz not null,
    primary key (tenant, scope, name),
    constraint limits_limit_something check (max_running is not null or starts is not null),
    constraint rates_are_whole check ((starts is null) = (period_seconds is null)
        and (starts is null) = (burst is null)),
    constraint parts_have_a_name check ((scope = 'tenant') = (name = ''))
);

-- Token buckets, each as the instant at which it is full again; a bucket without a row is full. Changed
-- under the lock of its limit's row.
create table limit_buckets (
    tenant text not null,
    scope text not null,
    name text not null,
    key text not null,                      -- of the limits for each key, else empty
    full_at timestamptz not null,
    primary key (tenant, scope, name, key)
) with (fillfactor = 50);
create index limit_buckets_by_time on limit_buckets (tenant, scope, name, full_at);

-- A tenant's limits, kept beside its facts, under the same version and lock.
alter table tenants add column limits json;

-- These, from their rows; null: none.
create function limits_of(p_tenant text) returns json
language sql stable security definer
set search_path = tenure, pg_temp
as $$
    select json_agg(json_build_object(
        'scope', l.scope, 'name', l.name, 'max_running', l.max_running,
        'interval', l.interval_microseconds, 'burst', l.burst) order by l.scope, l.name)
    from limits l where l.tenant = p_tenant
$$;

-- Whether a limit concerns a task of a type, with a key or without.
create function limit_concerns(p_scope text, p_name text, p_type text, p_key text) returns boolean
language sql immutable parallel safe
as $$
    select case p_scope
        when 'tenant' then true
        when 'type' then p_name = p_type
        when 'key' then p_name is not distinct from p_key
        else p_key is not null and p_name in (p_type, '*')
    end
$$;

-- What runs under a limit, of a task's type and key.
create function running_under(p_tenant text, p_scope text, p_name text, p_type text, p_key text)
returns bigint
language plpgsql stable
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
begin
    case p_scope
        when 'tenant' then
            return (select count(*) from reservations e where e.tenant = p_tenant);
        when 'type' then
            return (select count(*) from reservations e
                where e.tenant = p_tenant and e.type = p_type);
        else
            return (select count(*) from reservations e
                where e.tenant = p_tenant and e.concurrency_key = p_key
                  and (p_scope = 'key' or p_name in (e.type, '*')));
    end case;
end
$$;

-- State a limit, or state it anew. Returns false, and changes nothing, where the tenant has ``p_most``
-- others already; null when the authority is not confirmed.
create function set_limit(
    p_scope text, p_tenant text, p_name text, p_max_running integer, p_starts integer,
    p_period_seconds integer, p_burst integer, p_actor text, p_most integer
) returns boolean
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
declare
    v_now timestamptz;
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    v_now := lock_flow(p_tenant);
    if p_most <= (select count(*) from limits l
            where l.tenant = p_tenant and (l.scope, l.name) <> (p_scope, p_name)) then
        return false;
    end if;
    insert into limits (tenant, scope, name, max_running, starts, period_seconds, burst, set_by,
        set_at)
    values (p_tenant, p_scope, p_name, p_max_running, p_starts, p_period_seconds, p_burst, p_actor,
        v_now)
    on conflict (tenant, scope, name) do update set
        max_running = excluded.max_running, starts = excluded.starts,
        period_seconds = excluded.period_seconds, burst = excluded.burst, set_by = excluded.set_by,
        set_at = excluded.set_at;
    insert into fact_changes values (v_now, p_actor, p_tenant, 'flow', p_scope || ' ' || p_name,
        json_build_object('max_running', p_max_running, 'starts', p_starts,
            'period_seconds', p_period_seconds, 'burst', p_burst));
    update tenants e set version = e.version + 1, limits = limits_of(p_tenant)
    where e.tenant = p_tenant;
    return true;
end
$$;

-- Take a limit back. Returns whether it was stated; null when the authority is not confirmed.
create function remove_limit(p_scope text, p_tenant text, p_name text, p_actor text) returns boolean
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    perform lock_flow(p_tenant);
    delete from limits l where l.tenant = p_tenant and l.scope = p_scope and l.name = p_name;
    if not found then
        return false;
    end if;
    delete from limit_buckets b
    where b.tenant = p_tenant and b.scope = p_scope and b.name = p_name;
    insert into fact_changes values (clock_timestamp(), p_actor, p_tenant, 'flow',
        p_scope || ' ' || p_name, json_build_object('limited', false));
    update tenants e set version = e.version + 1, limits = limits_of(p_tenant)
    where e.tenant = p_tenant;
    return true;
end
$$;

-- Forget buckets that are full again, at most so many. Says nothing about any start: a bucket without
-- a row is full.
create function forget_full_buckets(p_limit integer) returns void
language sql volatile security definer
set search_path = tenure, pg_temp
as $$
    delete from limit_buckets b
    where b.full_at <= clock_timestamp() and (b.tenant, b.scope, b.name, b.key) in (
        select f.tenant, f.scope, f.name, f.key from limits l
        join limit_buckets f on f.tenant = l.tenant and f.scope = l.scope and f.name = l.name
        where l.scope = 'each_key' and f.full_at <= (select clock_timestamp())
        limit p_limit)
$$;
