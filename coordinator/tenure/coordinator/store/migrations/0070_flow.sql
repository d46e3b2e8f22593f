-- Flow control (FLOW-01): which scopes are paused, by whom, why and until when.

-- A tenant of '*' is every tenant. A pause is over at ``until`` by itself; the row stays until the scope
-- is paused or resumed again. What was done and by whom is kept in fact_changes.
create table pauses (
    scope text not null check (scope in ('all', 'tenant', 'type', 'node', 'label')),
    tenant text not null,
    name text not null,                     -- of the type or node, NAME=VALUE of the label, else empty
    until timestamptz,                      -- null: until somebody resumes it
    reason text not null,
    paused_by text not null,
    paused_at timestamptz not null,
    primary key (tenant, scope, name),
    constraint everything_is_of_nobody check ((scope = 'all') = (tenant = '*')),
    constraint parts_have_a_name check ((scope in ('all', 'tenant')) = (name = ''))
);

-- The pauses that a tenant's tasks are under, kept beside its facts, under the same version and lock.
alter table tenants add column pauses json;

-- These pauses, from their rows; null: none. Instants in microseconds.
create function pauses_of(p_tenant text) returns json
language sql stable security definer
set search_path = tenure, pg_temp
as $$
    select json_agg(json_build_object(
        'scope', f.scope, 'tenant', f.tenant, 'name', f.name,
        'until', (extract(epoch from f.until) * 1000000)::bigint, 'reason', f.reason,
        'paused_by', f.paused_by, 'paused_at', (extract(epoch from f.paused_at) * 1000000)::bigint
        ) order by f.tenant, f.scope, f.name)
    from pauses f where f.tenant in (p_tenant, '*')
$$;

-- Before a change of flow: waits for what is being given out to the tenants that it concerns, and lets
-- no tenant appear meanwhile.
create function lock_flow(p_tenant text) returns timestamptz
language plpgsql volatile
set search_path = tenure, pg_temp
as $$
begin
    lock table tenants in share row exclusive mode;
    perform 1 from tenants e where p_tenant in (e.tenant, '*') order by e.tenant for update;
    return clock_timestamp();
end
$$;

-- After it: what was decided before is decided anew.
create function flow_changed(p_tenant text) returns void
language sql volatile
set search_path = tenure, pg_temp
as $$
    update tenants e set version = e.version + 1, pauses = pauses_of(e.tenant)
    where p_tenant in (e.tenant, '*')
$$;

-- Pause a scope, or say anew until when and why. Returns whether ``p_until`` is ahead, without which
-- nothing changes; null when the authority is not confirmed.
create function set_pause(
    p_scope text, p_tenant text, p_name text, p_until timestamptz, p_reason text, p_actor text
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
    if p_until <= v_now then
        return false;
    end if;
    insert into pauses (scope, tenant, name, until, reason, paused_by, paused_at)
    values (p_scope, p_tenant, p_name, p_until, p_reason, p_actor, v_now)
    on conflict (tenant, scope, name) do update set
        until = excluded.until, reason = excluded.reason, paused_by = excluded.paused_by,
        paused_at = excluded.paused_at;
    insert into fact_changes values (v_now, p_actor, p_tenant, 'flow', p_scope || ' ' || p_name,
        json_build_object('paused', true, 'until', p_until, 'reason', p_reason));
    perform flow_changed(p_tenant);
    return true;
end
$$;

-- Resume a scope. Returns whether it was paused; null when the authority is not confirmed.
create function end_pause(p_scope text, p_tenant text, p_name text, p_actor text) returns boolean
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    perform lock_flow(p_tenant);
    delete from pauses f where f.tenant = p_tenant and f.scope = p_scope and f.name = p_name;
    if not found then
        return false;
    end if;
    insert into fact_changes values (clock_timestamp(), p_actor, p_tenant, 'flow',
        p_scope || ' ' || p_name, json_build_object('paused', false));
    perform flow_changed(p_tenant);
    return true;
end
$$;
