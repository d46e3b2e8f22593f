"""Makes the shop's login and tables in the database of a local stack, and says how to reach them.

    eval "$(python -m fastapi_app.prepare .tenure/connection.json)"

May be run again: the login gets a new password, the stock is filled up.
"""

import asyncio
import json
import secrets
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

TABLES = """
create table if not exists {login}.articles (
    name text primary key,
    price_cents integer not null,
    pieces integer not null
);
create table if not exists {login}.orders (
    id integer generated always as identity primary key,
    customer text not null,
    article text not null references {login}.articles,
    quantity integer not null,
    task_id uuid
);
insert into {login}.articles values ('lamp', 4900, 10), ('chair', 12000, 4)
on conflict (name) do update set pieces = excluded.pieces;
"""


async def prepare(administrator_url: str, login: str = "shop") -> str:
    """The URL of the login. Its tables are in a schema of its own name, where it looks first."""
    password = secrets.token_urlsafe(16)
    connection = await asyncpg.connect(administrator_url)
    try:
        if not await connection.fetchval("select true from pg_roles where rolname = $1", login):
            await connection.execute(f"create role {login} login")
        await connection.execute(f"alter role {login} password '{password}'")
        await connection.execute(f"create schema if not exists {login}")
        await connection.execute(TABLES.format(login=login))
        await connection.execute(
            f"grant usage on schema {login} to {login};"
            f"grant select, insert, update on all tables in schema {login} to {login}"
        )
    finally:
        await connection.close()
    parts = urlsplit(administrator_url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{login}:{password}@{host}").geturl()


def main() -> None:
    """Print what the application's shell has to set."""
    stack = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    settings = {
        "SHOP_DATABASE_URL": asyncio.run(prepare(stack["database_url"])),
        "TENURE_URL": stack["url"],
        "TENURE_TOKEN": stack["tokens"]["application"],
    }
    for name, value in settings.items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
