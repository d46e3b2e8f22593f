-- What grows can shrink (OPS-08). For each kind of rows a policy says how long they are kept after they
-- ended; what is older is removed in small batches, each a transaction of its own that waits for nobody.

-- The policy, version by version. ``keep``: seconds by kind; absent or null: for ever.
create table retention_policies (
    version integer primary key,
    keep jsonb not null,
    set_by text not null,
    reason text not null,
    set_at timestamptz not null default clock_timestamp()
);
insert into retention_policies (version, keep, set_by, reason) values (1, '{
    "log": 2592000, "tasks": 7776000, "commands": 2592000, "intake": 2592000,
    "renewals": 2592000, "reviews": 7776000, "nodes": 604800, "dead_letters": 7776000,
    "changes": 31536000, "profiles": 7776000, "executables": 7776000
}', 'migration', 'a new database');
create trigger retention_policies_never_change before update or delete on retention_policies
    for each row execute function refuse_change();

-- How far removal has come. What ended before ``removed_to`` may be gone; what ended later is there.
create table retention (
    kind text primary key check (kind in
        ('log', 'tasks', 'commands', 'intake', 'renewals', 'reviews', 'nodes', 'dead_letters',
            'changes', 'profiles', 'executables')),
    removed_to timestamptz not null default '-infinity',
    removed_rows bigint not null default 0,
    removed_at timestamptz,
    removed_position bigint not null default 0  -- of the log: what is at or below it may be gone
);
insert into retention (kind) values
    ('log'), ('tasks'), ('commands'), ('intake'), ('renewals'), ('reviews'), ('nodes'),
    ('dead_letters'), ('changes'), ('profiles'), ('executables');

-- By these the oldest are found. What waits or runs is in none of them.
create index tasks_ended on tasks (ended_at) where ended_at is not null;
create index commands_decided on commands (decided_at);
create index intake_decided on intake (decided_at) where decided_at is not null;
create index health_reviews_closed on health_reviews (closed_at) where closed_at is not null;
create index incarnations_gone on incarnations (ended_at) where state = 'gone';
create index incarnations_of_node on incarnations (tenant, node_id);
create index fact_changes_at on fact_changes (at);
create index tasks_ended_of_profile on tasks (profile_digest) where ended_at is not null;

-- Profiles and programs to which nothing refers, and since when: as seen by removal, which looks before
-- it removes. Whatever begins to refer to one again takes it out of here at the next look.
create table unreferenced (
    kind text not null check (kind in ('profiles', 'executables')),
    tenant text not null,
    digest bytea not null,
    since timestamptz not null,
    primary key (kind, tenant, digest)
);
create index unreferenced_since on unreferenced (kind, since);

-- The next version of the policy; false when ``p_after`` is not the one in force.
create function set_retention(p_after integer, p_keep jsonb, p_by text, p_reason text)
returns boolean
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
begin
    if exists (select from jsonb_each(p_keep) k
        where not exists (select from retention r where r.kind = k.key)
            or (jsonb_typeof(k.value) <> 'null'
                and (jsonb_typeof(k.value) <> 'number' or k.value::text::numeric < 3600)))
    then
        raise exception 'not seconds by kind, an hour at least: %', p_keep using errcode = '22023';
    end if;
    insert into retention_policies (version, keep, set_by, reason)
    select p_after + 1, p_keep, p_by, p_reason
    where p_after = (select max(version) from retention_policies)
    on conflict do nothing;
    return found;
end
$$;

-- Before when rows of a kind are too old; null: they are kept for ever. A database that is not the
-- authority, or has lost history, removes nothing: it may be the only evidence.
create function too_old_before(p_kind text) returns timestamptz
language sql volatile security definer
set search_path = tenure, pg_temp
as $$
    select clock_timestamp() - make_interval(secs => (keep ->> p_kind)::float8)
    from retention_policies
    where confirmed_epoch() is not null
    order by version desc limit 1
$$;

