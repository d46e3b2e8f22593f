"""The table of ``payment_postgres`` as SQL: for the owner of the database."""

from collections.abc import Sequence

from tenure.executor.guards.sql_install import quoted


def table(*, schema: str = "public", roles: Sequence[str] = ()) -> str:
    """The table as SQL, for the owner of the database; repeatable. ``roles`` are accounts that
    executors log in with. Raises ValueError for what cannot be a name."""
    name = f"{quoted(schema)}.tenure_payment"
    statement = f"""\
create table if not exists {name} (
    payment_id uuid primary key,
    task_id uuid not null,
    operation text not null,
    digest text not null,
    known text not null check (known in ('intended', 'paid', 'declined')),
    content text not null,
    fencing_token bigint not null,
    intended_at timestamptz not null default now(),
    settled_at timestamptz
);
create index if not exists tenure_payment_unsettled on {name} (intended_at)
    where known = 'intended';
"""
    if roles:
        named = ", ".join(quoted(role) for role in roles)
        statement += f"grant select, insert, update on {name} to {named};\n"
    return statement


def intent_step(payment_id: str, attempt_id: str) -> str:
    """The step of the SQL guard in which an intention is written down: another name for each
    attempt, since every one has to be judged, and to look."""
    return f"{payment_id} intent {attempt_id}"


def outcome_step(payment_id: str) -> str:
    """The step in which the outcome is."""
    return f"{payment_id} outcome"
