-- What the scheduler judges by: what tenants may use, where nodes are and what they reach, under which
-- profiles tasks were submitted, and which programs run them.

-- What a tenant may use. ``version`` is raised by every change; the account is a row of its own, so
-- that spending changes no version. A null is not stated, and fails closed; '*' and budget_unlimited
-- state the absence of a limit.
create table tenants (
    tenant text primary key check (tenant ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    version bigint not null default 1,
    state text not null default 'authorized' check (state in ('authorized', 'suspended')),
    weight integer not null default 1 check (weight between 1 and 1000),
    node_pools text[],
    locations text[],
    networks text[],
    budget_minor bigint check (budget_minor >= 0),
    budget_unlimited boolean not null default false,
    currency text check (currency ~ '^[A-Z]{3}$'),
    changed_at timestamptz not null default clock_timestamp(),
    changed_by text not null,
    constraint one_word_on_the_budget check (budget_minor is null or not budget_unlimited),
    constraint budgets_have_a_currency check (budget_minor is null or currency is not null)
);

-- In minor units of the tenant's currency: held by open attempts, spent by delivered ones.
create table accounts (
    tenant text primary key references tenants,
    held_minor bigint not null default 0 check (held_minor >= 0),
    spent_minor bigint not null default 0 check (spent_minor >= 0)
) with (fillfactor = 50);

-- Newcomers meet no limit.
insert into tenants (tenant, node_pools, locations, networks, budget_unlimited, changed_by)
values ('default', '{*}', '{*}', '{*}', true, 'migration');
insert into accounts (tenant) values ('default');

-- Workload profiles. A row never changes: its digest stands for its content.
create table profiles (
    tenant text not null,
    digest bytea not null check (octet_length(digest) = 32),
    type text not null,
    content json not null,
    effects text not null check (effects in ('none', 'guarded', 'idempotent', 'unguarded')),
    max_attempts integer not null check (max_attempts >= 1),
    cpu_millis integer not null check (cpu_millis >= 0),
    memory_bytes bigint not null check (memory_bytes >= 0),
    locations text[],
    networks text[] not null,
    labels json not null,
    match text not null check (match in ('compatible', 'exact')),
    cost_minor bigint not null check (cost_minor >= 0),
    operations text[] not null,             -- patterns: what its leases permit (LEASE-11)
    objects text[] not null,
    registered_at timestamptz not null,
    primary key (tenant, digest)
);
create index profiles_of_type on profiles (tenant, type, registered_at);
create trigger profiles_are_immutable before update or delete on profiles
    for each row execute function refuse_change();

-- Programs that nodes run or ran, by the digest of their bytes (OPS-02).
create table executables (
    tenant text not null,
    digest bytea not null,
    name text not null,
    version text not null,
    inventory_digest bytea,
    state text not null default 'registered' check (state in ('registered', 'withdrawn')),
    registered_at timestamptz not null,
    seen_at timestamptz not null,
    changed_by text,
    primary key (tenant, digest)
);

-- Who stated what, and when. Appended with each change, never read by decisions.
create table fact_changes (
    at timestamptz not null,
    actor text not null,
    tenant text not null,
    subject text not null check (subject in
        ('tenant', 'node', 'executable', 'flow', 'subscription', 'dead_letter')),
    subject_id text not null,
    change json not null
);
create index fact_changes_of_subject on fact_changes (tenant, subject, subject_id, at);

-- What counts of a node: its own word, an operator's before it; labels one by one.
create function facts_of(p_own jsonb, p_stated jsonb) returns jsonb
language sql immutable parallel safe
set search_path = tenure, pg_temp
as $$
    select p_own || p_stated || jsonb_build_object('labels',
        coalesce(p_own -> 'labels', '{}') || coalesce(p_stated -> 'labels', '{}'))
$$;

-- Profiles as declared, and each the one that its type's submissions are frozen under from now on.
create function register_profiles(p_declared task_type_upsert[], p_at timestamptz) returns void
language sql volatile
set search_path = tenure, pg_temp
as $$
    insert into profiles (tenant, digest, type, content, effects, max_attempts, cpu_millis,
        memory_bytes, locations, networks, labels, match, cost_minor, operations,
        objects, registered_at)
    select distinct on (w.tenant, w.profile_digest) w.tenant, w.profile_digest, w.name, w.content,
        w.effects, w.max_attempts, w.cpu_millis, w.memory_bytes, w.locations, w.networks, w.labels,
        w.match, w.cost_minor, w.operations, w.objects, p_at
    from unnest(p_declared) w
    order by w.tenant, w.profile_digest
    on conflict do nothing;
    insert into task_types (tenant, name, profile_digest, input_schema, output_schema,
        registered_at)
    select distinct on (w.tenant, w.name) w.tenant, w.name, w.profile_digest, w.input_schema,
        w.output_schema, p_at
    from unnest(p_declared) w
    order by w.tenant, w.name, w.item desc
    on conflict (tenant, name) do update set
        profile_digest = excluded.profile_digest, input_schema = excluded.input_schema,
        output_schema = excluded.output_schema, registered_at = excluded.registered_at;
$$;

-- Profiles before any node runs them, with the program that makes them if it is known. Returns false
-- when the authority is not confirmed.
create function push_profiles(p_declared task_type_upsert[], p_tenant text, p_digest bytea,
    p_name text, p_version text, p_inventory_digest bytea) returns boolean
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
begin
    if confirmed_epoch() is null then
        return false;
    end if;
    if p_digest is not null then
        insert into executables (tenant, digest, name, version, inventory_digest, registered_at,
            seen_at)
        values (p_tenant, p_digest, p_name, p_version, p_inventory_digest, clock_timestamp(),
            clock_timestamp())
        on conflict do nothing;
    end if;
    perform register_profiles(p_declared, clock_timestamp());
    return true;
end
$$;

-- Notice which tasks' time has come, so that they are found among those that wait; at most so many.
-- Changes nothing that a decision reads. Returns how many there were.
create function ripen(p_limit integer) returns integer
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
declare
    v_due uuid[];
begin
    v_due := array(
        select t.task_id from tasks t
        where t.state = 'open' and t.current_attempt_id is null and not t.ripe
            and t.not_before <= (select clock_timestamp())
        order by t.not_before
        limit p_limit);
    if cardinality(v_due) = 0 or confirmed_epoch() is null then
        return 0;
    end if;
    -- What somebody changes at this moment is looked at again next time.
    update tasks t set ripe = true
    where t.task_id = any (array(
            select w.task_id from tasks w
            where w.task_id = any (v_due) and w.state = 'open' and not w.ripe
            order by w.task_id for no key update skip locked));
    return cardinality(v_due);
end
$$;

-- State facts about a tenant, new or known. ``p_change`` holds the columns to set, as JSON: null
-- takes a fact back. Returns false when the authority is not confirmed.
create function set_tenant(p_tenant text, p_change jsonb, p_actor text) returns boolean
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
declare
    v_row tenants;
begin
    if confirmed_epoch() is null then
        return false;
    end if;
    insert into tenants (tenant, changed_by) values (p_tenant, p_actor) on conflict do nothing;
    insert into accounts (tenant) values (p_tenant) on conflict do nothing;
    -- Waits for what is being given out by the facts as they are.
    select * into v_row from tenants where tenant = p_tenant for update;
    v_row := jsonb_populate_record(v_row, p_change);
    update tenants set
        version = version + 1, state = v_row.state, weight = v_row.weight,
        node_pools = v_row.node_pools, locations = v_row.locations, networks = v_row.networks,
        budget_minor = v_row.budget_minor, budget_unlimited = v_row.budget_unlimited,
        currency = v_row.currency, pauses = pauses_of(p_tenant), limits = limits_of(p_tenant),
        changed_at = clock_timestamp(), changed_by = p_actor
    where tenant = p_tenant;
    insert into fact_changes values (clock_timestamp(), p_actor, p_tenant, 'tenant', p_tenant,
        p_change::json);
    return true;
end
$$;

-- State facts about a node, present or to come, before what it states itself. ``p_change`` as above;
-- null takes an operator's word back. Returns false when the authority is not confirmed.
create function set_node_facts(p_tenant text, p_node_id text, p_change jsonb, p_actor text)
returns boolean
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
declare
    v_incarnation uuid;
    v_stated jsonb;
begin
    if confirmed_epoch() is null then
        return false;
    end if;
    insert into nodes (tenant, node_id) values (p_tenant, p_node_id) on conflict do nothing;
    select o.incarnation, o.stated_facts into v_incarnation, v_stated
    from nodes o where o.tenant = p_tenant and o.node_id = p_node_id
    for no key update;
    v_stated := jsonb_strip_nulls(v_stated || p_change || jsonb_build_object('labels',
        coalesce(v_stated -> 'labels', '{}') || coalesce(p_change -> 'labels', '{}')));
    update nodes set stated_facts = v_stated where tenant = p_tenant and node_id = p_node_id;
    update incarnations n set version = n.version + 1, facts = facts_of(n.own_facts, v_stated)
    where n.incarnation = v_incarnation;
    insert into fact_changes values (clock_timestamp(), p_actor, p_tenant, 'node', p_node_id,
        p_change::json);
    return true;
end
$$;

-- Withdraw a program, or register it again: its nodes take nothing while it is withdrawn. Returns how
-- many nodes run it now; null when it is not known or the authority not confirmed.
create function set_executable(p_tenant text, p_digest bytea, p_state text, p_actor text)
returns integer
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
declare
    v_nodes integer;
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    perform 1 from incarnations n
    where n.tenant = p_tenant and n.state <> 'gone' and n.executable_digest = p_digest
    order by n.incarnation
    for no key update;
    update executables set state = p_state, changed_by = p_actor
    where tenant = p_tenant and digest = p_digest;
    if not found then
        return null;
    end if;
    -- Also those that registered while the row was waited for.
    update incarnations n set version = n.version + 1, executable_withdrawn = p_state = 'withdrawn'
    where n.tenant = p_tenant and n.state <> 'gone' and n.executable_digest = p_digest;
    get diagnostics v_nodes = row_count;
    insert into fact_changes values (clock_timestamp(), p_actor, p_tenant, 'executable',
        encode(p_digest, 'hex'), json_build_object('state', p_state));
    return v_nodes;
end
$$;
