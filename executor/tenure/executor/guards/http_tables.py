"""The tables of ``http_postgres`` as SQL: for the owner of a receiver's database."""

from tenure.executor.guards.sql_install import quoted


def tables(*, schema: str = "public") -> str:
    """The tables as SQL, for the owner of the database; repeatable."""
    name = quoted(schema)
    return f"""\
create table if not exists {name}.tenure_http_fence (
    resource text primary key,
    fencing_token bigint not null,
    raised_at bigint not null
);
create table if not exists {name}.tenure_http_request (
    scope text not null,
    key text not null,
    resource text not null,
    fingerprint text not null,
    state text not null check (state in ('running', 'acted', 'done')),
    claim text not null,
    claimed_until bigint not null,
    status integer,
    headers text,
    body bytea,
    touched_at bigint not null,
    primary key (scope, key)
);
create index if not exists tenure_http_request_claim on {name}.tenure_http_request (claim);
create index if not exists tenure_http_request_resource on {name}.tenure_http_request (resource);
create index if not exists tenure_http_request_touched on {name}.tenure_http_request (touched_at);
"""
