-- The authority's state. Every row carries its tenant; every writer goes through the functions of
-- the following migrations, in one lock order: tasks, nodes, incarnations, tenants, accounts, limits,
-- intake, unique keys, append lock.

-- Who this database is. Compared with the running server inside every commit: a copy, a restored
-- backup or a promoted standby grants nothing until somebody has decided what it is.
create table authority (
    singleton boolean primary key default true check (singleton),
    authority_id uuid not null default gen_random_uuid(),
    epoch integer not null default 1 check (epoch between 1 and 2097151),
    system_identifier bigint not null,
    timeline text not null,
    opened_at timestamptz not null default clock_timestamp(),
    lost_at timestamptz,                    -- since when history is proven to be lost
    lost_proof json,
    highest_epoch_seen integer not null default 1,
    constraint lost_history_is_proven check ((lost_at is null) = (lost_proof is null))
);
insert into authority (system_identifier, timeline)
select system_identifier, substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)
from pg_control_system();

-- Outcome of every command, by the id its caller chose. Written in the commit of the command.
create table commands (
    command_id uuid primary key,
    tenant text not null,
    fingerprint bytea not null,
    outcome text not null,
    reply json not null,
    decided_at timestamptz not null
);

-- The declaration of a type as registered last; its profile is frozen in each task.
create table task_types (
    tenant text not null,
    name text not null,
    profile_digest bytea not null,
    input_schema json,
    output_schema json,
    registered_at timestamptz not null,
    primary key (tenant, name)
);

create table tasks (
    task_id uuid primary key,
    tenant text not null,
    type text not null,
    state text not null
        check (state in ('open', 'held', 'delivered', 'failed', 'cancelled', 'expired')),
    reason text,
    message text,
    version bigint not null,                -- of the row: raised by every change
    sequence bigint not null,               -- of the stream: raised by every event
    generation bigint not null default 0,   -- raised by every allocation; low half of the token
    current_attempt_id uuid,
    failures integer not null default 0,
    losses integer not null default 0,      -- attempts that ended without anybody's word
    priority smallint not null,
    not_before timestamptz,
    deadline timestamptz,
    effects text not null,
    max_attempts integer not null,
    cpu_millis integer not null check (cpu_millis >= 0),
    memory_bytes bigint not null check (memory_bytes >= 0),
    profile_digest bytea not null,
    concurrency_key text,                   -- the caller's: what it counts with under limits
    traceparent text,                       -- of the submission (W3C Trace Context)
    cancel_requested_at timestamptz,
    cancel_delivered_at timestamptz,        -- its executor said that it has heard of it
    rejected_by uuid[] not null default '{}', -- incarnations that are not asked again
    retry_of uuid,                          -- the ended task that this one does again
    created_at timestamptz not null,
    -- Its place among its tenant's tasks: from then on it counts as queued. Higher priority is earlier.
    queued_as_of timestamptz not null,
    -- Whether its time had come when it was last looked at. Only so that nobody reads past tasks whose
    -- time is far away: decisions and guards go by not_before.
    ripe boolean not null,
    decided_at timestamptz not null,        -- time never runs back for a task
    ended_at timestamptz,
    constraint ended_tasks_have_an_end
        check ((state in ('delivered', 'failed', 'cancelled', 'expired')) = (ended_at is not null)),
    constraint held_tasks_have_a_reason check (state <> 'held' or reason is not null),
    constraint ended_tasks_run_no_attempt check (ended_at is null or current_attempt_id is null
        or state = 'delivered')
) with (fillfactor = 50);
create index tasks_waiting on tasks (tenant, profile_digest, queued_as_of, task_id)
    where state = 'open' and current_attempt_id is null and ripe;
create index tasks_not_ripe on tasks (not_before)
    where state = 'open' and current_attempt_id is null and not ripe;
create index tasks_with_deadline on tasks (deadline)
    where deadline is not null and ended_at is null;
create index tasks_rejected on tasks (task_id)
    where state = 'open' and current_attempt_id is null and rejected_by <> '{}';
create unique index tasks_retry_of on tasks (retry_of) where retry_of is not null;
create index tasks_of_tenant on tasks (tenant, task_id);

-- Apart from the state, so that a state change rewrites no payload and an input can be erased.
create table task_inputs (
    task_id uuid primary key,
    tenant text not null,
    input json not null,
    scope json                              -- what its leases permit of what its type permits
);

