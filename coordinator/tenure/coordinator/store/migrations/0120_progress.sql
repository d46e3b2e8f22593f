-- How far the work on a task has come, and from where the next attempt may go on. Apart from the state:
-- no decision reads it, no event tells of it, and only the newest is kept.

create table task_progress (
    task_id uuid primary key,
    tenant text not null,
    fencing_token bigint not null,          -- of the attempt that said it
    fraction double precision check (fraction between 0 and 1),
    message text,
    at timestamptz not null,
    checkpoint json,
    checkpoint_fencing_token bigint,
    checkpoint_at timestamptz,
    constraint checkpoints_are_somebodys check (
        (checkpoint is null) = (checkpoint_fencing_token is null)
        and (checkpoint is null) = (checkpoint_at is null))
) with (fillfactor = 50);

-- Keeps what attempts say, each under its own authority: the same guards as for every report, in the same
-- order. One row an argument: null where it was kept, else the code of the refusal.
create function record_progress(
    p_tenant text, p_node_id text, p_incarnation uuid, p_tasks uuid[], p_attempts uuid[],
    p_tokens bigint[], p_fractions double precision[], p_messages text[], p_checkpoints text[]
) returns table (ord bigint, code text)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_codes text[];
    v_confirmed boolean;
begin
    perform 1 from tasks t where t.task_id = any (p_tasks) order by t.task_id for no key update;
    v_now := clock_timestamp();
    v_confirmed := confirmed_epoch() is not null;
    select array_agg(
        case
            when not v_confirmed then 'authority_unconfirmed'
            when a.attempt_id is null or t.tenant is distinct from p_tenant
                or a.task_id is distinct from t.task_id then 'unknown_attempt'
            when a.node_id <> p_node_id or a.incarnation <> p_incarnation then 'wrong_node'
            when a.fencing_token <> p_tokens[i.ord] then 'stale_token'
            when t.current_attempt_id is distinct from a.attempt_id then 'not_current'
            when a.state <> 'running' then 'wrong_state'
            when a.expires_at <= greatest(v_now, t.decided_at, a.decided_at) then 'lease_expired'
        end order by i.ord)
    into v_codes
    from unnest(p_tasks, p_attempts) with ordinality as i (task_id, attempt_id, ord)
    left join tasks t on t.task_id = i.task_id
    left join attempts a on a.attempt_id = i.attempt_id;
    insert into task_progress as p (task_id, tenant, fencing_token, fraction, message, at, checkpoint,
        checkpoint_fencing_token, checkpoint_at)
    select distinct on (i.task_id) i.task_id, p_tenant, p_tokens[i.ord], p_fractions[i.ord],
        p_messages[i.ord], v_now, p_checkpoints[i.ord]::json,
        case when p_checkpoints[i.ord] is not null then p_tokens[i.ord] end,
        case when p_checkpoints[i.ord] is not null then v_now end
    from unnest(p_tasks) with ordinality as i (task_id, ord)
    where v_codes[i.ord] is null
    order by i.task_id, i.ord desc
    on conflict (task_id) do update set
        -- What an earlier attempt said of itself is none of the next one's.
        fraction = case when excluded.fencing_token = p.fencing_token
            then coalesce(excluded.fraction, p.fraction) else excluded.fraction end,
        message = case when excluded.fencing_token = p.fencing_token
            then coalesce(excluded.message, p.message) else excluded.message end,
        fencing_token = excluded.fencing_token,
        at = excluded.at,
        checkpoint = coalesce(excluded.checkpoint, p.checkpoint),
        checkpoint_fencing_token = coalesce(
            excluded.checkpoint_fencing_token, p.checkpoint_fencing_token),
        checkpoint_at = coalesce(excluded.checkpoint_at, p.checkpoint_at);
    return query select i.ord, i.code from unnest(v_codes) with ordinality as i (code, ord)
        order by i.ord;
end
$$;

-- It goes with the input: when a task is erased, and when it is removed.
create function forget_progress() returns trigger
language plpgsql security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
begin
    delete from task_progress where task_id = any (array(select g.task_id from gone g));
    return null;
end
$$;
create trigger progress_goes_with_the_input after delete on task_inputs
    referencing old table as gone
    for each statement execute function forget_progress();
