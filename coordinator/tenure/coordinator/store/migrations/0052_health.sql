-- Health reviews: heartbeats of a start were missing. One is opened for each silence, and closed by
-- heartbeats that return, by an operator who has looked, or by the end of the start. They end no lease
-- (LEASE-07).
create table health_reviews (
    review_id bigint generated always as identity primary key,
    tenant text not null,
    node_id text not null,
    incarnation uuid not null,
    last_seen_at timestamptz not null,      -- before it was opened
    opened_at timestamptz not null,
    closed_at timestamptz,
    outcome text check (outcome in ('heartbeats_returned', 'operator', 'node_gone')),
    closed_by text,
    message text,
    constraint closed_reviews_have_an_outcome check ((closed_at is null) = (outcome is null))
);
create unique index health_reviews_open on health_reviews (incarnation) where closed_at is null;
create index health_reviews_of_node on health_reviews (tenant, node_id, review_id);
