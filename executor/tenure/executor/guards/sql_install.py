"""The receiver's half of the SQL guards as statements: for the owner of a downstream database."""

from collections.abc import Sequence
from importlib import resources
from typing import Final

FUNCTIONS: Final = (
    "tenure_raise_fence(uuid, bigint, timestamptz, interval, jsonb)",
    "tenure_guard(uuid, uuid, text, bigint, timestamptz, interval, bigint, jsonb, text, text)",
    "tenure_require(text, text)",
    "tenure_prove(uuid, uuid, text)",
    "tenure_settle(uuid, uuid, text, bigint)",
)
"""What executors call, with the types of the arguments."""


def install_statements(*, schema: str = "public", roles: Sequence[str] = ()) -> str:
    """The receiver's half as SQL, for whoever owns the downstream database; repeatable.

    ``roles`` are accounts that executors log in with: see ``grant_statements``. Raises ValueError
    for what cannot be a name.
    """
    text = resources.files("tenure.executor.guards").joinpath("sql_install.sql").read_text("utf-8")
    name = quoted(schema)
    statements = text.replace("'@schema@.", "'" + name.replace("'", "''") + ".")
    return statements.replace("@schema@", name) + grant_statements(schema=schema, roles=roles)


def grant_statements(*, schema: str = "public", roles: Sequence[str]) -> str:
    """What accounts of executors need: to call the functions, and no more."""
    if not roles:
        return ""
    name, named = quoted(schema), ", ".join(quoted(role) for role in roles)
    functions = ",\n".join(f"    {name}.{function}" for function in FUNCTIONS)
    return (
        f"grant usage on schema {name} to {named};\n"
        f"grant execute on function\n{functions}\nto {named};\n"
    )


def quoted(name: str) -> str:
    """A name of a schema or role as SQL writes it. Raises ValueError for what is none."""
    if not name or "\x00" in name:
        raise ValueError(f"{name!r} is no name of a schema or role")
    return '"' + name.replace('"', '""') + '"'
