-- The guard without its comparison of tokens. For `--weaken fence` only: the demo must notice.
create or replace function guard.tenure_raise_fence(
    p_task_id uuid,
    p_fencing_token bigint,
    p_expires_at timestamptz,
    p_tolerance interval,
    p_scope jsonb default null
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
begin
    insert into guard.tenure_fence as f (task_id, fencing_token, raised_at)
    values (p_task_id, p_fencing_token, clock_timestamp())
    on conflict (task_id) do update
    set fencing_token = greatest(f.fencing_token, excluded.fencing_token);
    if clock_timestamp() >= p_expires_at + p_tolerance then
        raise exception using errcode = 'TN002', message = 'the authority has ended';
    end if;
end
$$;
