-- What the authority is, over promotions and restores (LEASE-04). Everything here locks the one row of
-- ``authority`` and no other, so it is after all rows in the lock order and waits for nobody who waits.

-- Every epoch there was. A copy of this database may have opened others that are not here.
create table authority_epochs (
    epoch integer primary key,
    opened_at timestamptz not null default clock_timestamp(),
    opened_by text not null,
    cause text not null check (cause in ('initial', 'promotion', 'recovery')),
    reason text not null,
    system_identifier bigint not null,
    timeline text not null
);
insert into authority_epochs (epoch, opened_at, opened_by, cause, reason, system_identifier, timeline)
select epoch, opened_at, 'migration', 'initial', 'a new database', system_identifier, timeline
from authority;
create trigger epochs_never_change before update or delete on authority_epochs
    for each row execute function refuse_change();
create trigger epochs_are_not_emptied before truncate on authority_epochs
    for each statement execute function refuse_change();

-- The running server: another identifier is another cluster, another timeline a promotion or a restore.
create function running_server(out system_identifier bigint, out timeline text)
language sql stable security definer set search_path = tenure, pg_temp
as $$
    select system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
    from pg_control_system()
$$;

-- Ten-minute periods since 2026 began, UTC. Epochs are at least as high, so that a database that was
-- restored does not open an epoch again that its lost successor had opened in an earlier period.
create function epoch_period(p_at timestamptz) returns integer
language sql immutable strict set search_path = tenure, pg_temp
as $$
    select greatest(0, floor(extract(epoch from p_at - '2026-01-01 00:00+00') / 600))::integer
$$;

-- The epoch that a recovery opens now, or how long it has to wait for one that no other recovery can
-- have opened. Whoever recovers in a period opens the epoch after that period's number, and only in a
-- later period than the one in which its server started. So when this server was started from a backup
-- after another copy of that backup was recovered, that copy's epoch is lower. ``p_above``: the person
-- who recovers knows the highest epoch that was ever opened, and nothing has to be waited for.
create function epoch_to_recover(
    p_stored integer, p_seen integer, p_above integer, p_started timestamptz, p_now timestamptz,
    out epoch integer, out wait_seconds integer
)
language plpgsql immutable set search_path = tenure, pg_temp
as $$
declare
    v_period integer := epoch_period(p_now);
    v_known integer := greatest(p_stored, p_seen, p_above);
    v_first integer := greatest(v_known, epoch_period(p_started) + 1);
begin
    if p_above is null and v_period < v_first then
        wait_seconds := ceil(extract(epoch from
            '2026-01-01 00:00+00'::timestamptz + v_first * interval '10 minutes' - p_now));
    else
        epoch := greatest(v_known, v_period) + 1;
    end if;
end
$$;

create function open_epoch(p_epoch integer, p_by text, p_cause text, p_reason text) returns void
language plpgsql volatile set search_path = tenure, pg_temp
as $$
begin
    update authority set
        epoch = p_epoch, opened_at = clock_timestamp(), lost_at = null, lost_proof = null,
        highest_epoch_seen = greatest(highest_epoch_seen, p_epoch),
        (system_identifier, timeline) = (select r.system_identifier, r.timeline from running_server() r);
    insert into authority_epochs (epoch, opened_by, cause, reason, system_identifier, timeline)
    select p_epoch, p_by, p_cause, p_reason, r.system_identifier, r.timeline from running_server() r;
end
$$;

-- After a promotion: the same cluster on a later timeline. Opens the next epoch where the policy says
-- `continue`; null when there was nothing to open, or a person has to decide. Leases that were granted
-- go on; every later token carries the new epoch.
create function open_epoch_after_promotion(p_by text) returns integer
language plpgsql volatile security definer set search_path = tenure, pg_temp
as $$
declare
    v_authority authority;
    v_epoch integer;
