-- Erasing what an ended task was about, while the record of it stays (OPS-08): its input, the outputs of
-- all its receipts, and the words of its failures. Events never held any of it.

create table erasures (
    task_id uuid primary key,
    tenant text not null,
    erased_at timestamptz not null,
    erased_by text not null,
    reason text not null
);
create trigger erasures_never_change before update on erasures
    for each row execute function refuse_change();
create trigger erasures_are_kept before delete on erasures
    for each row execute function refuse_early_removal();

alter table receipts alter column output drop not null; -- null: erased

-- Ended records do not change, but for what an erasure takes out of them.
create function refuse_change_but_erasure() returns trigger
language plpgsql set search_path = tenure, pg_temp
as $$
declare
    v_field constant text := case tg_table_name when 'receipts' then 'output' else 'message' end;
    v_new constant jsonb := to_jsonb(new);
begin
    if v_new -> v_field = 'null' and v_new - v_field = to_jsonb(old) - v_field
        and exists (select from erasures e where e.task_id = old.task_id)
    then
        return new;
    end if;
    raise exception 'update of an ended record in %', tg_table_name
        using errcode = 'TN010',
            hint = 'Ended tasks and attempts and all receipts are immutable; later findings are '
                'records of their own.';
end
$$;
drop trigger tasks_are_immutable_once_ended on tasks;
create trigger tasks_are_immutable_once_ended before update on tasks
    for each row when (old.ended_at is not null) execute function refuse_change_but_erasure();
drop trigger attempts_are_immutable_once_ended on attempts;
create trigger attempts_are_immutable_once_ended before update on attempts
    for each row when (old.ended_at is not null) execute function refuse_change_but_erasure();
drop trigger receipts_are_immutable on receipts;
create trigger receipts_are_immutable before update on receipts
    for each row execute function refuse_change_but_erasure();

-- A delivery that comes after its task was erased stays as evidence, without its output. The task's row
-- is locked by whoever records it, as by whoever erases.
create function leave_out_what_is_erased() returns trigger
language plpgsql set search_path = tenure, pg_temp
as $$
begin
    if exists (select from erasures e where e.task_id = new.task_id) then
        new.output := null;
    end if;
    return new;
end
$$;
create trigger erased_stays_erased before insert on receipts
    for each row when (not new.admitted) execute function leave_out_what_is_erased();

-- Erases what an ended task was about; again, and nothing more happens. ``outcome``: erased, absent,
-- goes_on (only what has ended can be erased), or unconfirmed (the authority is not).
create function erase_task(p_tenant text, p_task_id uuid, p_by text, p_reason text,
    out outcome text, out erased_at timestamptz, out erased_by text, out reason text)
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
#variable_conflict use_column
declare
    v_ended_at timestamptz;
begin
    if confirmed_epoch() is null then
        outcome := 'unconfirmed';
        return;
    end if;
    select t.ended_at into v_ended_at from tasks t
    where t.task_id = p_task_id and t.tenant = p_tenant
    for no key update;
    if not found then
        outcome := 'absent';
        return;
    elsif v_ended_at is null then
        outcome := 'goes_on';
        return;
    end if;
    insert into erasures (task_id, tenant, erased_at, erased_by, reason)
    values (p_task_id, p_tenant, clock_timestamp(), p_by, p_reason)
    on conflict (task_id) do nothing;
    delete from task_inputs where task_id = p_task_id;
    update receipts set output = null where task_id = p_task_id and output is not null;
    update attempts set message = null where task_id = p_task_id and message is not null;
    update tasks set message = null where task_id = p_task_id and message is not null;
    -- What was enqueued for it and refused at first has its input still.
    update intake set input = 'null', message = null where task_id = p_task_id and state = 'refused';
    outcome := 'erased';
    select e.erased_at, e.erased_by, e.reason into erased_at, erased_by, reason
    from erasures e where e.task_id = p_task_id;
end
$$;