-- The first position of the log that somebody still needs: whatever a relay has not published yet, and
-- what a replay that has not ended comes to. Positions that are taken later are higher than any that
-- there are.
create function log_needed_from() returns bigint
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
begin
    return least(
        (
            select coalesce(min(first.position), (select last_value from log_position) + 1)
            from relay_shards s
            cross join lateral (
                select l.position from log l
                where l.shard = s.shard and l.position > s.position
                order by l.position limit 1
            ) first
        ),
        (select min(r.position) + 1 from replays r where r.state in ('running', 'paused')));
end
$$;

-- When the oldest row was recorded that no relay has published yet; null: there is none.
create function oldest_unpublished_at() returns timestamptz
language sql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
    select min(first.recorded_at)
    from relay_shards s
    cross join lateral (
        select l.recorded_at from log l
        where l.shard = s.shard and l.position > s.position
        order by l.position limit 1
    ) first
$$;

create function removed(p_kind text, p_to timestamptz, p_rows bigint) returns void
language sql volatile
set search_path = tenure, pg_temp
as $$
    update retention set removed_to = greatest(removed_to, p_to),
        removed_rows = removed_rows + p_rows, removed_at = clock_timestamp()
    where kind = p_kind
$$;

-- Removes at most ``p_limit`` rows that are too old, the oldest first, and what belongs to them alone;
-- returns how many. One caller at a time for each kind; rows that somebody holds are left for the next
-- time, so that this waits for no row and a commit waits at most for the end of one batch. The log has a
-- function of its own.
create function remove_old(p_kind text, p_limit integer) returns integer
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set lock_timeout = '50ms'
set plan_cache_mode = force_custom_plan
as $$
declare
    v_to timestamptz := too_old_before(p_kind);
    v_ids uuid[];
    v_rows integer := 0;
    v_others integer := 0;
begin
    if p_limit not between 1 and 10000 then
        raise exception 'a batch of % rows is not one of 1 to 10000', p_limit using errcode = '22023';
    end if;
    if v_to is null
        or not pg_try_advisory_xact_lock(hashtextextended('tenure.remove_old.' || p_kind, 0))
    then
        return 0;
    end if;
    case p_kind
    when 'tasks' then
        -- What was enqueued goes before its task.
        v_ids := array(
            select t.task_id from tasks t
            where t.ended_at < v_to and not exists (
                select from intake q where q.task_id = t.task_id and q.state = 'taken')
            order by t.ended_at limit p_limit
            for update skip locked);
        v_rows := cardinality(v_ids);
        if v_rows > 0 then
            perform removed(p_kind, v_to, v_rows); -- first: see refuse_early_removal
            delete from tasks where task_id = any (v_ids);
            delete from task_inputs where task_id = any (v_ids);
            delete from attempts where task_id = any (v_ids);
            delete from receipts where task_id = any (v_ids);
            delete from erasures where task_id = any (v_ids);
        end if;
        return v_rows;
    when 'commands' then
        delete from commands where command_id = any (array(
            select c.command_id from commands c where c.decided_at < v_to
            order by c.decided_at limit p_limit for update skip locked));
    when 'intake' then
        delete from intake where intake_id = any (array(
            select q.intake_id from intake q where q.decided_at < v_to
            order by q.decided_at limit p_limit for update skip locked));
    when 'renewals' then
        delete from renewals where ctid = any (array(
            select w.ctid from renewals w where w.at < v_to
            order by w.at limit p_limit for update skip locked));
    when 'reviews' then
        delete from health_reviews where review_id = any (array(
            select h.review_id from health_reviews h where h.closed_at < v_to
            order by h.closed_at limit p_limit for update skip locked));
    when 'dead_letters' then
        delete from dead_letters where dead_letter_id = any (array(
            select d.dead_letter_id from dead_letters d
            where greatest(d.last_at, d.settled_at) < v_to
            order by greatest(d.last_at, d.settled_at) limit p_limit for update skip locked));
    when 'changes' then
        delete from parked_requests where request_id = any (array(
            select r.request_id from parked_requests r where r.carried_out_at < v_to
            order by r.carried_out_at limit p_limit for update skip locked));
        get diagnostics v_others = row_count;
        delete from replays where replay_id = any (array(
            select r.replay_id from replays r where r.ended_at < v_to
            order by r.ended_at limit p_limit for update skip locked));
        get diagnostics v_rows = row_count;
        v_others := v_others + v_rows;
        delete from fact_changes where ctid = any (array(
            select f.ctid from fact_changes f where f.at < v_to
            order by f.at limit p_limit for update skip locked));
    when 'nodes' then
        return remove_old_nodes(v_to, p_limit);
    when 'profiles' then
        return remove_old_profiles(v_to, p_limit);
    when 'executables' then
        return remove_old_executables(v_to, p_limit);
    else
        raise exception 'no kind of rows: %', p_kind using errcode = '22023';
    end case;
    get diagnostics v_rows = row_count;
    v_rows := v_rows + v_others;
    if v_rows > 0 then
        perform removed(p_kind, v_to, v_rows);
    end if;
    return v_rows;
