"""``tenure up``: a whole local stack in one folder, until Ctrl-C."""

import asyncio
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tenure.cli.applications import check_application
from tenure.cli.arguments import read_secret_argument
from tenure.cli.connection import (
    DEFAULT_STATE_DIRECTORY,
    STATE_DIRECTORY_VARIABLE,
    state_directory,
)
from tenure.cli.exits import Exit, UsageError, needs
from tenure.contract.topology import DEFAULT_PREFIX

if TYPE_CHECKING:
    from tenure.cli.local.given import GivenServers
    from tenure.cli.local.stack import ExecutorSpec, Stack


def up(
    *,
    executor: Annotated[
        tuple[str, ...],
        Parameter(help="Run this executor too (MODULE:NAME); may be given several times."),
    ] = (),
    slots: Annotated[int, Parameter(help="How many tasks each executor runs at once.")] = 8,
    state_dir: Annotated[
        Path | None,
        Parameter(help="Folder of the stack. [default: TENURE_STATE_DIR or .tenure]"),
    ] = None,
    database_url: Annotated[
        str | None,
        Parameter(
            help="A database to use instead of a private one: the login that owns it, or @FILE."
        ),
    ] = None,
    broker_url: Annotated[
        str | None, Parameter(help="A broker to use instead of a private one, or @FILE.")
    ] = None,
    name_prefix: Annotated[
        str, Parameter(help="What all names on a broker of somebody else's begin with.")
    ] = DEFAULT_PREFIX,
    quiet: Annotated[
        bool, Parameter(negative="", help="Do not show the processes' logs; they are in files.")
    ] = False,
) -> None:
    """Run PostgreSQL, RabbitMQ, a coordinator, a relay and executors until Ctrl-C.

    Everything listens on this machine only and lives in one folder; the next start there finds its
    data. Ctrl-C drains: executors finish what they do first. A second Ctrl-C hurries them.
    """
    if slots < 1:
        raise UsageError("--slots: at least 1.")
    # Modules that the command needs anyway, all of them before anything starts.
    with needs("all"):
        from tenure.cli.local.given import GivenServers
        from tenure.cli.local.stack import ExecutorSpec
        from tenure.settings.sources import refuse_unknown_variables

    for application in executor:
        check_application(application)
    refuse_unknown_variables()
    servers = GivenServers(
        database_url=read_secret_argument("--database-url", database_url),
        broker_url=read_secret_argument("--broker-url", broker_url),
        name_prefix=name_prefix,
    )
    names = _names(executor)
    specs = [
        ExecutorSpec(name=name, application=application, slots=slots)
        for name, application in zip(names, executor, strict=True)
    ]
    code = asyncio.run(_up(state_directory(state_dir).absolute(), specs, servers, quiet))
    if code is not Exit.DONE:
        sys.exit(code)


async def _up(
    directory: Path, executors: "list[ExecutorSpec]", servers: "GivenServers", quiet: bool
) -> Exit:
    from tenure.cli.local.interrupts import Interrupts
    from tenure.cli.local.rehearsal import Failed, rehearse
    from tenure.cli.local.stack import Stack, inherited_environment
    from tenure.cli.local.terminal import LogFollower

    began = time.monotonic()
    follower = LogFollower()
    stack = Stack(
        directory,
        executors,
        say=follower.say,
        given=servers,
        on_log=(lambda name, log: None) if quiet else follower.follow,
    )
    with Interrupts() as interrupts:
        try:
            # What the processes would only say once the servers run.
            if not await interrupts.unless_first(rehearse(executors, inherited_environment())):
                return Exit.INTERRUPTED
        except Failed as failed:
            print(failed.said, end="", file=sys.stderr)
            return Exit(failed.exit_code)
        try:
            ready = await interrupts.unless_first(stack.start())
            if ready:
                follower.say("stack", _welcome(stack, time.monotonic() - began))
                await interrupts.first.wait()
        finally:
            await stack.stop(interrupts.second)
            await follower.close()
        follower.say("stack", "stopped")
    return Exit.DONE if ready else Exit.INTERRUPTED


def _names(applications: tuple[str, ...]) -> list[str]:
    """Names of nodes: ``executor`` for one, numbered for several."""
    if len(applications) == 1:
        return ["executor"]
    return [f"executor-{number}" for number in range(1, len(applications) + 1)]


def _welcome(stack: "Stack", seconds: float) -> str:
    here = Path(os.environ.get(STATE_DIRECTORY_VARIABLE) or DEFAULT_STATE_DIRECTORY)
    lines = [
        f"ready after {seconds:.1f} s: {stack.connection().url}",
        f"logs and data are in {stack.directory}",
        "In another terminal, try:",
    ]
    if here.absolute() != stack.directory:
        lines.append(f"    export {STATE_DIRECTORY_VARIABLE}={shlex.quote(str(stack.directory))}")
    elif not os.environ.get(STATE_DIRECTORY_VARIABLE):
        lines[-1] = "In another terminal, in this folder, try:"
    lines += [
        "    tenure node list",
        "    tenure submit TYPE '{\"…\": …}' --wait",
        "Ctrl-C ends it in order; the next start finds its data.",
    ]
    return "\n".join(lines)