begin
    select * into v_authority from authority for update;
    if v_authority.lost_at is not null
        or v_authority.system_identifier <> (select r.system_identifier from running_server() r)
        or v_authority.timeline >= (select r.timeline from running_server() r)
        or (select on_promotion from policies order by version desc limit 1) <> 'continue'
    then
        return null;
    end if;
    v_epoch := greatest(
        v_authority.epoch, v_authority.highest_epoch_seen, epoch_period(clock_timestamp())) + 1;
    perform open_epoch(v_epoch, p_by, 'promotion', 'the server was promoted: timeline '
        || v_authority.timeline || ' to ' || (select r.timeline from running_server() r));
    return v_epoch;
end
$$;

-- A person says that this database, as it is, is the authority from now on. ``p_above``: see
-- ``epoch_to_recover``. Without an epoch there was nothing to recover, or one has to wait.
create function recover_authority(
    p_by text, p_reason text, p_above integer, out epoch integer, out wait_seconds integer
)
language plpgsql volatile security definer set search_path = tenure, pg_temp
as $$
declare
    v_authority authority;
begin
    select * into v_authority from authority for update;
    if confirmed_epoch() is not null then
        return;
    end if;
    select r.epoch, r.wait_seconds into epoch, wait_seconds
    from epoch_to_recover(v_authority.epoch, v_authority.highest_epoch_seen, p_above,
        pg_postmaster_start_time(), clock_timestamp()) r;
    if epoch is not null then
        perform open_epoch(epoch, p_by, 'recovery', p_reason);
    end if;
end
$$;

-- Somebody presents what the authority once gave out: for a task a fencing token, or for a stream a
-- position ``(epoch, sequence)``. One above the stored one proves that this database has lost history:
-- then nothing is granted any more until somebody recovers it. True for each that proves it. An epoch
-- that nobody can have opened by now proves nothing but a fault of the witness.
create function lost_history(p_proof json, p_epoch integer, p_above boolean) returns boolean
language plpgsql volatile set search_path = tenure, pg_temp
as $$
declare
    v_authority authority;
begin
    select * into v_authority from authority for update;
    if p_epoch > greatest(v_authority.epoch, epoch_period(clock_timestamp())) + 4096
        or not (p_above or p_epoch > v_authority.epoch)
    then
        return false;
    end if;
    update authority set
        lost_at = coalesce(lost_at, clock_timestamp()),
        lost_proof = coalesce(lost_proof, p_proof),
        highest_epoch_seen = greatest(highest_epoch_seen, p_epoch);
    return true;
end
$$;

create function present_token(p_tenant text, p_task_id uuid, p_token bigint, p_by text)
returns boolean
language plpgsql volatile security definer set search_path = tenure, pg_temp
as $$
declare
    v_epoch integer := p_token >> 32;
    v_stored bigint;
begin
    select (a.epoch::bigint << 32) + t.generation into v_stored
    from authority a
    left join tasks t on t.task_id = p_task_id and t.tenant = p_tenant;
    return lost_history(
        json_build_object('token', p_token, 'task_id', p_task_id, 'stored', v_stored, 'by', p_by),
        v_epoch, coalesce(p_token > v_stored, false));
end
$$;

create function present_position(
    p_tenant text, p_entity_type text, p_entity_id uuid, p_epoch integer, p_sequence bigint, p_by text
) returns boolean
language plpgsql volatile security definer set search_path = tenure, pg_temp
as $$
declare
    v_sequence bigint := case p_entity_type
        when 'task' then
            (select sequence from tasks where task_id = p_entity_id and tenant = p_tenant)
        when 'attempt' then
            (select sequence from attempts where attempt_id = p_entity_id and tenant = p_tenant)
        when 'node' then
            (select sequence from incarnations where incarnation = p_entity_id and tenant = p_tenant)
        end;
begin
    return lost_history(
        json_build_object('epoch', p_epoch, 'sequence', p_sequence, 'entity_type', p_entity_type,
            'entity_id', p_entity_id, 'stored', v_sequence, 'by', p_by),
        p_epoch,
        p_epoch = (select epoch from authority) and coalesce(p_sequence > v_sequence, false));
end
$$;
