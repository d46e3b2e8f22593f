-- Subscriptions: which events reach which consumer's queue. Declared on the broker by coordinators, read
-- by relays: an event that matches a subscription is published only when it reached a queue.

create table subscriptions (
    tenant text,                            -- null: events of every tenant
    name text not null,
    queue text not null unique,
    patterns text[] not null,               -- binding keys on the events exchange
    former_patterns text[] not null default '{}', -- bound before it was changed: to be unbound
    dedupe_retention interval not null,     -- how long its consumers remember ids of events
    created_at timestamptz not null,
    created_by text not null,
    changed_at timestamptz not null,
    changed_by text not null,
    removed_at timestamptz,                 -- its queue is to be deleted; the row is its memory
    constraint subscriptions_have_one_name unique nulls not distinct (tenant, name),
    constraint subscriptions_ask_for_something check (cardinality(patterns) > 0),
    constraint consumers_remember_something check (dedupe_retention > interval '0')
);

-- Subscribe, or change what was subscribed to. Saying the same again changes nothing. Returns false when
-- the authority is not confirmed.
create function set_subscription(
    p_tenant text, p_name text, p_queue text, p_patterns text[], p_dedupe_retention interval,
    p_actor text
) returns boolean
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
declare
    v_old subscriptions;
begin
    if confirmed_epoch() is null then
        return false;
    end if;
    lock table subscriptions in share row exclusive mode;
    select * into v_old from subscriptions u
    where u.tenant is not distinct from p_tenant and u.name = p_name;
    if v_old.removed_at is null and v_old.patterns = p_patterns
        and v_old.dedupe_retention = p_dedupe_retention
    then
        return true;
    end if;
    insert into subscriptions as u (tenant, name, queue, patterns, dedupe_retention,
        created_at, created_by, changed_at, changed_by)
    values (p_tenant, p_name, p_queue, p_patterns, p_dedupe_retention,
        clock_timestamp(), p_actor, clock_timestamp(), p_actor)
    on conflict (tenant, name) do update set
        patterns = excluded.patterns,
        former_patterns = array(
            select key from unnest(u.former_patterns || u.patterns) key
            except select key from unnest(excluded.patterns) key),
        dedupe_retention = excluded.dedupe_retention,
        created_at = case when u.removed_at is null then u.created_at else excluded.created_at end,
        created_by = case when u.removed_at is null then u.created_by else excluded.created_by end,
        changed_at = excluded.changed_at, changed_by = excluded.changed_by, removed_at = null;
    insert into fact_changes values (clock_timestamp(), p_actor, coalesce(p_tenant, '*'),
        'subscription', p_name, json_build_object('patterns', p_patterns,
            'dedupe_retention_seconds', extract(epoch from p_dedupe_retention)));
    return true;
end
$$;

-- End a subscription. Returns whether there was one; null when the authority is not confirmed.
create function remove_subscription(p_tenant text, p_name text, p_actor text) returns boolean
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    update subscriptions u
    set removed_at = clock_timestamp(), changed_at = clock_timestamp(), changed_by = p_actor
    where u.tenant is not distinct from p_tenant and u.name = p_name and u.removed_at is null;
    if not found then
        return false;
    end if;
    insert into fact_changes values (clock_timestamp(), p_actor, coalesce(p_tenant, '*'),
        'subscription', p_name, json_build_object('removed', true));
    return true;
end
$$;
