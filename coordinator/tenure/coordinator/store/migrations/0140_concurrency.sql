-- How many tasks of a type a node has (SCHED-01): what it has reserved, counted and never remembered,
-- so that whatever ends an attempt, however it was lost, makes room.

-- Of one type.
create function running_of_type(p_incarnation uuid, p_type text) returns bigint
language plpgsql stable
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
begin
    return (
        select count(*) from attempts a
        join reservations e on e.attempt_id = a.attempt_id
        where a.incarnation = p_incarnation and a.ended_at is null and e.type = p_type
    );
end
$$;

-- Of each that it has any of.
create function running_types(p_incarnation uuid) returns json
language plpgsql stable security definer
set search_path = tenure, pg_temp
set enable_seqscan = off
as $$
begin
    return (
        select coalesce(json_object_agg(c.type, c.tasks), '{}')
        from (
            select e.type, count(*) as tasks from attempts a
            join reservations e on e.attempt_id = a.attempt_id
            where a.incarnation = p_incarnation and a.ended_at is null
            group by e.type
        ) c
    );
end
$$;
