-- Compare-and-append: the only way to change the authority's state.
--
-- One call carries many items; each item is applied whole or not at all. The call locks what the
-- items name (tasks, nodes, incarnations, tenants, accounts, limits, rows of the intake: each by id), reads the clock after the
-- last row lock, looks up command ids before every other guard, checks each item's guards, applies the
-- items whose guards hold and appends their events as its last statement, under the append lock. Its
-- answer is two small arrays, so that nothing waits for the client's socket before the commit.

create type commit_item as (
    command_id uuid,            -- null: not stored (renewals, which only renew again)
    tenant text,
    fingerprint bytea,
    outcome text,
    reply json,
    -- guards: versions of the rows that the decision read
    epoch integer,
    task_id uuid,
    task_version bigint,        -- null: the task must not exist
    attempt_id uuid,
    attempt_version bigint,
    incarnation uuid,
    incarnation_version bigint, -- null: the incarnation must not exist
    node_id text,               -- the item changes the node's incarnations
    node_incarnation uuid,      -- expected current one
    content_digest bytea,       -- the attempt has no receipt with this content
    -- guards: time bounds, judged against the clock read after the locks
    lease_live boolean,
    lease_over boolean,
    not_before_passed boolean,
    deadline_open boolean,
    deadline_passed boolean,
    new_deadline timestamptz,   -- of a task that the item creates
    seen_within bigint,         -- microseconds since the incarnation was last heard of
    intake_id bigint,           -- guard: the row still waits
    policy_version integer,     -- guard: the policy in force
    tenant_version bigint,      -- guard: of the item's tenant
    pause_over timestamptz,     -- guard: a pause that ends then is over
    fleet text,                 -- guard: active incarnations of the tenant, each ID:VERSION, by id
    node_quarantined boolean,   -- guard: whether the node is
    quarantine text,            -- why the node becomes so; empty: it is let back
    quarantined_by text,
    silent_for bigint,          -- guard: microseconds that the incarnation was not heard of
    review text,                -- outcome of its health review; empty: one is opened
    review_by text,
    review_message text
);
create type task_insert as (
    item integer, task_id uuid, tenant text, type text, input json, priority smallint,
    not_before timestamptz, deadline timestamptz, effects text, max_attempts integer,
    cpu_millis integer, memory_bytes bigint, profile_digest bytea,
    retry_of uuid, head_start bigint, concurrency_key text, traceparent text, scope json
);
create type task_update as (
    item integer, task_id uuid, state text, reason text, message text, sequence bigint,
    generation bigint, current_attempt_id uuid, failures integer, losses integer,
    not_before timestamptz, delay_microseconds bigint, cancel_requested boolean,
    cancel_delivered boolean, rejected_by uuid[],
    -- null: as they are
    profile_digest bytea, effects text, max_attempts integer, cpu_millis integer,
    memory_bytes bigint
);
create type attempt_insert as (
    item integer, attempt_id uuid, task_id uuid, tenant text, ordinal bigint, node_id text,
    incarnation uuid, lease_id uuid, fencing_token bigint, policy_version integer,
    lease_microseconds bigint, scope json, dispatch_event_id uuid, slots integer,
    cpu_millis integer, memory_bytes bigint, cost_minor bigint, decision json,
    type text, concurrency_key text
);
create type attempt_update as (
    item integer, attempt_id uuid, state text, reason text, message text, sequence bigint,
    retry_delay_microseconds bigint, ends boolean
);
create type lease_renewal as (item integer, attempt_id uuid, renewed_by text);
create type receipt_insert as (
    item integer, receipt_id uuid, tenant text, task_id uuid, attempt_id uuid, node_id text,
    incarnation uuid, code text, state_version bigint, generation bigint, fencing_token bigint,
    content_digest bytea, output json, enforced json
);
create type incarnation_insert as (
    item integer, incarnation uuid, tenant text, node_id text, queue text, software text,
    protocol_version integer, slots integer, cpu_millis integer, memory_bytes bigint,
    task_types text[], profile_digests bytea[], type_effects text[], own_facts jsonb,
    executable_name text, executable_version text, executable_digest bytea, inventory_digest bytea,
    state text, type_concurrency integer[]
);
create type incarnation_update as (item integer, incarnation uuid, state text, sequence bigint);
create type task_type_upsert as (
    item integer, tenant text, name text, input_schema json, output_schema json,
    profile_digest bytea, content json, effects text, max_attempts integer, cpu_millis integer,
    memory_bytes bigint, locations text[], networks text[], labels json, match text,
    cost_minor bigint, operations text[], objects text[]
);
create type event_append as (
    item integer, shard smallint, order_key uuid, tenant text, entity_type text, entity_id uuid,
    attempt_id uuid, epoch integer, sequence bigint, event_id uuid, next_state text, copy boolean,
    exchange text, routing_key text, required boolean, body bytea
);
create type intake_update as (
    item integer, intake_id bigint, state text, code text, message text
);

-- Epoch of the authority when the running server is the one it was opened on and no history is proven
-- to be lost, else null: the timeline comes from the current WAL file's name, which changes at once with a promotion.
create function confirmed_epoch() returns integer
language sql stable security definer set search_path = tenure, pg_temp
as $$
    select epoch from authority
    where lost_at is null
      and system_identifier = (select system_identifier from pg_control_system())
      and timeline = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
