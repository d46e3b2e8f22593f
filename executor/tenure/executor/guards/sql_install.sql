-- What a downstream database needs in order to refuse stale work by itself (LEASE-10).
--
-- One fence row for each task, raised to an attempt's token before its handler has control; one
-- inbox row for each operation of a task, written in the transaction of its effect. PostgreSQL 15
-- or newer, no extension. The functions run with their owner's rights: an account that may execute
-- them needs no right on the tables, and can neither lower a fence nor forge an inbox row.
--
-- Every function takes the lease's end on the authority's clock and the tolerance between clocks:
-- an attempt that was paused cannot know a later one.

create table if not exists @schema@.tenure_fence (
    task_id uuid primary key,
    fencing_token bigint not null,
    raised_at timestamptz not null
) with (fillfactor = 70);

create table if not exists @schema@.tenure_inbox (
    task_id uuid not null,
    operation text not null,
    attempt_id uuid not null,
    fencing_token bigint not null,
    authority_until timestamptz not null,
    done_at timestamptz not null,
    primary key (task_id, operation)
);

-- Lock the fence, judge the token and the time, raise the fence. The clock is read after the lock
-- is held: whoever waited for it is judged at the end of the wait.
create or replace function @schema@.tenure_raise_fence(
    p_task_id uuid,
    p_fencing_token bigint,
    p_expires_at timestamptz,
    p_tolerance interval
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
declare
    v_stored bigint;
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
    select f.fencing_token into v_stored
    from @schema@.tenure_fence f where f.task_id = p_task_id for update;
    if not found then
        insert into @schema@.tenure_fence (task_id, fencing_token, raised_at)
        values (p_task_id, p_fencing_token, clock_timestamp())
        on conflict (task_id) do nothing;
        select f.fencing_token into v_stored
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
    if p_fencing_token > v_stored then
        update @schema@.tenure_fence f
        set fencing_token = p_fencing_token, raised_at = clock_timestamp()
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
create or replace function @schema@.tenure_guard(
    p_task_id uuid,
    p_attempt_id uuid,
    p_operation text,
    p_fencing_token bigint,
    p_expires_at timestamptz,
    p_tolerance interval,
    p_remaining_milliseconds bigint,
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
    perform @schema@.tenure_raise_fence(p_task_id, p_fencing_token, p_expires_at, p_tolerance);
    insert into @schema@.tenure_inbox
        (task_id, operation, attempt_id, fencing_token, authority_until, done_at)
    values (p_task_id, p_operation, p_attempt_id, p_fencing_token, p_expires_at + p_tolerance,
        clock_timestamp())
    on conflict (task_id, operation) do nothing;
    already_done := not found;
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
    @schema@.tenure_raise_fence(uuid, bigint, timestamptz, interval),
    @schema@.tenure_guard(uuid, uuid, text, bigint, timestamptz, interval, bigint),
    @schema@.tenure_prove(uuid, uuid, text),
    @schema@.tenure_settle(uuid, uuid, text, bigint)
from public;
