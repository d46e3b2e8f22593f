-- What a downstream database needs in order to refuse stale work by itself (LEASE-10).
--
-- One fence row for each task, raised to an attempt's token before its handler has control; one
-- inbox row for each operation of a task, written in the transaction of its effect. PostgreSQL 15
-- or newer, no extension. The functions run with their owner's rights: an account that may execute
-- them needs no right on the tables, and can neither lower a fence nor forge an inbox row.
--
-- Every function takes the lease's end on the authority's clock and the tolerance between clocks:
-- an attempt that was paused cannot know a later one. What the lease permits (LEASE-11) is taken at
-- the caller's word, once for each token: who raises the fence says it before the handler begins.

create table if not exists @schema@.tenure_fence (
    task_id uuid primary key,
    fencing_token bigint not null,
    raised_at timestamptz not null
) with (fillfactor = 70);
-- What was first said of the lease of this token: null, nothing yet, which is everything.
alter table @schema@.tenure_fence add column if not exists scope jsonb;

create table if not exists @schema@.tenure_inbox (
    task_id uuid not null,
    operation text not null,
    attempt_id uuid not null,
    fencing_token bigint not null,
    authority_until timestamptz not null,
    done_at timestamptz not null,
    primary key (task_id, operation)
);

-- Whether one of the patterns fits, as tenure.contract.scope has it: * stands for any characters,
-- {name} for that field. LIKE tries no place twice.
create or replace function @schema@.tenure_fits(p_patterns jsonb, p_fields jsonb, p_text text)
returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_fits boolean := false;
    v_pattern text;
    v_like text;
    v_known boolean;
begin
    if jsonb_array_length(p_patterns) not between 1 and 100
        or jsonb_path_exists(p_patterns, 'strict $[*] ? (@.type() <> "string")')
    then
        raise exception using errcode = '22023', message = 'a scope has lists of 1 to 100 patterns';
    end if;
    for v_pattern in select * from jsonb_array_elements_text(p_patterns) loop
        if length(v_pattern) not between 1 and 300
            or v_pattern collate "C" ~ ('[' || chr(1) || '-' || chr(31) || chr(127) || ']')
            or regexp_replace(
                v_pattern collate "C", '[{][A-Za-z_][A-Za-z0-9_]*[}]', '', 'g') ~ '[{}]'
        then
            raise exception using
                errcode = '22023', message = format('%s is no pattern of a scope', v_pattern);
        end if;
        select
            string_agg(
                case
                    when t.part[1] = '*' then '%'
                    else replace(replace(replace(t.said, '!', '!!'), '%', '!%'), '_', '!_')
                end,
                '' order by t.place
            ),
            bool_and(t.said <> '')
        into v_like, v_known
        from (
            select m.part, m.place,
                case
                    when m.part[1] like '{%'
                        then coalesce(p_fields ->> trim(both '{}' from m.part[1]), '')
                    else m.part[1]
                end as said
            from regexp_matches(v_pattern collate "C", '[*]|[{][^}]*[}]|[^*{]+', 'g')
                with ordinality as m (part, place)
        ) t;
        v_fits := v_fits or (v_known and p_text collate "C" like v_like escape '!');
    end loop;
    return v_fits;
end
$$;

-- Whether a scope, as an attempt's context and the header Fencing-Scope have it, permits the
-- operation on the object: {"scopes": [{"operations": [...], "objects": [...]}, ...], "input": {...}}: of
-- one or two scopes that both have to fit, and the fields that they name as texts. Null: everything.
create or replace function @schema@.tenure_permits(p_scope jsonb, p_operation text, p_object text)
returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    v_permits boolean := true;
    v_fields jsonb := p_scope -> 'input';
    v_scope jsonb;