end
$$;

-- Starts of nodes that are gone, once their queue is no longer needed (see nodes.sql, `queues`), and the
-- names of nodes of which nothing is left and about which nobody has said anything.
create function remove_old_nodes(p_to timestamptz, p_limit integer) returns integer
language plpgsql volatile
set search_path = tenure, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids uuid[];
    v_tenants text[];
    v_names text[];
begin
    -- Nobody registers meanwhile: else a name could go while a start of it is being recorded.
    if exists (select from incarnations n where n.state = 'gone' and n.ended_at < p_to) then
        lock table nodes in share row exclusive mode;
    end if;
    select array_agg(g.incarnation), array_agg(g.tenant), array_agg(g.node_id)
    into v_ids, v_tenants, v_names
    from (
        select n.incarnation, n.tenant, n.node_id from incarnations n
        where n.state = 'gone'
            and n.ended_at < least(p_to, oldest_unpublished_at() - interval '10 minutes')
            and not exists (
                select from attempts a where a.incarnation = n.incarnation and a.ended_at is null)
        order by n.ended_at limit p_limit
        for update skip locked
    ) g;
    if v_ids is null then
        return 0;
    end if;
    delete from incarnations where incarnation = any (v_ids);
    delete from nodes o
    using (select distinct * from unnest(v_tenants, v_names) k (tenant, node_id)) k
    where o.tenant = k.tenant and o.node_id = k.node_id
        and o.incarnation is null and o.quarantined_at is null and o.stated_facts = '{}'
        and not exists (
            select from incarnations n where n.tenant = k.tenant and n.node_id = k.node_id);
    perform removed('nodes', p_to, cardinality(v_ids));
    return cardinality(v_ids);
end
$$;

-- Whether a task, a type or a start of a node names a profile. Tasks that go on are found by what they
-- wait for or by who has them; there is no index of all of them.
create function profile_is_referenced(p_tenant text, p_digest bytea) returns boolean
language sql stable
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
    select exists (
            select from task_types y where y.tenant = p_tenant and y.profile_digest = p_digest)
        or exists (
            select from tasks t
            where t.profile_digest = p_digest and t.tenant = p_tenant and t.ended_at is not null)
        or exists (
            select from tasks t
            where t.tenant = p_tenant and t.profile_digest = p_digest
                and t.state = 'open' and t.current_attempt_id is null and t.ripe)
        or exists (
            select from tasks t
            where t.state = 'open' and t.current_attempt_id is null and not t.ripe
                and t.tenant = p_tenant and t.profile_digest = p_digest)
        or exists (
            select from tasks t
            where t.tenant = p_tenant and t.state = 'held' and t.profile_digest = p_digest)
        or exists (
            select from reservations e
            join attempts a on a.attempt_id = e.attempt_id
            join tasks t on t.task_id = a.task_id
            where e.tenant = p_tenant and t.profile_digest = p_digest)
        or exists (
            select from incarnations n
            where n.tenant = p_tenant and n.profile_digests @> array[p_digest])
