-- Enqueueing: a task asked for in an application's own transaction. Its commit is the promise, its
-- rollback leaves nothing. The function appends to the intake and to nothing else: it takes no lock of
-- the authority's, so a transaction that stays open for an hour delays its own task and nobody's.
--
-- Refusals have the SQLSTATE of their kind, and say in their hint what to do:
--
--   TN020 invalid_field          TN023 idempotency_conflict   TN026 deadline_in_the_past
--   TN021 payload_too_large      TN024 forbidden_role
--   TN022 invalid_character      TN025 malformed_json

-- Which login may enqueue, and for which tenants. Grants are made with the rows.
create table intake_roles (
    role_name text not null,
    tenant text not null check (tenant ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    created_at timestamptz not null default clock_timestamp(),
    primary key (role_name, tenant)
);

-- The id of a command from its caller's key: the first 16 bytes of a SHA-256, as the coordinators
-- derive it, so that one key over HTTP and here is one command.
create function command_id_of(p_tenant text, p_purpose text, p_key text) returns uuid
language sql immutable strict parallel safe
set search_path = tenure, pg_temp
as $$
    select encode(substr(sha256(
        convert_to(p_tenant || '/' || p_purpose || '/' || p_key, 'UTF8')), 1, 16), 'hex')::uuid
$$;

-- A version 7 UUID: tasks are served in the order of their ids.
create function new_task_id() returns uuid
language sql volatile parallel safe
set search_path = tenure, pg_temp
as $$
    select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        placing substr(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint), 3)
        from 1 for 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- Whether it has the form of a scope. What its patterns say is looked at when the row is taken in.
create function is_scope(p_scope json) returns boolean
language plpgsql immutable parallel safe
set search_path = tenure, pg_temp
as $$
declare
    v_patterns record;
begin
    if p_scope is null then
        return true;
    elsif not pg_input_is_valid(p_scope::text, 'jsonb') or json_typeof(p_scope) <> 'object' then
        return false;
    end if;
    for v_patterns in select key, value from json_each(p_scope) loop
        if v_patterns.key not in ('operations', 'objects')
            or json_typeof(v_patterns.value) <> 'array'
        then
            return false;
        elsif json_array_length(v_patterns.value) not between 1 and 100 then
            return false;
        elsif exists (
            select from json_array_elements(v_patterns.value) e
            where json_typeof(e) <> 'string'
        ) then
            return false;
        elsif exists (
            select from json_array_elements_text(v_patterns.value) e
            where char_length(e) not between 1 and 300
        ) then
            return false;
        end if;
    end loop;
    return true;
end
$$;

create function enqueue(
    type text,
    input json,
    idempotency_key text default null,
    priority integer default 0,
    not_before timestamptz default null,
    deadline timestamptz default null,
    cpu_millis integer default null,    -- thousandths of a core; both null: as the type declares
    memory_bytes bigint default null,
    tenant text default null,           -- needed by a role of several tenants only
    concurrency_key text default null,  -- what it counts with under limits
    scope json default null,            -- {"operations": [...], "objects": [...]}: what its leases
                                        -- permit of what its type permits; null: all of it
    traceparent text default null       -- the application's trace (W3C Trace Context)
) returns uuid
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
#variable_conflict use_column
declare
    c_payload_limit_bytes constant integer := 262144;
    v_tenants text[];
    v_tenant text;
    v_text text := coalesce(enqueue.input, 'null')::text;
    v_fault record;
    v_input jsonb;
    v_fingerprint bytea;
    v_command_id uuid;
    v_task_id uuid;
    v_found record;