create table attempts (
    attempt_id uuid primary key,
    task_id uuid not null,
    tenant text not null,
    ordinal bigint not null,                -- the generation it was granted under
    state text not null check (state in ('submitted', 'accepted', 'running', 'delivered',
        'rejected', 'failed', 'cancelled', 'expired')),
    reason text,
    message text,
    version bigint not null,
    sequence bigint not null,
    node_id text not null,
    incarnation uuid not null,
    lease_id uuid not null,
    fencing_token bigint not null,
    policy_version integer not null,
    lease_microseconds bigint not null check (lease_microseconds > 0),
    expires_at timestamptz not null,
    scope json not null,
    decision json,                          -- why this node: the score, and of how many
    dispatch_event_id uuid not null,
    dispatched_at timestamptz not null,
    retry_delay_microseconds bigint check (retry_delay_microseconds >= 0), -- from ended_at on
    submitted_at timestamptz not null,
    accepted_at timestamptz,
    started_at timestamptz,
    ended_at timestamptz,
    decided_at timestamptz not null,
    unique (task_id, ordinal),
    constraint ended_attempts_have_an_end check (
        (state in ('delivered', 'rejected', 'failed', 'cancelled', 'expired'))
        = (ended_at is not null)),
    constraint failed_attempts_have_a_reason check (state <> 'failed' or reason is not null),
    constraint running_attempts_were_accepted check (state <> 'running' or
        (accepted_at is not null and started_at is not null))
) with (fillfactor = 50);
create index attempts_open on attempts (incarnation) where ended_at is null;

-- What an open attempt has taken of its node. Gone when the attempt ends.
create table reservations (
    attempt_id uuid primary key,
    tenant text not null,
    type text not null,
    concurrency_key text,
    incarnation uuid not null,
    slots integer not null check (slots >= 0),
    cpu_millis integer not null check (cpu_millis >= 0),
    memory_bytes bigint not null check (memory_bytes >= 0),
    cost_minor bigint not null check (cost_minor >= 0),
    created_at timestamptz not null
);
create index reservations_of_type on reservations (tenant, type);
create index reservations_of_key on reservations (tenant, concurrency_key)
    where concurrency_key is not null;

create table nodes (
    tenant text not null,
    node_id text not null,
    incarnation uuid,                       -- the current one
    stated_facts jsonb not null default '{}', -- by operators: before what the node itself states
    quarantined_at timestamptz,             -- taken out of service, under every incarnation
    quarantined_by text,
    quarantine_reason text,
    primary key (tenant, node_id),
    constraint quarantine_has_a_reason
        check ((quarantined_at is null) = (quarantine_reason is null))
);

-- One start of one executor process. ``version`` covers what eligibility depends on, not counters.
create table incarnations (
    incarnation uuid primary key,
    tenant text not null,
    node_id text not null,
    state text not null check (state in ('active', 'draining', 'quarantined', 'gone')),
    version bigint not null,
    sequence bigint not null,
    queue text not null,                    -- empty: it has none, and asks for its assignments
    software text not null,
    protocol_version integer not null,
    slots integer not null check (slots >= 1),
    cpu_millis integer,                     -- null: not limited
    memory_bytes bigint,
    slots_used integer not null default 0,
    cpu_used bigint not null default 0 check (cpu_used >= 0),
    memory_used bigint not null default 0 check (memory_used >= 0),
    task_types text[] not null,
    profile_digests bytea[] not null,       -- of each type, in the same order
    type_effects text[] not null,
    type_concurrency integer[],             -- so many of each at once; null: of this type, of any, as many as slots
    own_facts jsonb not null,               -- as the node states them
    facts jsonb not null,                   -- what counts
    executable_name text,
    executable_version text,
    executable_digest bytea,
    executable_withdrawn boolean not null default false,
    registered_at timestamptz not null,
    last_seen_at timestamptz not null,
    under_review boolean not null default false,
    reviewed_seen_at timestamptz,           -- when it had been heard of last, at its last review
    ended_at timestamptz,
    constraint slots_are_not_oversold check (slots_used between 0 and slots),
    constraint cpu_is_not_oversold check (cpu_millis is null or cpu_used <= cpu_millis),
    constraint memory_is_not_oversold check (memory_bytes is null or memory_used <= memory_bytes)
) with (fillfactor = 50);
create index incarnations_live on incarnations (tenant) where state <> 'gone';