$$;

-- Profiles that nothing has named for as long as they are kept.
create function remove_old_profiles(p_to timestamptz, p_limit integer) returns integer
language plpgsql volatile
set search_path = tenure, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_rows integer;
begin
    delete from unreferenced u
    where u.kind = 'profiles' and profile_is_referenced(u.tenant, u.digest);
    insert into unreferenced (kind, tenant, digest, since)
    select 'profiles', p.tenant, p.digest, clock_timestamp() from profiles p
    where not profile_is_referenced(p.tenant, p.digest)
    on conflict do nothing;
    if not exists (select from unreferenced u where u.kind = 'profiles' and u.since < p_to) then
        return 0;
    end if;
    -- Nobody registers meanwhile: else one could go while a type or a node is recorded that names it.
    -- What a submission was decided from was the profile of its type an hour ago, at least.
    lock table profiles in share row exclusive mode;
    perform removed('profiles', p_to, 0); -- first: see refuse_early_removal
    delete from profiles p
    using (
        select u.tenant, u.digest from unreferenced u
        where u.kind = 'profiles' and u.since < p_to
            and not profile_is_referenced(u.tenant, u.digest)
        order by u.since limit p_limit
    ) u
    where p.tenant = u.tenant and p.digest = u.digest;
    get diagnostics v_rows = row_count;
    delete from unreferenced u
    where u.kind = 'profiles' and not exists (
        select from profiles p where p.tenant = u.tenant and p.digest = u.digest);
    perform removed('profiles', p_to, v_rows);
    return v_rows;
end
$$;

-- Programs that no start of a node has run for as long as they are kept. One that is withdrawn stays: an
-- operator has said something about it.
create function remove_old_executables(p_to timestamptz, p_limit integer) returns integer
language plpgsql volatile
set search_path = tenure, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_rows integer;
begin
    delete from unreferenced u
    where u.kind = 'executables' and (
        exists (select from incarnations n
            where n.tenant = u.tenant and n.executable_digest = u.digest)
        or not exists (select from executables x
            where x.tenant = u.tenant and x.digest = u.digest and x.state = 'registered'
                and x.seen_at <= u.since));
    insert into unreferenced (kind, tenant, digest, since)
    select 'executables', x.tenant, x.digest, clock_timestamp() from executables x
    where x.state = 'registered' and not exists (
        select from incarnations n where n.tenant = x.tenant and n.executable_digest = x.digest)
    on conflict do nothing;
    -- A node that registers locks its program's row, or has marked it as seen by the time we have it.
    delete from executables x
    where (x.tenant, x.digest) in (
        select y.tenant, y.digest from executables y
        join unreferenced u on u.kind = 'executables' and u.tenant = y.tenant
            and u.digest = y.digest
        where u.since < p_to and y.state = 'registered' and y.seen_at <= u.since
        order by u.since limit p_limit
        for update of y skip locked);
    get diagnostics v_rows = row_count;
    if v_rows > 0 then
        delete from unreferenced u
        where u.kind = 'executables' and not exists (
            select from executables x where x.tenant = u.tenant and x.digest = u.digest);
        perform removed('executables', p_to, v_rows);
    end if;
    return v_rows;
end
$$;