begin
    -- Who asks. The login itself, whatever role it has set.
    select array_agg(r.tenant order by r.tenant) into v_tenants
    from intake_roles r where r.role_name = session_user;
    if v_tenants is null then
        raise exception 'the role % may not enqueue', session_user using errcode = 'TN024',
            hint = format('Let the owner of the schema run: tenure migrate application %s '
                '--tenant NAME', session_user);
    end if;
    v_tenant := coalesce(enqueue.tenant, v_tenants[1]);
    if enqueue.tenant is null and cardinality(v_tenants) > 1 then
        raise exception 'tenant: the role % has several', session_user using errcode = 'TN020',
            hint = 'Name one of: ' || array_to_string(v_tenants, ', ') || '.';
    elsif v_tenant <> all (v_tenants) then
        raise exception 'the role % may not enqueue for the tenant %', session_user, v_tenant
            using errcode = 'TN024',
                hint = 'It may for: ' || array_to_string(v_tenants, ', ') || '.';
    end if;

    -- What is asked for. A type nobody has registered is found out when the row is taken in: this
    -- login reads nothing.
    if enqueue.type is null or enqueue.type !~ '^[a-z][a-z0-9_.-]{0,127}$' then
        raise exception 'type: no name of a task type' using errcode = 'TN020',
            hint = 'Use lower case letters, digits, "_", "." and "-", beginning with a letter, at '
                'most 128 characters.';
    elsif char_length(enqueue.idempotency_key) not between 1 and 255 then
        raise exception 'idempotency_key: % characters', char_length(enqueue.idempotency_key)
            using errcode = 'TN020', hint = 'A key has 1 to 255 characters; null for none.';
    elsif char_length(enqueue.concurrency_key) not between 1 and 255 then
        raise exception 'concurrency_key: % characters', char_length(enqueue.concurrency_key)
            using errcode = 'TN020', hint = 'A key has 1 to 255 characters; null for none.';
    elsif coalesce(enqueue.priority not between -100 and 100, true) then
        raise exception 'priority: %', enqueue.priority using errcode = 'TN020',
            hint = 'Give a number from -100 to 100; higher is sooner.';
    elsif enqueue.cpu_millis not between 0 and 1000000000
        or enqueue.memory_bytes not between 0 and 1152921504606846976
    then
        raise exception 'cpu_millis, memory_bytes: % and %', enqueue.cpu_millis,
            enqueue.memory_bytes using errcode = 'TN020',
            hint = 'Give up to 10^9 thousandths of a core and up to 2^60 bytes.';
    elsif enqueue.not_before not between '0001-01-02 00:00Z' and '9998-12-31 23:59:59.999999Z'
        or enqueue.deadline not between '0001-01-02 00:00Z' and '9998-12-31 23:59:59.999999Z'
    then
        raise exception 'not_before, deadline: outside the years 1 to 9998'
            using errcode = 'TN020', hint = 'Leave out what is not wanted.';
    elsif enqueue.traceparent !~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$'
    then
        raise exception 'traceparent: not in the form of W3C Trace Context' using errcode = 'TN020',
            hint = 'Like 00-5f0c9a1e7d3b48269c41d0e2f7a8b613-4e1d9c20b7a35f68-01; null for none.';
    elsif not is_scope(enqueue.scope) then
        raise exception 'scope: no object of operations and objects' using errcode = 'TN020',
            hint = 'Like {"operations": ["write"], "objects": ["orders/17"]}: each 1 to 100 patterns '
                'of 1 to 300 characters, and one that is left out permits all.';
    elsif enqueue.not_before >= enqueue.deadline then
        raise exception 'not_before: not before the deadline' using errcode = 'TN020',
            hint = 'The work has to fit between the two.';
    elsif octet_length(convert_to(v_text, 'UTF8')) > c_payload_limit_bytes then
        raise exception 'the input has % bytes, more than the limit of %',
            octet_length(convert_to(v_text, 'UTF8')), c_payload_limit_bytes
            using errcode = 'TN021', hint = 'Store it elsewhere and pass a reference.';
    end if;
    select * into v_fault from pg_input_error_info(v_text, 'jsonb');
    if v_fault.sql_error_code is not null then
        raise exception 'the input cannot be stored: %', v_fault.message
            using errcode = case v_fault.sql_error_code when '22003' then 'TN025' else 'TN022' end,
                detail = coalesce(v_fault.detail, ''),
                hint = 'Remove \u0000 and lone surrogates; encode binary data as base64.';
    end if;
    v_input := v_text::jsonb;
    if jsonb_path_exists(v_input, '$.**{64}') then
        raise exception 'the input is nested deeper than 64 levels' using errcode = 'TN025',
            hint = 'Flatten it, or store it elsewhere and pass a reference.';
    end if;
    v_fingerprint := sha256(convert_to(jsonb_build_array(enqueue.type, v_input, enqueue.priority,
        extract(epoch from enqueue.not_before), extract(epoch from enqueue.deadline),
        enqueue.cpu_millis, enqueue.memory_bytes, enqueue.concurrency_key,
        enqueue.scope::jsonb)::text, 'UTF8'));

    -- Which task: the one that the key stands for already, else a new one.
    if enqueue.idempotency_key is not null then
        v_command_id := command_id_of(v_tenant, 'submit', enqueue.idempotency_key);
        select (c.reply ->> 'task_id')::uuid as task_id, t.type, i.input::text::jsonb as input,
            i.scope::text::jsonb as scope
        into v_found
        from commands c
        left join tasks t on t.task_id = (c.reply ->> 'task_id')::uuid
        left join task_inputs i on i.task_id = t.task_id
        where c.command_id = v_command_id;
        -- The scope's defaults are written out where it was taken in.
        if v_found.type <> enqueue.type or v_found.input <> v_input
            or v_found.input is not null and v_found.scope is distinct from
                '{"operations": ["*"], "objects": ["*"]}'::jsonb || enqueue.scope::jsonb
        then
            raise exception 'the key % stands for task %, which asks for something else',
                enqueue.idempotency_key, v_found.task_id
                using errcode = 'TN023', hint = 'Use a key of its own for each task.';
        end if;
        v_task_id := coalesce(v_found.task_id, (
            select q.task_id from intake q
            where q.command_id = v_command_id and q.state = 'refused'
            order by q.intake_id desc limit 1));
    end if;
    v_task_id := coalesce(v_task_id, new_task_id());

    loop
        select q.task_id, q.fingerprint into v_found from intake q
        where q.command_id = v_command_id and q.state <> 'refused';
        if found and v_found.fingerprint <> v_fingerprint then
            raise exception 'the key % stands for task %, which asks for something else',
                enqueue.idempotency_key, v_found.task_id
                using errcode = 'TN023', hint = 'Use a key of its own for each task.';
        elsif found then
            return v_found.task_id;
        elsif enqueue.deadline <= clock_timestamp() then
            raise exception 'the deadline has passed already' using errcode = 'TN026',
                hint = 'Give a later one, or none.';
        end if;
        insert into intake (tenant, command_id, task_id, idempotency_key, type, input, priority,
            not_before, deadline, cpu_millis, memory_bytes, concurrency_key, scope, traceparent,
            fingerprint, enqueued_by)
        values (v_tenant, coalesce(v_command_id, v_task_id), v_task_id, enqueue.idempotency_key,
            enqueue.type, v_text::json, enqueue.priority, enqueue.not_before, enqueue.deadline,
            enqueue.cpu_millis, enqueue.memory_bytes, enqueue.concurrency_key, enqueue.scope,
            enqueue.traceparent, v_fingerprint, session_user)
        on conflict (command_id) where state <> 'refused' do nothing;
        if found then
            return v_task_id;
        end if;
        -- Another transaction was quicker and has committed: look at its row.
    end loop;
