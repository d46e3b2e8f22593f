"""Makes the ledger and a login in the database of a local stack, and says how to reach it.

    eval "$(python -m ledger.prepare keeper .tenure/connection.json)"

``keeper`` is the executor's login, ``clerk`` that of the program that orders. May be run again: the
login gets a new password.
"""

import asyncio
import json
import secrets
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from tenure.executor.guards.sql import SqlGuard

TABLES = """
create schema if not exists ledger;
create table if not exists ledger.accounts (
    name text primary key,
    balance_cents bigint not null default 0,
    may_overdraw boolean not null default false,
    check (balance_cents >= 0 or may_overdraw)
);
create table if not exists ledger.transfers (
    id integer generated always as identity primary key,
    source text not null references ledger.accounts,
    target text not null references ledger.accounts,
    cents bigint not null check (cents > 0),
    check (source <> target)
);
create table if not exists ledger.entries (
    transfer_id integer not null references ledger.transfers,
    account text not null references ledger.accounts,
    cents bigint not null,
    fencing_token bigint not null
);
create index if not exists entries_transfer on ledger.entries (transfer_id);
create or replace view ledger.books as
    select coalesce(account, 'sum') as account, sum(cents)::bigint as cents
    from ledger.entries group by rollup (account) order by grouping(account), account;

create or replace function ledger.must_balance() returns trigger language plpgsql as $$
begin
    if (select sum(cents) from ledger.entries where transfer_id = new.transfer_id) <> 0 then
        raise exception 'the entries of transfer % do not balance', new.transfer_id;
    end if;
    return null;
end $$;
drop trigger if exists entries_balance on ledger.entries;
create constraint trigger entries_balance after insert on ledger.entries
    deferrable initially deferred for each row execute function ledger.must_balance();

insert into ledger.accounts (name, may_overdraw)
    values ('capital', true), ('cash', false), ('rent', false), ('paper', false)
    on conflict do nothing;
"""
RIGHTS = {
    "keeper": "grant select, update on ledger.accounts to {login};"
    "grant select, insert on ledger.entries to {login}",
    "clerk": "grant insert, select on ledger.transfers to {login};"
    "grant select on ledger.accounts, ledger.books to {login}",
}


async def prepare(administrator_url: str, side: str, login: str) -> str:
    """The URL of the login, which has the rights of its side and no others."""
    password = secrets.token_urlsafe(16)
    connection = await asyncpg.connect(administrator_url)
    try:
        if not await connection.fetchval("select true from pg_roles where rolname = $1", login):
            await connection.execute(f"create role {login} login")
        await connection.execute(f"alter role {login} password '{password}'")
        await connection.execute(TABLES)
        await connection.execute(f"grant usage on schema ledger to {login}")
        await connection.execute(RIGHTS[side].format(login=login))
        keepers = [login] if side == "keeper" else []
        await SqlGuard.install(connection, schema="ledger", roles=keepers)
    finally:
        await connection.close()
    parts = urlsplit(administrator_url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{login}:{password}@{host}").geturl()


def main(side: str, connection_file: str) -> None:
    """Print what the shell of that side has to set."""
    stack = json.loads(Path(connection_file).read_text(encoding="utf-8"))
    url = asyncio.run(prepare(stack["database_url"], side, f"ledger_{side}"))
    print(f"export LEDGER_DATABASE_URL={shlex.quote(url)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