-- Of each kind of which something is too old and still there, the end of the oldest: what has to stay
-- since it is needed counts too. Of the log the last event of the first partition counts, since a
-- partition goes as a whole.
create function retention_due() returns table (kind text, oldest_at timestamptz, before timestamptz)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
begin
    return query select r.kind, o.oldest_at, b.before
    from retention r
    cross join lateral (select too_old_before(r.kind) as before) b
    cross join lateral (
        select case r.kind
            when 'log' then (
                select l.recorded_at from log l
                cross join (
                    select min(substr(c.relname, 6)::bigint) * log_partition_size() as position
                    from pg_inherits i join pg_class c on c.oid = i.inhrelid
                    where i.inhparent = 'log'::regclass and c.relname ~ '^log_p[0-9]+$'
                ) first_end
                where l.position < first_end.position and exists (
                    select from log later where later.position >= first_end.position)
                order by l.position desc limit 1)
            when 'tasks' then (select min(t.ended_at) from tasks t where t.ended_at is not null)
            when 'commands' then (select min(c.decided_at) from commands c)
            when 'intake' then (
                select min(q.decided_at) from intake q where q.decided_at is not null)
            when 'renewals' then (select min(w.at) from renewals w)
            when 'reviews' then (
                select min(h.closed_at) from health_reviews h where h.closed_at is not null)
            when 'nodes' then (select min(n.ended_at) from incarnations n where n.state = 'gone')
            when 'dead_letters' then (
                select min(greatest(d.last_at, d.settled_at)) from dead_letters d)
            when 'changes' then least(
                (select min(f.at) from fact_changes f),
                (select min(p.carried_out_at) from parked_requests p),
                (select min(p.ended_at) from replays p))
            else (select min(u.since) from unreferenced u where u.kind = r.kind)
            end as oldest_at
    ) o
    where o.oldest_at < b.before;
end
$$;

-- Ended tasks go once the policy has passed them, what belongs to them goes after them, and nothing of
-- this goes otherwise, whoever asks.
create function refuse_early_removal() returns trigger
language plpgsql set search_path = tenure, pg_temp
as $$
begin
    if tg_table_name = 'profiles' then
        if exists (
            select from unreferenced u join retention r on r.kind = 'profiles'
            where u.kind = 'profiles' and u.tenant = old.tenant and u.digest = old.digest
                and u.since < r.removed_to)
        then
            return old;
        end if;
    elsif tg_table_name <> 'tasks' then
        if not exists (select from tasks t where t.task_id = old.task_id) then
            return old;
        end if;
    elsif old.ended_at < (select removed_to from retention where kind = 'tasks') then
        return old;
    end if;
    raise exception 'delete of an ended record in %', tg_table_name
        using errcode = 'TN010',
            hint = 'Ended records are removed once the retention policy has passed them: see '
                '`tenure retention show`.';
end
$$;
drop trigger tasks_are_immutable_once_ended on tasks;
create trigger tasks_are_immutable_once_ended before update on tasks
    for each row when (old.ended_at is not null) execute function refuse_change();
create trigger ended_tasks_are_kept before delete on tasks
    for each row when (old.ended_at is not null) execute function refuse_early_removal();
drop trigger attempts_are_immutable_once_ended on attempts;
create trigger attempts_are_immutable_once_ended before update on attempts
    for each row when (old.ended_at is not null) execute function refuse_change();
create trigger ended_attempts_are_kept before delete on attempts
    for each row when (old.ended_at is not null) execute function refuse_early_removal();
drop trigger receipts_are_immutable on receipts;
create trigger receipts_are_immutable before update on receipts
    for each row execute function refuse_change();
create trigger receipts_are_kept before delete on receipts
    for each row execute function refuse_early_removal();
drop trigger profiles_are_immutable on profiles;
create trigger profiles_are_immutable before update on profiles
    for each row execute function refuse_change();
create trigger profiles_are_kept before delete on profiles
    for each row execute function refuse_early_removal();

-- The log shrinks by whole partitions, each first detached and then dropped, so that neither appends nor
-- readers wait for a file to be deleted.

-- Ends the last partition early when its first row is old, so that rows do not stay for as long as it
-- takes to fill one: the next position is the first one of the next partition. Positions have holes
-- anyway. Returns whether it did.
create function cut_log() returns boolean
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set lock_timeout = '50ms'
as $$
declare
    size constant bigint := log_partition_size();
    v_number bigint;
    v_old timestamptz := clock_timestamp() - (clock_timestamp() - too_old_before('log')) / 8;
