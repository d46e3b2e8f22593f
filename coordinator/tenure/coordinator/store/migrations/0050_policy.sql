-- Terms of leases and retries, by version (LEASE-08). A version never changes: an attempt names the one
-- that its lease was granted under, and lives by it. The highest version is in force for what is granted
-- next; the commit checks that.
create table policies (
    version integer primary key check (version >= 1),
    lease_microseconds bigint not null check (lease_microseconds between 1 and 86400000000),
    renewal_margin_microseconds bigint,     -- null: two thirds of the lease
    clock_tolerance_microseconds bigint not null
        check (clock_tolerance_microseconds between 0 and 60000000),
    node_silence_microseconds bigint not null
        check (node_silence_microseconds between 1 and 86400000000),
    retry_base_microseconds bigint not null check (retry_base_microseconds > 0),
    retry_cap_microseconds bigint not null,
    on_promotion text not null default 'continue' check (on_promotion in ('continue', 'hold')),
    set_by text not null,
    reason text not null,
    set_at timestamptz not null default clock_timestamp(),
    constraint renewals_begin_within_the_lease check (
        renewal_margin_microseconds > clock_tolerance_microseconds
        and renewal_margin_microseconds < lease_microseconds),
    constraint leases_outlast_the_tolerance check (lease_microseconds > clock_tolerance_microseconds),
    constraint the_cap_is_above_the_base check (retry_cap_microseconds >= retry_base_microseconds)
);
insert into policies (version, lease_microseconds, clock_tolerance_microseconds,
    node_silence_microseconds, retry_base_microseconds, retry_cap_microseconds, set_by, reason)
values (1, 30000000, 1000000, 30000000, 1000000, 300000000, 'migration', 'the standard terms');

create trigger policies_never_change before update or delete on policies
    for each row execute function refuse_change();
create trigger policies_are_not_emptied before truncate on policies
    for each statement execute function refuse_change();

-- The next version, after the one that the caller has seen. True when it is there now, as asked: made
-- by this call, or by an earlier one whose answer was lost. False when somebody else was quicker.
create function set_policy(
    p_after integer, p_lease bigint, p_renewal_margin bigint, p_clock_tolerance bigint,
    p_node_silence bigint, p_retry_base bigint, p_retry_cap bigint, p_on_promotion text, p_set_by text,
    p_reason text
) returns boolean
language plpgsql volatile security definer set search_path = tenure, pg_temp
as $$
begin
    insert into policies (version, lease_microseconds, renewal_margin_microseconds,
        clock_tolerance_microseconds, node_silence_microseconds, retry_base_microseconds,
        retry_cap_microseconds, on_promotion, set_by, reason)
    select p_after + 1, p_lease, p_renewal_margin, p_clock_tolerance, p_node_silence, p_retry_base,
        p_retry_cap, p_on_promotion, p_set_by, p_reason
    where p_after = (select max(version) from policies)
    on conflict do nothing;
    return exists (
        select from policies
        where version = p_after + 1
          and (lease_microseconds, renewal_margin_microseconds, clock_tolerance_microseconds,
              node_silence_microseconds, retry_base_microseconds, retry_cap_microseconds,
              on_promotion, set_by, reason)
          is not distinct from (p_lease, p_renewal_margin, p_clock_tolerance, p_node_silence,
              p_retry_base, p_retry_cap, p_on_promotion, p_set_by, p_reason));
end
$$;
