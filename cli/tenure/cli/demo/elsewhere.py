"""The demo against a stack that somebody else runs: ``python -m tenure.cli.demo.elsewhere``.

``prepare`` makes the downstream database; the executors of that stack run
``tenure.cli.demo.hasher:app`` with it. ``run`` submits a task for each file of the standard library
of this Python, waits, compares every row with a direct computation and prints the report. It must
run where the executors' files are: in a container of the same image. Nothing is killed.

``DEMO_SERVER_URL``       an administrator's login of the downstream server
``DEMO_WRITER_PASSWORD``  of the executors' login there, letters and digits (``prepare``)
``TENURE_URL``, ``TENURE_TOKEN``  as for every application (``run``)
"""

import asyncio
import os
import sys
import time
from typing import Final, NoReturn
from urllib.parse import urlsplit

from tenure.cli.demo import downstream
from tenure.cli.demo.check import Report, compare, compute_directly, exit_of
from tenure.cli.demo.files import NOT_THE_LIBRARY, freeze, standard_library
from tenure.cli.demo.work import Work
from tenure.cli.exits import Exit, SetupError, UsageError, report, report_fault
from tenure.cli.local.postgres import ensure_database
from tenure.client.settings import connection_from_environment
from tenure.contract.errors import TenureError

SERVER_VARIABLE: Final = "DEMO_SERVER_URL"
PASSWORD_VARIABLE: Final = "DEMO_WRITER_PASSWORD"
LIMIT_SECONDS: Final = 900.0


async def prepare() -> None:
    """Make the downstream database, its tables and its guard; repeatable.

    Raises SetupError.
    """
    password = _required(PASSWORD_VARIABLE)
    if not (password.isascii() and password.isalnum()):
        raise SetupError(f"{PASSWORD_VARIABLE} has other characters than letters and digits.")
    await ensure_database(_required(SERVER_VARIABLE), downstream.DATABASE)
    await downstream.make(_database_url(), password)


async def run() -> Report:
    """Do the work and compare. Raises SetupError, NotConfigured and what the client raises."""
    began = time.monotonic()
    database_url = _database_url()
    connection = connection_from_environment()
    files = freeze(standard_library(), without=NOT_THE_LIBRARY)
    work = Work(files, deadline=began + LIMIT_SECONDS, say=_say)
    _say("demo", f"{len(files)} files")
    await work.run(connection.url, connection.token)
    _say("demo", "comparing every row with a direct computation")
    direct = await compute_directly(files)
    return compare(
        files,
        direct,
        await downstream.read(database_url),
        work.outputs,
        tasks=work.tasks,
        seconds=time.monotonic() - began,
        found_changed=work.found_changed,
    )


def main(words: list[str]) -> int:
    """Run one of the two; returns the exit code. Errors are said on standard error."""
    try:
        match words:
            case ["prepare"]:
                asyncio.run(prepare())
                return Exit.DONE
            case ["run"]:
                result = asyncio.run(run())
                print(result.as_json(), flush=True)
                return exit_of(result)
        raise UsageError("say `prepare` or `run`.")
    except TenureError as error:
        return report(error)
    except Exception as error:  # noqa: BLE001 - the outermost frame: what is left is our own fault
        return report_fault(error)


def _database_url() -> str:
    return urlsplit(_required(SERVER_VARIABLE))._replace(path=f"/{downstream.DATABASE}").geturl()


def _required(name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise SetupError(f"{name} is not set.", code="not_configured")


def _say(name: str, words: str) -> None:
    print(f"{name}: {words}", file=sys.stderr, flush=True)


def _main() -> NoReturn:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    _main()
