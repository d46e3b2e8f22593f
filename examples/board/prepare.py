"""Makes the board's login, schema and tables in the database of a local stack, and says how to
reach them.

    eval "$(python -m board.prepare .tenure/connection.json)"

May be run again: the login gets a new password.
"""

import asyncio
import json
import secrets
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from board.consumer import SCHEMA

TABLES = f"""
create schema if not exists {SCHEMA};
create table if not exists {SCHEMA}.states (
    event_id text primary key,
    task_id text not null,
    state text not null,
    epoch integer not null,
    sequence bigint not null,
    at timestamptz not null
);
create or replace view {SCHEMA}.tasks as
    select distinct on (task_id) task_id, state, at
    from {SCHEMA}.states
    order by task_id, epoch desc, sequence desc;
"""


async def prepare(administrator_url: str, login: str = "board") -> str:
    """The URL of the login. It may make the tables of its inbox in its schema, and nothing else."""
    password = secrets.token_urlsafe(16)
    connection = await asyncpg.connect(administrator_url)
    try:
        if not await connection.fetchval("select true from pg_roles where rolname = $1", login):
            await connection.execute(f"create role {login} login")
        await connection.execute(f"alter role {login} password '{password}'")
        await connection.execute(TABLES)
        await connection.execute(
            f"grant usage, create on schema {SCHEMA} to {login};"
            f"grant select, insert, delete on {SCHEMA}.states to {login};"
            f"grant select on {SCHEMA}.tasks to {login}"
        )
    finally:
        await connection.close()
    parts = urlsplit(administrator_url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{login}:{password}@{host}").geturl()


def main() -> None:
    """Print what the consumer's shell has to set."""
    stack = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    url = asyncio.run(prepare(stack["database_url"]))
    print(f"export BOARD_DATABASE_URL={shlex.quote(url)}")


if __name__ == "__main__":
    main()
