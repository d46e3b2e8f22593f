-- What the services may do, whole: applied again after every `up`, so that what is not here is
-- revoked. :"coordinator" and :"relay" are the names of the two roles (psql -v coordinator=… works).
-- Services write through the owner's functions only; nobody but the owner appends to the log.
revoke all on schema tenure from public, :"coordinator", :"relay";
revoke all on all tables in schema tenure from public, :"coordinator", :"relay";
revoke all on all sequences in schema tenure from public, :"coordinator", :"relay";
revoke all on all functions in schema tenure from public, :"coordinator", :"relay";

grant usage on schema tenure to :"coordinator", :"relay";

grant select on
    tenure.schema_migrations, tenure.authority, tenure.commands, tenure.task_types, tenure.tasks,
    tenure.task_inputs, tenure.task_progress, tenure.attempts, tenure.reservations, tenure.nodes, tenure.incarnations,
    tenure.receipts, tenure.renewals, tenure.policies,
    tenure.authority_epochs, tenure.health_reviews, tenure.intake, tenure.log,
    tenure.log_default,
    tenure.tenants, tenure.accounts, tenure.profiles, tenure.executables, tenure.fact_changes,
    tenure.pauses, tenure.limits, tenure.limit_buckets, tenure.subscriptions,
    tenure.dead_letters,
    tenure.relay_shards, tenure.replays, tenure.replay_changes
to :"coordinator";
grant select on
    tenure.schema_migrations, tenure.authority, tenure.log, tenure.relay_shards,
    tenure.subscriptions
to :"relay";

grant select on tenure.parked to :"coordinator", :"relay";
grant select on tenure.parked_requests to :"coordinator";
grant execute on function
    tenure.ask_parked(text, text, bigint[], text, text, text)
to :"coordinator";

grant select on
    tenure.retention, tenure.retention_policies, tenure.erasures, tenure.unreferenced
to :"coordinator";
grant execute on function
    tenure.ensure_log_partitions(integer),
    tenure.erase_task(text, uuid, text, text),
    tenure.set_retention(integer, jsonb, text, text),
    tenure.remove_old(text, integer),
    tenure.cut_log(),
    tenure.remove_old_log(),
    tenure.too_old_before(text),
    tenure.log_needed_from(),
    tenure.oldest_unpublished_at(),
    tenure.log_partitions(),
    tenure.retention_due()
to :"coordinator";
grant execute on function
    tenure.confirmed_epoch(),
    tenure.redispatch(uuid[], interval),
    tenure.record_progress(
        text, text, uuid, uuid[], uuid[], bigint[], double precision[], text[], text[]),
    tenure.retry_intake(text, text, text, integer),
    tenure.set_policy(
        integer, bigint, bigint, bigint, bigint, bigint, bigint, text, text, text),
    tenure.running_server(),
    tenure.open_epoch_after_promotion(text),
    tenure.recover_authority(text, text, integer),
    tenure.present_token(text, uuid, bigint, text),
    tenure.present_position(text, text, uuid, integer, bigint, text),
    tenure.ripen(integer),
    tenure.push_profiles(tenure.task_type_upsert[], text, bytea, text, text, bytea),
    tenure.set_tenant(text, jsonb, text),
    tenure.set_node_facts(text, text, jsonb, text),
    tenure.set_executable(text, bytea, text, text),
    tenure.set_pause(text, text, text, timestamptz, text, text),
    tenure.end_pause(text, text, text, text),
    tenure.set_subscription(text, text, text, text[], interval, text),
    tenure.remove_subscription(text, text, text),
    tenure.record_dead_letters(
        text[], text[], text[], text[], text[], text[], text[], integer[], bytea[]),
    tenure.settle_dead_letter(text, bigint, text, text, text),
    tenure.pauses_of(text),
    tenure.limits_of(text),
    tenure.running_types(uuid),
    tenure.set_limit(text, text, text, integer, integer, integer, integer, text, integer),
    tenure.remove_limit(text, text, text, text),
    tenure.forget_full_buckets(integer),
    tenure.replay_horizon(),
    tenure.replay_preview(jsonb, text),
    tenure.start_replay(
        uuid, text, text, jsonb, integer, boolean, bigint, boolean, text, text),
    tenure.change_replay(uuid, text, text, text, boolean),
    tenure.commit_batch(
        tenure.commit_item[], tenure.task_insert[], tenure.task_update[], tenure.attempt_insert[],
        tenure.attempt_update[], tenure.lease_renewal[], tenure.receipt_insert[],
        tenure.incarnation_insert[], tenure.incarnation_update[], tenure.task_type_upsert[],
        tenure.event_append[], uuid[], tenure.intake_update[])
to :"coordinator";

grant execute on function tenure.relay_attend(uuid, interval) to :"relay";
grant execute on function tenure.relay_leave(uuid) to :"relay";
grant execute on function tenure.relay_claim(uuid, integer, interval) to :"relay";
grant execute on function tenure.relay_renew(uuid, smallint[], bigint[], interval) to :"relay";
grant execute on function tenure.relay_release(uuid, smallint[], bigint[]) to :"relay";
grant execute on function tenure.relay_advance(
    uuid, smallint[], bigint[], bigint[], bigint[], text[], text[], boolean[], interval[])
to :"relay";
grant execute on function tenure.relay_unpark(
    uuid, smallint[], bigint[], bigint[], text[], text[], text[], interval[])
to :"relay";
grant execute on function tenure.relay_withdrawn(uuid[]) to :"relay";
grant execute on function
    tenure.replay_claim(uuid, integer, interval),
    tenure.replay_unclaimed(),
    tenure.replay_read(uuid, uuid, bigint, bigint, integer, bigint),
    tenure.replay_advance(
        uuid, uuid[], bigint[], bigint[], bigint[], bigint[], interval),
    tenure.replay_release(uuid, uuid[], bigint[]),
    tenure.replay_stop(uuid, uuid, bigint, text, text)
to :"relay";

-- Applications enqueue and may do nothing else here (see `tenure migrate application`).
do $$
declare
    r record;
begin
    for r in
        select distinct i.role_name from tenure.intake_roles i
        where exists (select from pg_roles p where p.rolname = i.role_name)
    loop
        execute format('grant usage on schema tenure to %I', r.role_name);
        execute format('grant execute on function tenure.enqueue to %I', r.role_name);
    end loop;
end
$$;
