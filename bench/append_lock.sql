-- What the append-lock measurement adds to a migrated database. Commands are made on the server, so that
-- the client's encoding does not hide what the lock costs; they go through the real commit function.

create schema bench;

-- Commits ``items`` submissions with two log rows each, about what a command of a task's life has (four
-- commands, seven rows). With several append locks, ``lane`` of ``lanes`` has the shards to itself that
-- leave the remainder ``lane`` when divided by ``lanes``: the kindest case for several locks.
create function bench.submit(items integer, lane integer, lanes integer) returns integer
language plpgsql volatile security definer set search_path = tenure, pg_temp as $$
declare
    padding constant text := '{"data":"' || repeat('x', 430) || '"}';
    commands commit_item[];
    inserts task_insert[];
    events event_append[];
    answer smallint[];
begin
    with fresh as (
        select n as item, gen_random_uuid() as task_id,
            (lane + lanes * (n % (64 / lanes)))::smallint as shard
        from generate_series(1, items) n
    )
    select
        array_agg(row(f.task_id, 'default', '\x00'::bytea, 'applied', '{}', 1, f.task_id, null, null,
            null, null, null, null, null, null, false, false, false, false, false, null,
            null, null)::commit_item order by f.item),
        array_agg(row(f.item, f.task_id, 'default', 'bench', '{"path":"a"}', 0, null, null,
            'idempotent', 5, 0, 0)::task_insert order by f.item),
        (select array_agg(row(e.item, e.shard, e.task_id, 'default', 'task', e.task_id, null, 1,
                v.sequence, gen_random_uuid(), 'open', false, 'tenure.events', 'default.task.open',
                false, convert_to(padding, 'UTF8'))::event_append order by e.item, v.sequence)
            from fresh e cross join (values (1), (2)) v (sequence))
    into commands, inserts, events
    from fresh f;
    select outcomes into answer from commit_batch(
        commands, inserts, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', events, '{}', '{}');
    return (select count(*) from unnest(answer) outcome where outcome = 0);
end
$$;

-- One row and nothing else: how long a commit takes.
create table bench.probe (at timestamptz default clock_timestamp());

create table bench.append_lock_0 ();
create table bench.append_lock_1 ();
create table bench.append_lock_2 ();
create table bench.append_lock_3 ();
create table bench.append_lock_4 ();
create table bench.append_lock_5 ();
create table bench.append_lock_6 ();
create table bench.append_lock_7 ();

grant usage on schema bench to tenure_coordinator;
grant insert on bench.probe to tenure_coordinator;
grant execute on function bench.submit(integer, integer, integer) to tenure_coordinator;