$$;

-- Outcomes per item: 0 applied, 1 a guard did not hold (load and decide again), 2 seen before with
-- the same content, 3 seen before with other content, 4 the authority is not confirmed.
create function commit_batch(
    p_items commit_item[],
    p_task_inserts task_insert[],
    p_task_updates task_update[],
    p_attempt_inserts attempt_insert[],
    p_attempt_updates attempt_update[],
    p_lease_renewals lease_renewal[],
    p_receipts receipt_insert[],
    p_incarnation_inserts incarnation_insert[],
    p_incarnation_updates incarnation_update[],
    p_task_types task_type_upsert[],
    p_events event_append[],
    p_seen uuid[],
    p_intake intake_update[],
    out outcomes smallint[],
    out decided timestamptz[],
    out clock timestamptz
)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
-- A plan made while the tables were empty must not scan them for ever. Such plans suit batches of
-- every size, so none is ever made for one call: with small batches that would cost more than the call.
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_epoch integer;
    v_repeats boolean;
    v_policy integer;
    v_stored uuid[];
    v_expected integer;
    v_held jsonb := '{}';
    v_slots bigint[] := '{}';
    v_cpu bigint[] := '{}';
    v_memory bigint[] := '{}';
    v_limited boolean := false;
    v_types jsonb := '{}';
    v_begun jsonb := '{}';
    v_with_it jsonb;
    v_running bigint;
    v_full_at timestamptz;
    v_fits boolean;
    r record;
    l record;
