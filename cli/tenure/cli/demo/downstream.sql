-- The database of somebody else that the demo writes into. Nothing but the guard keeps a row from
-- being written twice: there is no unique key on purpose.

create schema if not exists demo;

create table if not exists demo.files (
    task_id uuid not null,
    fencing_token bigint not null,
    path text not null,
    sha256 text not null,
    size_bytes bigint not null,
    lines bigint not null,
    written_at timestamptz not null default clock_timestamp()
);

-- Every change of a row of demo.files, in an append-only table that the writer cannot touch.
create table if not exists demo.audit (
    position bigint generated always as identity primary key,
    operation text not null,
    task_id uuid not null,
    path text not null,
    fencing_token bigint not null,
    account text not null,
    at timestamptz not null default clock_timestamp()
);

create or replace function demo.record_change() returns trigger
language plpgsql security definer set search_path = demo, pg_temp
as $$
declare
    v_row demo.files := coalesce(new, old);
begin
    insert into demo.audit (operation, task_id, path, fencing_token, account)
    values (tg_op, v_row.task_id, v_row.path, v_row.fencing_token, session_user);
    return null;
end
$$;

create or replace function demo.refuse_change() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'demo.audit is append-only';
end
$$;

create or replace trigger record_change
    after insert or update or delete on demo.files
    for each row execute function demo.record_change();

create or replace trigger refuse_change
    before update or delete or truncate on demo.audit
    for each statement execute function demo.refuse_change();

grant usage on schema demo to demo_hasher;
grant insert on demo.files to demo_hasher;