-- Delivery submissions: the one that was admitted, and the evidence that was not (LATE-02).
create table receipts (
    receipt_id uuid primary key,
    tenant text not null,
    task_id uuid not null,
    attempt_id uuid not null,
    node_id text not null,
    incarnation uuid not null,
    admitted boolean not null,
    code text,                              -- why it is not active
    admitted_at timestamptz not null,
    state_version bigint not null,
    generation bigint not null,
    fencing_token bigint not null,
    content_digest bytea not null,
    output json not null,
    enforced json,                          -- what its process was held to; null: nothing
    constraint refusals_have_a_code check (admitted = (code is null))
);
create unique index receipts_one_active on receipts (attempt_id) where admitted;
create unique index receipts_by_content on receipts (attempt_id, content_digest);
create index receipts_of_task on receipts (task_id);

-- Every renewal: prior expiry, new expiry, identity (LEASE-06). Appended, never read by decisions.
create table renewals (
    lease_id uuid not null,
    attempt_id uuid not null,
    tenant text not null,
    prior_expires_at timestamptz not null,
    new_expires_at timestamptz not null,
    renewed_by text not null,
    at timestamptz not null
);
-- Not BRIN: blocks that are emptied and filled again keep their old bounds, and would all be read.
create index renewals_at on renewals (at);

-- Tasks asked for in an application's own transaction; consumed by state, never by position. What a
-- row asks for never changes. A refused row stays; asking again under its key makes another row.
create table intake (
    intake_id bigint generated always as identity primary key,
    tenant text not null,
    command_id uuid not null,               -- of the submission: from the key, as over HTTP
    task_id uuid not null,
    idempotency_key text,
    type text not null,
    input json,                             -- moves to the task
    priority smallint not null,
    not_before timestamptz,
    deadline timestamptz,
    cpu_millis integer,                     -- null, both: as the type declares
    memory_bytes bigint,
    concurrency_key text,
    scope json,                             -- null: all that the type permits
    traceparent text,                       -- of the application (W3C Trace Context)
    fingerprint bytea not null,             -- of all that is asked for, the trace apart
    enqueued_by text not null,              -- the role that had logged in
    state text not null default 'waiting' check (state in ('waiting', 'taken', 'refused')),
    code text,
    message text,
    created_at timestamptz not null default clock_timestamp(),
    decided_at timestamptz,
    constraint refused_rows_have_a_code check ((state = 'refused') = (code is not null)),
    constraint decided_rows_have_an_instant check ((state = 'waiting') = (decided_at is null)),
    constraint rows_have_an_input_until_taken check ((state = 'taken') = (input is null))
);
create unique index intake_by_command on intake (command_id) where state <> 'refused';
create index intake_refused on intake (command_id) where state = 'refused';
create index intake_by_state on intake (state, tenant, intake_id);
create index intake_of_task on intake (task_id);

-- The outbox: a log that is appended in the commit of the state change and never updated.
-- ``order_key`` is the task where there is one, else the entity; ``shard`` is computed from it.
-- ``copy`` marks the assignment that goes to a node's queue beside the event itself.
create sequence log_position cache 1;
create table log (
    position bigint not null default nextval('log_position'),
    shard smallint not null,
    order_key uuid not null,
    tenant text not null,
    entity_type text not null,
    entity_id uuid not null,
    attempt_id uuid,
    epoch integer not null,
    sequence bigint not null,
    event_id uuid not null,
    next_state text not null,
    copy boolean not null,
    exchange text not null,
    routing_key text not null,
    required boolean not null,              -- published only when it reached a queue
    recorded_at timestamptz not null,
    body bytea not null,
    primary key (position)
) partition by range (position);
create index log_by_shard on log (shard, position);
create index log_by_order_key on log (order_key, position);

-- Held until commit by whoever appends, so that nothing appears behind a cursor that has passed.
-- Empty; only the owner may lock it, so only the owner's functions can append.
create table append_lock ();

-- Cursor and claim of each shard. A claim has a fencing token of its own.
create table relay_shards (
    shard smallint primary key check (shard between 0 and 63),
    position bigint not null default 0,
    relay_id uuid,
    claim_token bigint not null default 0,
    claimed_until timestamptz not null default '-infinity',
    moved_at timestamptz not null default clock_timestamp(),
    parked integer not null default 0 check (parked >= 0) -- rows of the shard that are parked
) with (fillfactor = 50);
insert into relay_shards (shard) select generate_series(0, 63);