begin
    select (last_value + 1) / size + 1 into v_number from log_position;
    if v_old is null or to_regclass(log_partition_name(v_number + 1)) is null
        or coalesce((
            select l.recorded_at from log l where l.position >= (v_number - 1) * size
            order by l.position limit 1), 'infinity') >= v_old
    then
        return false;
    end if;
    lock table append_lock in share row exclusive mode;
    -- Somebody else was quicker, or the partition has filled up meanwhile.
    if (select (last_value + 1) / size + 1 from log_position) <> v_number then
        return false;
    end if;
    perform setval('log_position', v_number * size - 1);
    return true;
end
$$;

-- Whether a partition may go: its last row is too old, no relay or replay needs it, and later rows
-- exist, so that the end of the log stays where it is.
create function log_partition_is_old(p_number bigint, p_to timestamptz) returns boolean
language sql volatile
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
    select p_number * log_partition_size() <= log_needed_from()
        and coalesce((
            select l.recorded_at from log l where l.position < p_number * log_partition_size()
            order by l.position desc limit 1), '-infinity') < p_to
        and exists (select from log l where l.position >= p_number * log_partition_size())
$$;

-- Partitions of the log, in order, without the default one. ``old``: it may go by itself, whether or not
-- one before it has to stay; ``before``: what ended before is too old.
create function log_partitions()
returns table (name text, first_position bigint, end_position bigint, oldest_at timestamptz,
    rows bigint, bytes bigint, old boolean, before timestamptz)
language sql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
    select c.relname::text, (n.number - 1) * log_partition_size(), n.number * log_partition_size(),
        (select l.recorded_at from log l
            where l.position >= (n.number - 1) * log_partition_size()
                and l.position < n.number * log_partition_size()
            order by l.position limit 1),
        greatest(pg_stat_get_live_tuples(c.oid), 0), pg_total_relation_size(c.oid),
        coalesce(log_partition_is_old(n.number, b.before), false), b.before
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    cross join lateral (select substr(c.relname, 6)::bigint as number) n
    cross join (select too_old_before('log') as before) b
    where i.inhparent = 'log'::regclass and c.relname ~ '^log_p[0-9]+$'
    order by n.number
$$;

-- One step of shrinking the log: drops a partition that was detached, else detaches the oldest one if it
-- may go. Returns its name and whether it is dropped; null: nothing to do. Whoever is to read from a position on that is not the
-- end of the log (a replay) reads the log before it writes down what it needs: then this sees it.
create function remove_old_log(out name text, out dropped boolean)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set lock_timeout = '50ms'
as $$
declare
    v_to timestamptz := too_old_before('log');
    v_number bigint;
begin
    if v_to is null
        or not pg_try_advisory_xact_lock(hashtextextended('tenure.remove_old.log', 0))
    then
        return;
    end if;
    select c.relname, true into name, dropped
    from pg_class c, retention r
    where c.relnamespace = 'tenure'::regnamespace and c.relkind = 'r'
        and not c.relispartition and c.relname ~ '^log_p[0-9]+$' and r.kind = 'log'
        and substr(c.relname, 6)::bigint * log_partition_size() <= r.removed_position + 1
    order by c.relname limit 1;
    if found then
        execute format('drop table %I', name);
        return;
    end if;
    select min(substr(c.relname, 6)::bigint) into v_number
    from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'log'::regclass and c.relname ~ '^log_p[0-9]+$';
    if not coalesce(log_partition_is_old(v_number, v_to), false) then
        return;
    end if;
    -- Waits behind what reads or appends now, and holds up what comes later: for 50 ms at most.
    lock table only log in access exclusive mode;
    if not log_partition_is_old(v_number, v_to) then
        return;
    end if;
    name := log_partition_name(v_number);
    dropped := false;
    execute format('alter table log detach partition %I', name);
    perform removed('log', v_to,
        (select greatest(reltuples, 0)::bigint from pg_class where oid = name::regclass));
    update retention set removed_position = v_number * log_partition_size() - 1 where kind = 'log';
end
$$;