begin
    -- The net under the guards: what changes a row has to name it, and the version that it had. Whoever
    -- leaves that out is no caller of ours.
    if exists (
        select from unnest(p_task_updates) w
        where (p_items[w.item]).task_id is distinct from w.task_id
            or (p_items[w.item]).task_version is null
        union all
        select from unnest(p_attempt_inserts) w
        where (p_items[w.item]).task_id is distinct from w.task_id
            or (p_items[w.item]).task_version is null
            or (p_items[w.item]).incarnation is distinct from w.incarnation
            or (p_items[w.item]).incarnation_version is null
            or (p_items[w.item]).tenant is distinct from w.tenant
        union all
        select from unnest(p_attempt_updates) w
        where (p_items[w.item]).attempt_id is distinct from w.attempt_id
            or (p_items[w.item]).attempt_version is null
        union all
        select from unnest(p_lease_renewals) w
        where (p_items[w.item]).attempt_id is distinct from w.attempt_id
            or (p_items[w.item]).attempt_version is null
        union all
        select from unnest(p_receipts) w
        where (p_items[w.item]).attempt_id is distinct from w.attempt_id
            or (p_items[w.item]).attempt_version is null
            or (p_items[w.item]).tenant is distinct from w.tenant
        union all
        select from unnest(p_incarnation_inserts) w
        where (p_items[w.item]).node_id is distinct from w.node_id
            or (p_items[w.item]).tenant is distinct from w.tenant
        union all
        select from unnest(p_incarnation_updates) w
        where (p_items[w.item]).node_id is null
            or w.incarnation is distinct from (p_items[w.item]).node_incarnation
                and (w.incarnation is distinct from (p_items[w.item]).incarnation
                    or (p_items[w.item]).incarnation_version is null)
        union all
        select from unnest(p_task_inserts) w
        where (p_items[w.item]).tenant is distinct from w.tenant
        union all
        select from unnest(p_intake) w
        where (p_items[w.item]).intake_id is distinct from w.intake_id
        union all
        select from unnest(p_events) w
        where (p_items[w.item]).tenant is distinct from w.tenant
    ) then
        raise exception 'a write is covered by no guard' using errcode = 'TN012';
    end if;

    -- Locks, each kind in the order of its ids.
    perform 1 from tasks t
    where t.task_id = any (array(select i.task_id from unnest(p_items) i))
    order by t.task_id
    for no key update;

    if exists (select 1 from unnest(p_items) i where i.node_id is not null) then
        insert into nodes (tenant, node_id)
        select distinct i.tenant, i.node_id from unnest(p_items) i
        where i.node_id is not null and confirmed_epoch() is not null
        order by i.tenant, i.node_id
        on conflict do nothing;
        perform 1 from nodes n
        join (select distinct i.tenant, i.node_id from unnest(p_items) i
              where i.node_id is not null) k using (tenant, node_id)
        order by n.tenant, n.node_id
        for no key update of n;
    end if;

    perform 1 from incarnations n
    where n.incarnation = any (array(
        select i.incarnation from unnest(p_items) i where i.incarnation is not null
        union
        select a.incarnation from attempts a
        where a.attempt_id = any (array(
            select u.attempt_id from unnest(p_attempt_updates) u where u.ends))
        union
        select unnest(p_seen)))
    order by n.incarnation
    for no key update;

    -- What a tenant may use does not change while something is given out by it; its account changes
    -- only where something costs.
    if cardinality(p_attempt_inserts) > 0 then
        perform 1 from tenants e
        where e.tenant = any (array(
            select i.tenant from unnest(p_items) i where i.tenant_version is not null))
        order by e.tenant
        for key share;
    end if;
    perform 1 from accounts c
    where c.tenant = any (array(
        select w.tenant from unnest(p_attempt_inserts) w where w.cost_minor > 0
        union
        select e.tenant from reservations e
        where e.cost_minor > 0 and e.attempt_id = any (array(
            select u.attempt_id from unnest(p_attempt_updates) u where u.ends))))
    order by c.tenant
    for no key update;

    -- What runs and what starts under a limit is counted by one commit at a time.
    if cardinality(p_attempt_inserts) > 0 then
        perform 1 from limits x
        where x.tenant = any (array(select w.tenant from unnest(p_attempt_inserts) w))
          and exists (
            select from unnest(p_attempt_inserts) w
            where w.tenant = x.tenant
              and limit_concerns(x.scope, x.name, w.type, w.concurrency_key))
        order by x.tenant, x.scope, x.name
        for no key update;
        v_limited := found;
    end if;

    if cardinality(p_intake) > 0 then
        perform 1 from intake q
        where q.intake_id = any (array(select i.intake_id from unnest(p_items) i))
        order by q.intake_id
        for no key update;
    end if;

    -- A profile that a task is moved to does not go meanwhile (see remove_old_profiles).
    if exists (select from unnest(p_task_updates) w where w.profile_digest is not null) then
        perform 1 from profiles p
        where (p.tenant, p.digest) in (
            select (p_items[w.item]).tenant, w.profile_digest from unnest(p_task_updates) w)
        order by p.tenant, p.digest
        for key share;
        if exists (
            select from unnest(p_task_updates) w
            where w.profile_digest is not null and not exists (
                select from profiles p
                where p.tenant = (p_items[w.item]).tenant and p.digest = w.profile_digest))
        then
            raise exception 'a profile that a task is moved to is gone' using errcode = '23503';
        end if;
    end if;

    -- The one clock, after the last row lock (LEASE-05).
    clock := clock_timestamp();

    v_epoch := confirmed_epoch();
    if v_epoch is null then
        outcomes := array_fill(4::smallint, array[cardinality(p_items)]);
        decided := array_fill(clock, array[cardinality(p_items)]);
        return;
    end if;
    select max(version) into v_policy from policies;

    select array_agg(g.outcome::smallint order by g.item), array_agg(g.at order by g.item)
    into outcomes, decided
    from (
        select i.ordinality::integer as item, m.at,
            case
                when c.command_id is not null then
                    case when c.fingerprint = i.fingerprint and c.tenant = i.tenant
                        then 2 else 3 end
                when i.epoch is distinct from v_epoch then 1
                -- Whose they are.
                when t.tenant <> i.tenant then 1
                when a.tenant <> i.tenant or a.task_id <> i.task_id then 1
                when n.tenant <> i.tenant then 1
                when q.tenant <> i.tenant then 1
                -- Versions.
                when i.task_id is not null
                    and t.version is distinct from i.task_version then 1
                when i.attempt_id is not null
                    and a.version is distinct from i.attempt_version then 1
                when i.incarnation is not null
                    and n.version is distinct from i.incarnation_version then 1
                when i.node_id is not null
                    and o.incarnation is distinct from i.node_incarnation then 1
                when i.node_quarantined is not null
                    and (o.quarantined_at is not null) is distinct from i.node_quarantined then 1
                when i.tenant_version is not null
                    and e.version is distinct from i.tenant_version then 1
                when i.content_digest is not null and exists (
                    select 1 from receipts e
                    where e.attempt_id = i.attempt_id
                      and e.content_digest = i.content_digest) then 1
                when i.intake_id is not null and q.state is distinct from 'waiting' then 1
                when i.policy_version is not null and i.policy_version is distinct from v_policy then 1
                when i.fleet is not null and i.fleet is distinct from (
                    select coalesce(string_agg(
                        f.incarnation || ':' || f.version, ',' order by f.incarnation), '')
                    from incarnations f
                    where f.tenant = i.tenant and f.state = 'active') then 1
                -- Time bounds.
                when i.lease_live and not coalesce(a.expires_at > m.at, false) then 1
                when i.lease_over and not coalesce(a.expires_at <= m.at, false) then 1
                when i.not_before_passed and not coalesce(t.not_before <= m.at, true) then 1
                when i.deadline_open and not coalesce(t.deadline > m.at, true) then 1
                when i.deadline_passed and not coalesce(t.deadline <= m.at, false) then 1
                when i.new_deadline <= m.at then 1
                when i.pause_over > m.at then 1
                when i.seen_within is not null and not coalesce(
                    n.last_seen_at > m.at - i.seen_within * interval '1 microsecond', false)
                    then 1
                when i.silent_for is not null and not coalesce(
                    n.last_seen_at <= m.at - i.silent_for * interval '1 microsecond', false)
                    then 1
                else 0
            end as outcome
        from unnest(p_items) with ordinality i
        left join commands c on c.command_id = i.command_id
        left join tasks t on t.task_id = i.task_id
        left join attempts a on a.attempt_id = i.attempt_id
        left join incarnations n on n.incarnation = i.incarnation
        left join nodes o on o.tenant = i.tenant and o.node_id = i.node_id
        left join intake q on q.intake_id = i.intake_id
        left join tenants e on e.tenant = i.tenant and i.tenant_version is not null
        cross join lateral (select greatest(clock, t.decided_at, a.decided_at) as at) m
    ) g;

    -- Lanes send no two items about one row, so that the dearer look is a rare one.
    select count(i.command_id) > count(distinct i.command_id)
        or count(i.task_id) > count(distinct i.task_id)
        or count(i.intake_id) > count(distinct i.intake_id)
        or count(i.node_id) > 0
    into v_repeats from unnest(p_items) i;
    if v_repeats then
        select array_agg(greatest(outcomes[g.item], g.outcome::smallint) order by g.item)
        into outcomes
        from (
            select i.ordinality::integer as item,
                case
                    -- Items that change the same row are never applied in one call.
                    when i.command_id is not null and 1 < row_number() over (
                        partition by i.command_id order by i.ordinality) then 1
                    when i.task_id is not null and 1 < row_number() over (
                        partition by i.task_id order by i.ordinality) then 1
                    when i.node_id is not null and 1 < row_number() over (
                        partition by i.tenant, i.node_id order by i.ordinality) then 1
                    when i.intake_id is not null and 1 < row_number() over (
                        partition by i.intake_id order by i.ordinality) then 1
                    -- Nor is what an item reads after an item before it may have changed that.
                    when i.incarnation is not null and coalesce(bool_or(i.node_id is not null)
                        over (partition by i.incarnation order by i.ordinality
                        rows between unbounded preceding and 1 preceding), false) then 1
                    else 0
                end as outcome
            from unnest(p_items) with ordinality i
        ) g;
    end if;

    -- Counters that items share are running sums in item order.
    for r in
        select s.item, s.slots, s.cpu_millis, s.memory_bytes, s.tenant, s.cost_minor,
            s.type, s.concurrency_key,
            e.budget_unlimited, e.budget_minor - c.held_minor - c.spent_minor as budget_left,
            dense_rank() over (order by s.incarnation) as k,
            n.type_concurrency[array_position(n.task_types, s.type)] as at_once, s.incarnation,
            s.incarnation || ' ' || s.type as node_type,
            n.slots - n.slots_used as slots_free,
            n.cpu_millis - n.cpu_used as cpu_free,
            n.memory_bytes - n.memory_used as memory_free
        from unnest(p_attempt_inserts) s
        left join incarnations n on n.incarnation = s.incarnation
        left join tenants e on e.tenant = s.tenant and s.cost_minor > 0
        left join accounts c on c.tenant = s.tenant and s.cost_minor > 0
        where outcomes[s.item] = 0
        order by s.item
    loop
        v_with_it := v_begun;
        v_fits := true;
        if v_limited then
            for l in
                select x.max_running, x.interval_microseconds * interval '1 microsecond' as pace,
                    x.burst, x.tenant, x.scope, x.name, k.key,
                    json_build_array(x.tenant, x.scope, x.name, k.key)::text as bucket, b.full_at
                from limits x
                cross join lateral (
                    select case x.scope when 'each_key' then r.concurrency_key else '' end as key) k
                left join limit_buckets b on b.tenant = x.tenant and b.scope = x.scope
                    and b.name = x.name and b.key = k.key
                where x.tenant = r.tenant
                  and limit_concerns(x.scope, x.name, r.type, r.concurrency_key)
                order by x.scope, x.name
            loop
                -- As stored and as the items before this one leave it.
                v_running := coalesce((v_begun -> l.bucket ->> 'running')::bigint, running_under(
                    l.tenant, l.scope, l.name, r.type, r.concurrency_key));
                -- A bucket lacks no more than all it holds: the clock or the rate may have been changed.
                v_full_at := least(clock + l.burst * l.pace, greatest(clock, coalesce(
                    (v_begun -> l.bucket ->> 'full_at')::timestamptz, l.full_at)));
                if v_running >= l.max_running
                    or v_full_at - (l.burst - 1) * l.pace > clock
                then
                    v_fits := false;
                    exit;
                end if;
                v_with_it := v_with_it || jsonb_build_object(l.bucket, jsonb_build_object(
                    'running', v_running + 1, 'full_at', v_full_at + l.pace));
            end loop;
        end if;
        -- As stored and as the items before this one leave it.
        if r.at_once is not null then
            v_running := coalesce((v_types ->> r.node_type)::bigint,
                running_of_type(r.incarnation, r.type));
            v_fits := v_fits and v_running < r.at_once;
        end if;
        if v_fits and r.slots_free >= coalesce(v_slots[r.k], 0) + r.slots
            and coalesce(r.cpu_free >= coalesce(v_cpu[r.k], 0) + r.cpu_millis, true)
            and coalesce(r.memory_free >= coalesce(v_memory[r.k], 0) + r.memory_bytes, true)
            and (r.cost_minor = 0 or r.budget_unlimited or coalesce(r.budget_left
                >= coalesce((v_held ->> r.tenant)::bigint, 0) + r.cost_minor, false))
        then
            if r.cost_minor > 0 then
                v_held := jsonb_set(v_held, array[r.tenant], to_jsonb(
                    coalesce((v_held ->> r.tenant)::bigint, 0) + r.cost_minor));
            end if;
            v_begun := v_with_it;
            if r.at_once is not null then
                v_types := v_types || jsonb_build_object(r.node_type, v_running + 1);
            end if;
            v_slots[r.k] := coalesce(v_slots[r.k], 0) + r.slots;
            v_cpu[r.k] := coalesce(v_cpu[r.k], 0) + r.cpu_millis;
            v_memory[r.k] := coalesce(v_memory[r.k], 0) + r.memory_bytes;
        else
            outcomes[r.item] := 1;
        end if;
    end loop;

    -- Outcomes are stored with what they say. A command of another call that is committing right
    -- now under the same id is waited for; whoever comes second is not applied.
    select count(*) into v_expected
    from unnest(p_items) with ordinality i
    where outcomes[i.ordinality] = 0 and i.command_id is not null;
    if v_expected > 0 then
        with stored as (
            insert into commands (command_id, tenant, fingerprint, outcome, reply, decided_at)
            select i.command_id, i.tenant, i.fingerprint, i.outcome, i.reply, decided[i.ordinality]
            from unnest(p_items) with ordinality i
            where outcomes[i.ordinality] = 0 and i.command_id is not null
            order by i.command_id
            on conflict do nothing
            returning command_id
        )
        select array_agg(command_id) into v_stored from stored;
        if coalesce(cardinality(v_stored), 0) < v_expected then
            for r in
                select i.ordinality as item from unnest(p_items) with ordinality i
                where outcomes[i.ordinality] = 0 and i.command_id is not null
                  and i.command_id <> all (coalesce(v_stored, '{}'))
            loop
                outcomes[r.item] := 1;
            end loop;
        end if;
    end if;

    if cardinality(p_task_inserts) > 0 then
        insert into tasks (task_id, tenant, type, state, version, sequence, priority, not_before,
            deadline, effects, max_attempts, cpu_millis, memory_bytes, profile_digest,
            concurrency_key, traceparent, retry_of, created_at, queued_as_of, ripe, decided_at)
        select w.task_id, w.tenant, w.type, 'open', 1, 1, w.priority, w.not_before, w.deadline,
            w.effects, w.max_attempts, w.cpu_millis, w.memory_bytes, w.profile_digest,
            w.concurrency_key, w.traceparent, w.retry_of, decided[w.item], greatest(decided[w.item], w.not_before)
                - w.head_start * interval '1 microsecond',
            coalesce(w.not_before <= decided[w.item], true), decided[w.item]
        from unnest(p_task_inserts) w where outcomes[w.item] = 0;
        insert into task_inputs (task_id, tenant, input, scope)
        select w.task_id, w.tenant, w.input, w.scope
        from unnest(p_task_inserts) w where outcomes[w.item] = 0;
    end if;

    if cardinality(p_task_updates) > 0 then
        update tasks t set
            state = w.state, reason = w.reason, message = w.message, version = t.version + 1,
            sequence = w.sequence, generation = w.generation,
            current_attempt_id = w.current_attempt_id, failures = w.failures,
            losses = w.losses,
            -- A delay counts from the decision itself, as committed.
            not_before = coalesce(
                decided[w.item] + w.delay_microseconds * interval '1 microsecond', w.not_before),
            ripe = coalesce(w.delay_microseconds <= 0, w.not_before <= decided[w.item], true),
            cancel_requested_at = case when w.cancel_requested
                then coalesce(t.cancel_requested_at, decided[w.item]) end,
            cancel_delivered_at = case when w.cancel_delivered
                then coalesce(t.cancel_delivered_at, decided[w.item]) end,
            rejected_by = w.rejected_by,
            profile_digest = coalesce(w.profile_digest, t.profile_digest),
            effects = coalesce(w.effects, t.effects),
            max_attempts = coalesce(w.max_attempts, t.max_attempts),
            cpu_millis = coalesce(w.cpu_millis, t.cpu_millis),
            memory_bytes = coalesce(w.memory_bytes, t.memory_bytes),
            decided_at = decided[w.item],
            ended_at = case when w.state in ('delivered', 'failed', 'cancelled', 'expired')
                then decided[w.item] end
        from unnest(p_task_updates) w
        where t.task_id = w.task_id and outcomes[w.item] = 0;
    end if;

    if cardinality(p_attempt_inserts) > 0 then
        insert into attempts (attempt_id, task_id, tenant, ordinal, state, version, sequence,
            node_id, incarnation, lease_id, fencing_token, policy_version, lease_microseconds,
            expires_at, scope, decision, dispatch_event_id, dispatched_at, submitted_at, decided_at)
        -- Authority never reaches beyond the task's deadline.
        select w.attempt_id, w.task_id, w.tenant, w.ordinal, 'submitted', 1, 1, w.node_id,
            w.incarnation, w.lease_id, w.fencing_token, w.policy_version, w.lease_microseconds,
            least(decided[w.item] + w.lease_microseconds * interval '1 microsecond', t.deadline),
            w.scope, w.decision, w.dispatch_event_id, decided[w.item], decided[w.item], decided[w.item]
        from unnest(p_attempt_inserts) w
        join tasks t on t.task_id = w.task_id
        where outcomes[w.item] = 0;
        insert into reservations (attempt_id, tenant, type, concurrency_key, incarnation, slots,
            cpu_millis, memory_bytes, cost_minor, created_at)
        select w.attempt_id, w.tenant, w.type, w.concurrency_key, w.incarnation, w.slots,
            w.cpu_millis, w.memory_bytes, w.cost_minor, decided[w.item]
        from unnest(p_attempt_inserts) w where outcomes[w.item] = 0;
        update incarnations n set
            slots_used = n.slots_used + d.slots,
            cpu_used = n.cpu_used + d.cpu_millis,
            memory_used = n.memory_used + d.memory_bytes
        from (
            select w.incarnation, sum(w.slots) as slots, sum(w.cpu_millis) as cpu_millis,
                sum(w.memory_bytes) as memory_bytes
            from unnest(p_attempt_inserts) w where outcomes[w.item] = 0
            group by w.incarnation
        ) d
        where n.incarnation = d.incarnation;
        update accounts c set held_minor = c.held_minor + d.cost_minor
        from (
            select w.tenant, sum(w.cost_minor) as cost_minor
            from unnest(p_attempt_inserts) w where outcomes[w.item] = 0 and w.cost_minor > 0
            group by w.tenant
        ) d
        where c.tenant = d.tenant;
        insert into limit_buckets (tenant, scope, name, key, full_at)
        select d.bucket ->> 0, d.bucket ->> 1, d.bucket ->> 2, d.bucket ->> 3, d.full_at
        from (
            select g.key::json as bucket, (g.value ->> 'full_at')::timestamptz as full_at
            from jsonb_each(v_begun) g
        ) d
        where d.full_at is not null
        order by d.bucket ->> 0, d.bucket ->> 1, d.bucket ->> 2, d.bucket ->> 3
        on conflict (tenant, scope, name, key) do update set full_at = excluded.full_at;
    end if;

    if cardinality(p_attempt_updates) > 0 then
        update attempts a set
            state = w.state, reason = w.reason, message = w.message, version = a.version + 1,
            sequence = w.sequence,
            accepted_at = case when w.state in ('accepted', 'running')
                then coalesce(a.accepted_at, decided[w.item]) else a.accepted_at end,
            started_at = case when w.state = 'running'
                then coalesce(a.started_at, decided[w.item]) else a.started_at end,
            retry_delay_microseconds = w.retry_delay_microseconds,
            decided_at = decided[w.item],
            ended_at = case when w.ends then decided[w.item] end
        from unnest(p_attempt_updates) w
        where a.attempt_id = w.attempt_id and outcomes[w.item] = 0;
        with released as (
            delete from reservations e using unnest(p_attempt_updates) w
            where e.attempt_id = w.attempt_id and w.ends and outcomes[w.item] = 0
            returning e.incarnation, e.slots, e.cpu_millis, e.memory_bytes, e.tenant,
                e.cost_minor, w.state = 'delivered' as delivered
        ),
        -- What an attempt held is spent by its delivery, and free again otherwise.
        settled as (
            update accounts c set
                held_minor = c.held_minor - d.cost_minor,
                spent_minor = c.spent_minor + d.spent_minor
            from (
                select tenant, sum(cost_minor) as cost_minor,
                    coalesce(sum(cost_minor) filter (where delivered), 0) as spent_minor
                from released where cost_minor > 0 group by tenant
            ) d
            where c.tenant = d.tenant
        )
        update incarnations n set
            slots_used = n.slots_used - d.slots,
            cpu_used = n.cpu_used - d.cpu_millis,
            memory_used = n.memory_used - d.memory_bytes
        from (
            select incarnation, sum(slots) as slots, sum(cpu_millis) as cpu_millis,
                sum(memory_bytes) as memory_bytes
            from released group by incarnation
        ) d
        where n.incarnation = d.incarnation;
    end if;

    if cardinality(p_lease_renewals) > 0 then
        insert into renewals (lease_id, attempt_id, tenant, prior_expires_at, new_expires_at,
            renewed_by, at)
        select a.lease_id, a.attempt_id, a.tenant, a.expires_at,
            greatest(a.expires_at, least(
                decided[w.item] + a.lease_microseconds * interval '1 microsecond', t.deadline)),
            w.renewed_by, decided[w.item]
        from unnest(p_lease_renewals) w
        join attempts a on a.attempt_id = w.attempt_id
        join tasks t on t.task_id = a.task_id
        where outcomes[w.item] = 0;
        update attempts a set
            decided_at = decided[w.item],
            expires_at = greatest(a.expires_at, least(
                decided[w.item] + a.lease_microseconds * interval '1 microsecond', t.deadline))
        from unnest(p_lease_renewals) w, tasks t
        where a.attempt_id = w.attempt_id and t.task_id = a.task_id and outcomes[w.item] = 0;
    end if;

    if cardinality(p_receipts) > 0 then
        insert into receipts (receipt_id, tenant, task_id, attempt_id, node_id, incarnation,
            admitted, code, admitted_at, state_version, generation, fencing_token, content_digest,
            output, enforced)
        select w.receipt_id, w.tenant, w.task_id, w.attempt_id, w.node_id, w.incarnation,
            w.code is null, w.code, decided[w.item], w.state_version, w.generation, w.fencing_token,
            w.content_digest, w.output, w.enforced
        from unnest(p_receipts) w where outcomes[w.item] = 0;
    end if;

    if cardinality(p_incarnation_updates) > 0 then
        update incarnations n set
            state = w.state, version = n.version + 1, sequence = w.sequence,
            ended_at = case when w.state = 'gone' then decided[w.item] end
        from unnest(p_incarnation_updates) w
        where n.incarnation = w.incarnation and outcomes[w.item] = 0;
        update nodes o set incarnation = null
        from unnest(p_incarnation_updates) w
        join incarnations n on n.incarnation = w.incarnation
        where w.state = 'gone' and o.tenant = n.tenant and o.node_id = n.node_id
          and o.incarnation = w.incarnation and outcomes[w.item] = 0;
    end if;

    if cardinality(p_incarnation_inserts) > 0 then
        -- Locked until the commit, also where it is known, so that nobody withdraws it meanwhile.
        insert into executables (tenant, digest, name, version, inventory_digest, registered_at,
            seen_at)
        select distinct on (w.tenant, w.executable_digest) w.tenant, w.executable_digest,
            w.executable_name, w.executable_version, w.inventory_digest, decided[w.item],
            decided[w.item]
        from unnest(p_incarnation_inserts) w
        where outcomes[w.item] = 0 and w.executable_digest is not null
        order by w.tenant, w.executable_digest
        on conflict (tenant, digest) do update set seen_at = excluded.seen_at;
        insert into incarnations (incarnation, tenant, node_id, state, version, sequence, queue,
            software, protocol_version, slots, cpu_millis, memory_bytes, task_types,
            profile_digests, type_effects, own_facts, facts, executable_name, executable_version,
            executable_digest, executable_withdrawn, type_concurrency, registered_at, last_seen_at)
        select w.incarnation, w.tenant, w.node_id, w.state, 1, 1, w.queue, w.software,
            w.protocol_version, w.slots, w.cpu_millis, w.memory_bytes, w.task_types,
            w.profile_digests, w.type_effects, w.own_facts,
            facts_of(w.own_facts, o.stated_facts), w.executable_name, w.executable_version,
            w.executable_digest, coalesce(x.state = 'withdrawn', false), w.type_concurrency,
            decided[w.item], decided[w.item]
        from unnest(p_incarnation_inserts) w
        join nodes o on o.tenant = w.tenant and o.node_id = w.node_id
        left join executables x on x.tenant = w.tenant and x.digest = w.executable_digest
        where outcomes[w.item] = 0
        order by w.incarnation;
        update nodes o set incarnation = w.incarnation
        from unnest(p_incarnation_inserts) w
        where o.tenant = w.tenant and o.node_id = w.node_id and outcomes[w.item] = 0;
        perform register_profiles(
            array(select w from unnest(p_task_types) w where outcomes[w.item] = 0), clock);
    end if;

    if v_repeats then
        update nodes o set
            quarantined_at = case when i.quarantine <> '' then decided[i.ordinality] end,
            quarantined_by = case when i.quarantine <> '' then i.quarantined_by end,
            quarantine_reason = nullif(i.quarantine, '')
        from unnest(p_items) with ordinality i
        where i.quarantine is not null and outcomes[i.ordinality] = 0
          and o.tenant = i.tenant and o.node_id = i.node_id;

        insert into health_reviews (tenant, node_id, incarnation, last_seen_at, opened_at)
        select n.tenant, n.node_id, n.incarnation, n.last_seen_at, decided[i.ordinality]
        from unnest(p_items) with ordinality i
        join incarnations n on n.incarnation = i.incarnation
        where i.review = '' and outcomes[i.ordinality] = 0;
        update health_reviews h set
            closed_at = decided[w.item], outcome = w.outcome, closed_by = w.closed_by,
            message = w.message
        from (
            select i.ordinality as item, i.incarnation, i.review as outcome,
                i.review_by as closed_by, i.review_message as message
            from unnest(p_items) with ordinality i where i.review <> ''
            union all
            select u.item, u.incarnation, 'node_gone', null, null
            from unnest(p_incarnation_updates) u where u.state = 'gone'
        ) w
        where h.incarnation = w.incarnation and h.closed_at is null and outcomes[w.item] = 0;
        update incarnations n set
            under_review = i.review = '',
            reviewed_seen_at = case when i.review = '' then n.last_seen_at
                else n.reviewed_seen_at end
        from unnest(p_items) with ordinality i
        where i.review is not null and outcomes[i.ordinality] = 0
          and n.incarnation = i.incarnation;
    end if;

    if cardinality(p_intake) > 0 then
        update intake q set
            state = w.state, code = w.code, message = w.message, decided_at = decided[w.item],
            input = case when w.state <> 'taken' then q.input end
        from unnest(p_intake) w
        where q.intake_id = w.intake_id and outcomes[w.item] = 0;
    end if;

    if cardinality(p_seen) > 0 then
        update incarnations n set last_seen_at = greatest(n.last_seen_at, clock)
        where n.incarnation = any (p_seen) and n.state <> 'gone';
    end if;

    -- Last: the append lock is taken here and held until the commit. Skipped when nothing is to be
    -- appended, since even an empty insert would take it.
    if exists (select 1 from unnest(p_events) e where outcomes[e.item] = 0) then
        insert into log (shard, order_key, tenant, entity_type, entity_id, attempt_id, epoch,
            sequence, event_id, next_state, copy, exchange, routing_key, required, recorded_at,
            body)
        select e.shard, e.order_key, e.tenant, e.entity_type, e.entity_id, e.attempt_id, e.epoch,
            e.sequence, e.event_id, e.next_state, e.copy, e.exchange, e.routing_key, e.required,
            decided[e.item],
            convert_to('{"time":"' || to_char(decided[e.item] at time zone 'UTC',
                'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '",', 'UTF8') || substr(e.body, 2)
        from unnest(p_events) with ordinality e
        where outcomes[e.item] = 0
          -- A copy needs a queue; a node without one asks.
          and (not e.copy or exists (
              select from incarnations n
              where n.incarnation = right(e.routing_key, 36)::uuid and n.queue <> ''))
        order by e.ordinality;
    end if;
end
$$;

-- The same assignment again, same event id and bytes, for attempts that nobody has accepted: the
-- message may have been lost with its queue. Changes no state; returns how many were sent again:
-- none when the authority is not confirmed.
create function redispatch(p_attempts uuid[], p_not_within interval) returns integer
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz;
    v_due uuid[];
begin
    if confirmed_epoch() is null then
        return 0;
    end if;
    perform 1 from tasks t
    where t.task_id = any (array(
        select a.task_id from attempts a where a.attempt_id = any (p_attempts)))
    order by t.task_id
    for no key update;
    v_now := clock_timestamp();
    select array_agg(a.attempt_id) into v_due from attempts a
    where a.attempt_id = any (p_attempts) and a.state = 'submitted'
      and a.expires_at > v_now and a.dispatched_at < v_now - p_not_within;
    if v_due is null then
        return 0;
    end if;
    update attempts set dispatched_at = v_now where attempt_id = any (v_due);
    insert into log (shard, order_key, tenant, entity_type, entity_id, attempt_id, epoch, sequence,
        event_id, next_state, copy, exchange, routing_key, required, recorded_at, body)
    select l.shard, l.order_key, l.tenant, l.entity_type, l.entity_id, l.attempt_id, l.epoch,
        l.sequence, l.event_id, l.next_state, true, l.exchange, l.routing_key, l.required,
        l.recorded_at, l.body
    from attempts a
    cross join lateral (
        select * from log g
        where g.order_key = a.task_id and g.event_id = a.dispatch_event_id and g.copy
        order by g.position limit 1
    ) l
    where a.attempt_id = any (v_due);
    return cardinality(v_due);
end
$$;

-- The last net, for every writer whatever its path: ended records do not change (STATE-02), and an
-- attempt makes permitted moves only (STATE-04), with an event for each (EVENT-02).
create function refuse_change() returns trigger
language plpgsql set search_path = tenure, pg_temp
as $$
begin
    raise exception '% of an ended record in %', lower(tg_op), tg_table_name
        using errcode = 'TN010',
            hint = 'Ended tasks and attempts and all receipts are immutable; later findings are '
                'records of their own.';
end
$$;
create trigger attempts_are_immutable_once_ended before update or delete on attempts
    for each row when (old.ended_at is not null) execute function refuse_change();
create trigger tasks_are_immutable_once_ended before update or delete on tasks
    for each row when (old.ended_at is not null) execute function refuse_change();
create trigger receipts_are_immutable before update or delete on receipts
    for each row execute function refuse_change();
create trigger attempts_are_not_emptied before truncate on attempts
    for each statement execute function refuse_change();
create trigger tasks_are_not_emptied before truncate on tasks
    for each statement execute function refuse_change();
create trigger receipts_are_not_emptied before truncate on receipts
    for each statement execute function refuse_change();

create function refuse_move() returns trigger
language plpgsql set search_path = tenure, pg_temp
as $$
declare
    v_events integer := case old.state
        when 'submitted' then case when new.state in ('accepted', 'rejected', 'cancelled') then 1
            when new.state = 'running' then 2 end -- accepted and started in one commit
        when 'accepted' then case when new.state in ('running', 'failed', 'cancelled', 'expired')
            then 1 end
        when 'running' then case when new.state in ('delivered', 'failed', 'cancelled', 'expired')
            then 1 end
    end;
begin
    if new.sequence is distinct from old.sequence + v_events then
        raise exception 'attempt % cannot move from % to % by % events', old.attempt_id, old.state,
            new.state, new.sequence - old.sequence
            using errcode = 'TN011';
    end if;
    return new;
end
$$;
create trigger attempts_move_as_permitted before update on attempts
    for each row when (old.state is distinct from new.state) execute function refuse_move();
