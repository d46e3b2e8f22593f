-- The log grows by partitions of ten million positions; whoever appends takes the append lock first.

-- Fires before the statement reads its first row, so before any position is taken: a position taken
-- later belongs to a transaction that commits later, and nothing appears behind a cursor.
create function take_append_lock() returns trigger
language plpgsql security definer set search_path = tenure, pg_temp as $$
begin
    lock table append_lock in share row exclusive mode;
    return null;
end
$$;

create trigger append_lock_first before insert on log
    for each statement execute function take_append_lock();

-- Catches what no partition was made for in time. Must stay empty: a row here is an alarm.
create table log_default partition of log default;
create trigger append_lock_first before insert on log_default
    for each statement execute function take_append_lock();

create function log_partition_size() returns bigint
language sql immutable parallel safe set search_path = tenure, pg_temp as $$ select 10000000::bigint $$;

create function log_partition_name(p_number bigint) returns text
language sql immutable strict parallel safe set search_path = tenure, pg_temp as $$
    select 'log_p' || lpad(p_number::text, greatest(6, length(p_number::text)), '0')
$$;

-- Makes the partition of the last position, and ``ahead`` more, where they do not exist yet; says how
-- many it made. Partition n holds positions (n - 1) * 10,000,000 up to, not including, n * 10,000,000.
-- Built apart and then attached, since that lets appends and reads of the log go on meanwhile.
-- Statement triggers are not inherited, so each partition gets its own. Rows that came before their
-- partition are moved there, unless they are so many that they would hold everybody up.
create function ensure_log_partitions(ahead integer default 2) returns integer
language plpgsql security definer set search_path = tenure, pg_temp as $$
declare
    size constant bigint := log_partition_size();
    current_number bigint;
    most_moved constant integer := 10000;
    partition_name text;
    misplaced integer;
    made integer := 0;
begin
    if ahead < 0 then
        raise exception 'ahead is %, not at least 0', ahead using errcode = '22023';
    end if;
    -- One at a time; of two replicas the second then finds the work done.
    perform pg_advisory_xact_lock(hashtextextended('tenure.ensure_log_partitions', 0));
    select last_value / size + 1 into current_number from log_position;
    for number in current_number .. current_number + ahead loop
        partition_name := log_partition_name(number);
        continue when to_regclass('tenure.' || partition_name) is not null;
        select count(*) into misplaced from (
            select from log_default d
            where d.position >= (number - 1) * size and d.position < number * size
            limit most_moved + 1
        ) found;
        continue when misplaced > most_moved;
        execute format('create table %I (like log including all)', partition_name);
        if misplaced > 0 then
            lock table append_lock in share row exclusive mode;
            execute format('with moved as (delete from log_default d where d.position >= %s'
                ' and d.position < %s returning *) insert into %I select * from moved',
                (number - 1) * size, number * size, partition_name);
        end if;
        execute format('create trigger append_lock_first before insert on %I'
            ' for each statement execute function take_append_lock()', partition_name);
        execute format('alter table log attach partition %I for values from (%s) to (%s)',
            partition_name, (number - 1) * size, number * size);
        made := made + 1;
    end loop;
    return made;
end
$$;

select ensure_log_partitions();