begin
    if p_scope is null then
        return true;
    end if;
    if (p_scope - array['scopes', 'input'] = '{}'
        and jsonb_array_length(p_scope -> 'scopes') between 1 and 2
        and jsonb_typeof(v_fields) = 'object'
        and not jsonb_path_exists(v_fields, 'strict $.* ? (@.type() <> "string")')) is not true
    then
        raise exception using
            errcode = '22023', message = 'a scope has one or two "scopes", and an "input" of texts';
    end if;
    for v_scope in select * from jsonb_array_elements(p_scope -> 'scopes') loop
        if v_scope - array['operations', 'objects'] <> '{}' then
            raise exception using
                errcode = '22023', message = 'a scope has "operations" and "objects"';
        end if;
        v_permits := v_permits
            and @schema@.tenure_fits(
                coalesce(v_scope -> 'operations', '["*"]'), v_fields, p_operation)
            and @schema@.tenure_fits(coalesce(v_scope -> 'objects', '["*"]'), v_fields, p_object);
    end loop;
    return v_permits;
end
$$;

-- Lock the fence, judge the token, the time and whether the scope is the one said before, raise the
-- fence. The clock is read after the lock is held: whoever waited for it is judged at the end of the
-- wait.
create or replace function @schema@.tenure_raise_fence(
    p_task_id uuid,
    p_fencing_token bigint,
    p_expires_at timestamptz,
    p_tolerance interval,
    p_scope jsonb default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_stored bigint;
    v_scope jsonb;
begin
    -- A comparison with null refuses nobody, and a token that no authority gives shuts all out.
    if (p_task_id is not null and p_fencing_token between 0 and 9007199254740991
        and isfinite(p_expires_at) and p_tolerance between interval '0' and interval '1 hour')
        is not true
    then
        raise exception using
            errcode = '22023',
            message = 'task, token (0 to 2^53 - 1), end of the lease and tolerance (up to 1 hour)'
                ' are needed';
    end if;
    select f.fencing_token, f.scope into v_stored, v_scope
    from @schema@.tenure_fence f where f.task_id = p_task_id for update;
    if not found then
        insert into @schema@.tenure_fence (task_id, fencing_token, raised_at, scope)
        values (p_task_id, p_fencing_token, clock_timestamp(), p_scope)
        on conflict (task_id) do nothing;
        select f.fencing_token, f.scope into v_stored, v_scope
        from @schema@.tenure_fence f where f.task_id = p_task_id for update;
    end if;
    if p_fencing_token < v_stored then
        raise exception using
            errcode = 'TN001',
            message = format('stale fencing token %s of task %s: a later attempt holds %s',
                p_fencing_token, p_task_id, v_stored),
            detail = v_stored;
    end if;
    if clock_timestamp() >= p_expires_at + p_tolerance then
        raise exception using
            errcode = 'TN002',
            message = format('the authority of task %s under token %s ended at %s',
                p_task_id, p_fencing_token, p_expires_at);
    end if;
    -- Patterns are not compared with patterns: the same is the same, and all else might be wider.
    if p_fencing_token = v_stored and v_scope is not null and p_scope is distinct from v_scope then
        raise exception using
            errcode = 'TN003',
            message = format('another scope was said before of the lease of task %s under token %s',
                p_task_id, p_fencing_token);
    end if;
    if p_fencing_token > v_stored or p_scope is distinct from v_scope then
        update @schema@.tenure_fence f
        set fencing_token = p_fencing_token, raised_at = clock_timestamp(), scope = p_scope
        where f.task_id = p_task_id;
    end if;
end
$$;

-- Lower a limit of this transaction to p_milliseconds; a shorter one that is set already stays.
create or replace function @schema@.tenure_limit(p_name text, p_milliseconds integer)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
declare
    v_set integer := extract(epoch from current_setting(p_name)::interval) * 1000;
begin
    if v_set = 0 or v_set > p_milliseconds then
        perform set_config(p_name, '0', true);  -- a timer that runs is not set anew otherwise
        perform set_config(p_name, p_milliseconds::text, true);
    end if;
end
$$;

-- The first statement of a guarded transaction. already_done: the operation was done before, by
-- whichever attempt. p_remaining_milliseconds is what the attempt has left by its own clock; the
-- server takes the shorter, and ends the transaction itself when its holder is paused or cut off.
-- p_effect and p_object are what the scope is asked for: an operation (null: p_operation) and what
-- it is done to (null: nothing that has a name).
create or replace function @schema@.tenure_guard(
    p_task_id uuid,
    p_attempt_id uuid,
    p_operation text,
    p_fencing_token bigint,
    p_expires_at timestamptz,
    p_tolerance interval,
    p_remaining_milliseconds bigint,
    p_scope jsonb default null,
    p_effect text default null,
    p_object text default null,
    out already_done boolean,
    out limit_milliseconds integer
)
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_left numeric := extract(epoch from p_expires_at + p_tolerance - clock_timestamp()) * 1000;
begin
    limit_milliseconds := greatest(1, least(p_remaining_milliseconds, v_left, 2147483647));
    if least(p_remaining_milliseconds, v_left) <= 0 then
        -- Over already: time enough to say which refusal it is. The commit is judged as ever.
        limit_milliseconds := 1000;
    end if;
    if current_setting('server_version_num')::integer >= 170000 then
        perform @schema@.tenure_limit('transaction_timeout', limit_milliseconds);
    else
        -- Each statement and each pause between two; the trigger below judges the whole.
        perform @schema@.tenure_limit('lock_timeout', limit_milliseconds);
        perform @schema@.tenure_limit('statement_timeout', limit_milliseconds);
        perform @schema@.tenure_limit('idle_in_transaction_session_timeout', limit_milliseconds);
    end if;
    perform @schema@.tenure_raise_fence(
        p_task_id, p_fencing_token, p_expires_at, p_tolerance, p_scope);
    p_effect := coalesce(p_effect, p_operation);
    p_object := coalesce(p_object, '');
    if @schema@.tenure_permits(p_scope, p_effect, p_object) is not true then
        raise exception using
            errcode = 'TN003',
            message = format('the lease of task %s under token %s permits no operation %L on %L',
                p_task_id, p_fencing_token, p_effect, p_object);
    end if;
    insert into @schema@.tenure_inbox
        (task_id, operation, attempt_id, fencing_token, authority_until, done_at)
    values (p_task_id, p_operation, p_attempt_id, p_fencing_token, p_expires_at + p_tolerance,
        clock_timestamp())
    on conflict (task_id, operation) do nothing;
    already_done := not found;
    -- Where tenure_require finds the row that vouches for this transaction. Whoever sets it to
    -- something else finds no such row.
    perform set_config(
        'tenure.guarded', jsonb_build_array(p_task_id, p_operation)::text, true);
end
$$;

-- For triggers of the application's own tables, which know what a row is whatever its writer says:
-- whether the effect that this transaction is guarded for may do this operation to this object.
create or replace function @schema@.tenure_require(p_operation text, p_object text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_guarded jsonb := nullif(current_setting('tenure.guarded', true), '');
    v_scope jsonb;
begin
    select f.scope into v_scope
    from @schema@.tenure_inbox i join @schema@.tenure_fence f using (task_id)
    where i.task_id = (v_guarded ->> 0)::uuid and i.operation = v_guarded ->> 1
        and i.fencing_token = f.fencing_token
        and i.xmin = pg_current_xact_id_if_assigned()::xid and i.done_at >= now();
    if not found then
        raise exception using
            errcode = 'TN003',
            message = 'this transaction is not guarded, or its effect was done before',
            hint = 'Call tenure_guard as its first statement.';
    end if;
    -- An operation that is null, as a column may be, is none that a scope permits.
    if @schema@.tenure_permits(v_scope, p_operation, coalesce(p_object, '')) is not true then
        raise exception using
            errcode = 'TN003',
            message = format('the lease of task %s permits no operation %L on %L',
                v_guarded ->> 0, p_operation, coalesce(p_object, ''));
    end if;
end
$$;

-- The last statement before the commit: which transaction this is, for who began it to compare. What
-- judges at the commit can be called early by SET CONSTRAINTS, and would be silent then: unless the
-- server's limit of the whole transaction still stands behind it, it is called for again.
create or replace function @schema@.tenure_prove(p_task_id uuid, p_attempt_id uuid, p_operation text)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_transaction text := pg_current_xact_id_if_assigned();
    v_limit interval := coalesce(current_setting('transaction_timeout', true), '0');
    v_until timestamptz;
begin
    select i.authority_until into v_until
    from @schema@.tenure_inbox i
    where i.task_id = p_task_id and i.operation = p_operation
        and i.attempt_id = p_attempt_id and i.xmin = v_transaction::xid8::xid;
    if found and (v_limit = interval '0' or v_limit > v_until - now()) then
        set constraints @schema@.tenure_inbox_at_commit deferred;
        update @schema@.tenure_inbox i set done_at = clock_timestamp()
        where i.task_id = p_task_id and i.operation = p_operation;
    end if;
    return v_transaction;
end
$$;

-- At the commit of an effect: time that passed since the first statement counts.
create or replace function @schema@.tenure_inbox_at_commit() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    if clock_timestamp() >= new.authority_until then
        raise exception using
            errcode = 'TN002',
            message = format('the authority of task %s under token %s ended before the commit',
                new.task_id, new.fencing_token);
    end if;
    return null;
end
$$;
do $$
begin
    if not exists (
        select from pg_trigger
        where tgrelid = '@schema@.tenure_inbox'::regclass and tgname = 'tenure_inbox_at_commit'
    ) then
        create constraint trigger tenure_inbox_at_commit
            after insert or update on @schema@.tenure_inbox
            deferrable initially deferred
            for each row execute function @schema@.tenure_inbox_at_commit();
    end if;
end
$$;

-- After a commit whose outcome is unknown: whether this attempt's effect was written. The lost
-- transaction locked the fence, or was the one that made it, unseen by others until its end: an
-- insert waits for the second and the lock for the first, so it has ended before this looks.
create or replace function @schema@.tenure_settle(
    p_task_id uuid,
    p_attempt_id uuid,
    p_operation text,
    p_fencing_token bigint
) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    insert into @schema@.tenure_fence (task_id, fencing_token, raised_at)
    values (p_task_id, p_fencing_token, clock_timestamp())
    on conflict (task_id) do nothing;
    perform from @schema@.tenure_fence f where f.task_id = p_task_id for update;
    return exists (
        select from @schema@.tenure_inbox i
        where i.task_id = p_task_id and i.operation = p_operation
            and i.attempt_id = p_attempt_id
    );
end
$$;

revoke all on table @schema@.tenure_fence, @schema@.tenure_inbox from public;
revoke all on function
    @schema@.tenure_raise_fence(uuid, bigint, timestamptz, interval, jsonb),
    @schema@.tenure_guard(
        uuid, uuid, text, bigint, timestamptz, interval, bigint, jsonb, text, text),
    @schema@.tenure_require(text, text),
    @schema@.tenure_prove(uuid, uuid, text),
    @schema@.tenure_settle(uuid, uuid, text, bigint)
from public;

-- What an earlier version installed asks for no scope. It goes, and who was allowed to call it may
-- call these, which do the same for callers that say nothing of a scope.
do $$
declare
    v_names text[];
    v_role regrole;
begin
    foreach v_names slice 1 in array array[
        array[
            '@schema@.tenure_raise_fence(uuid, bigint, timestamptz, interval)',
            '@schema@.tenure_raise_fence(uuid, bigint, timestamptz, interval, jsonb)'
        ],
        array[
            '@schema@.tenure_guard(uuid, uuid, text, bigint, timestamptz, interval, bigint)',
            '@schema@.tenure_guard(uuid, uuid, text, bigint, timestamptz, interval, bigint,'
            ' jsonb, text, text)'
        ]
    ] loop
        continue when to_regprocedure(v_names[1]) is null;
        for v_role in
            select a.grantee from pg_proc p, aclexplode(p.proacl) a
            where p.oid = to_regprocedure(v_names[1])
                and a.grantee <> 0 and a.privilege_type = 'EXECUTE'
        loop
            execute format('grant execute on function %s to %s', v_names[2], v_role);
        end loop;
        execute format('drop function %s', v_names[1]);
    end loop;
    for v_role in
        select a.grantee from pg_proc p, aclexplode(p.proacl) a
        where p.oid = to_regprocedure(v_names[2])
            and a.grantee <> 0 and a.privilege_type = 'EXECUTE'
    loop
        execute format(
            'grant execute on function %s to %s', '@schema@.tenure_require(text, text)', v_role);
    end loop;
end
$$;
