-- Dead letters: messages that a queue gave up. A coordinator takes them from the dead-letter queue and keeps
-- them here before it acknowledges them, until an operator has sent them again or discarded them.

create table dead_letters (
    dead_letter_id bigint generated always as identity primary key,
    queue text not null,                    -- that gave it up
    event_id text not null,                 -- of what is no event: a digest of its body
    tenant text,                            -- null: no event
    task_id text,
    event_type text,
    reason text not null,
    times integer not null default 1,       -- how many copies came back
    message_id text not null,               -- of the copy that came last
    body_bytes integer not null,
    body bytea,                             -- null: too large to be kept
    first_at timestamptz not null,
    last_at timestamptz not null,
    state text not null default 'waiting' check (state in ('waiting', 'redriven', 'discarded')),
    settled_at timestamptz,
    settled_by text,
    settled_reason text,
    constraint dead_letters_of_a_queue unique (queue, event_id),
    constraint settled_dead_letters_say_by_whom check (state = 'waiting' or
        (settled_at is not null and settled_by is not null and settled_reason is not null))
);
create index dead_letters_by_age on dead_letters (greatest(last_at, settled_at));
create index dead_letters_waiting on dead_letters (dead_letter_id) where state = 'waiting';

-- Record what came back. A copy counts once, however often it is told of; another copy of an event that
-- was settled waits again. Returns false, and records nothing, when the authority is not confirmed.
create function record_dead_letters(
    p_queues text[], p_event_ids text[], p_tenants text[], p_task_ids text[], p_event_types text[],
    p_reasons text[], p_message_ids text[], p_sizes integer[], p_bodies bytea[]
) returns boolean
language plpgsql volatile strict security definer
set search_path = tenure, pg_temp
as $$
declare
    r record;
begin
    if confirmed_epoch() is null then
        return false;
    end if;
    for r in
        select * from unnest(p_queues, p_event_ids, p_tenants, p_task_ids, p_event_types, p_reasons,
            p_message_ids, p_sizes, p_bodies)
            as c (queue, event_id, tenant, task_id, event_type, reason, message_id, size, body)
        order by c.queue, c.event_id
    loop
        insert into dead_letters as d (queue, event_id, tenant, task_id, event_type, reason,
            message_id, body_bytes, body, first_at, last_at)
        values (r.queue, r.event_id, r.tenant, r.task_id, r.event_type, r.reason, r.message_id,
            r.size, r.body, clock_timestamp(), clock_timestamp())
        on conflict (queue, event_id) do update set
            times = d.times + 1, reason = excluded.reason, message_id = excluded.message_id,
            last_at = excluded.last_at, state = 'waiting'
        where d.message_id <> excluded.message_id;
    end loop;
    return true;
end
$$;

-- Say what became of a dead letter. Returns whether it is there, and the tenant's; null when the
-- authority is not confirmed.
create function settle_dead_letter(
    p_tenant text, p_dead_letter_id bigint, p_state text, p_reason text, p_actor text
) returns boolean
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
declare
    v_tenant text;
begin
    if confirmed_epoch() is null then
        return null;
    end if;
    update dead_letters d
    set state = p_state, settled_at = clock_timestamp(), settled_by = p_actor,
        settled_reason = p_reason
    where d.dead_letter_id = p_dead_letter_id and (d.tenant = p_tenant or p_tenant is null)
    returning d.tenant into v_tenant;
    if not found then
        return false;
    end if;
    insert into fact_changes values (clock_timestamp(), p_actor, coalesce(v_tenant, '*'),
        'dead_letter', p_dead_letter_id::text,
        json_build_object('state', p_state, 'reason', p_reason));
    return true;
end
$$;
