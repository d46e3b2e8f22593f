-- The guard without its checks of time: the token alone refuses. For `--weaken expiry` only.
create or replace function guard.tenure_inbox_at_commit() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    return null;
end
$$;

create or replace function guard.tenure_limit(p_name text, p_milliseconds integer)
returns void
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    return;
end
$$;

create or replace function guard.tenure_raise_fence(
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
begin
    insert into guard.tenure_fence as f (task_id, fencing_token, raised_at)
    values (p_task_id, p_fencing_token, clock_timestamp())
    on conflict (task_id) do update
    set fencing_token = greatest(f.fencing_token, excluded.fencing_token)
    returning f.fencing_token into v_stored;
    if p_fencing_token < v_stored then
        raise exception using errcode = 'TN001', message = 'stale fencing token';
    end if;
end
$$;