end
$$;

-- Refused rows of a tenant once more, each as another row that waits, for the same task: what they were
-- refused for may have been put right. $2 only with this code, $3 only of this type (null: any), $4 at
-- most so many. Of several rows of one submission the newest; what waits already is left alone. Returns
-- how many.
create function retry_intake(p_tenant text, p_code text, p_type text, p_limit integer)
returns integer
language plpgsql volatile security definer
set search_path = tenure, pg_temp
as $$
declare
    v_rows integer;
begin
    insert into intake (tenant, command_id, task_id, idempotency_key, type, input, priority,
        not_before, deadline, cpu_millis, memory_bytes, concurrency_key, scope, traceparent,
        fingerprint, enqueued_by)
    select q.tenant, q.command_id, q.task_id, q.idempotency_key, q.type, q.input, q.priority,
        q.not_before, q.deadline, q.cpu_millis, q.memory_bytes, q.concurrency_key, q.scope,
        q.traceparent, q.fingerprint, q.enqueued_by
    from intake q
    where q.state = 'refused' and q.tenant = p_tenant
        and (p_code is null or q.code = p_code)
        and (p_type is null or q.type = p_type)
        and not exists (
            select from intake n where n.command_id = q.command_id
                and (n.state <> 'refused' or n.intake_id > q.intake_id))
    order by q.intake_id
    limit p_limit
    on conflict (command_id) where state <> 'refused' do nothing;
    get diagnostics v_rows = row_count;
    return v_rows;
end
$$;
