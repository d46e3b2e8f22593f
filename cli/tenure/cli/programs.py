"""``tenure profile …`` and ``tenure executable …``."""

import asyncio
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from tenure.cli.applications import load_application
from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError, needs
from tenure.cli.output import Output, ago, print_json, print_table
from tenure.contract.scheduling import ExecutableView, ProfileList, ProfilePush

profiles = App(name="profile", help="See and register workload profiles.")
executables = App(name="executable", help="See and withdraw the programs that nodes run.")

SHORT = 12
"""So much of a digest is shown where the whole one can be asked for."""


@profiles.command(name="list")
def list_profiles(
    *,
    type_name: Annotated[str | None, Parameter(name="--type", help="Only of this type.")] = None,
    output: Output = "table",
) -> None:
    """List workload profiles, newest first. New tasks get the current one of their type."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.profiles(type_name=type_name)

    _print_profiles(asyncio.run(read()), output)


@profiles.command
def show(digest: str, /) -> None:
    """Print one profile whole: the declaration that its digest is of. A beginning is enough."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.profiles()

    found = [one for one in asyncio.run(read()).profiles if one.digest.startswith(digest)]
    if len(found) != 1:
        raise UsageError(
            f"{len(found)} profiles have a digest that begins with {digest!r}.",
            next_step="See `tenure profile list -o json`.",
        )
    print_json(found[0])


@profiles.command
def push(
    application: Annotated[str, Parameter(name="MODULE:NAME", help="The executor.")],
    /,
    *,
    build_digest: Annotated[
        str | None, Parameter(help="SHA-256 of the build, as its nodes will state it.")
    ] = None,
    output: Output = "table",
) -> None:
    """Register what an executor declares, before any of its nodes runs.

    From then on new tasks of its types are submitted under these profiles.
    """
    with needs("executor"):
        from tenure.executor.executable import executable_of_app

    found = load_application(application)
    request = ProfilePush(
        task_types=tuple(each.to_wire() for each in found.handlers.values()),
        executable=executable_of_app(found, build_digest=build_digest),
    )

    async def send() -> Any:
        async with open_client() as client:
            return await client.push_profiles(request)

    _print_profiles(asyncio.run(send()), output)


@executables.command(name="list")
def list_executables(*, output: Output = "table") -> None:
    """List the programs that nodes run or ran, the one seen last first."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.executables()

    listed = asyncio.run(read())
    if output == "json":
        print_json(listed)
    else:
        _print_executables(listed.executables)


@executables.command
def withdraw(digest: str, /, *, output: Output = "table") -> None:
    """Give nothing to nodes that run a program, from now on. What they have goes on."""
    _set(digest, "withdrawn", output)


@executables.command
def register(digest: str, /, *, output: Output = "table") -> None:
    """Let nodes that run a withdrawn program be given work again."""
    _set(digest, "registered", output)


def _set(digest: str, state: Literal["registered", "withdrawn"], output: str) -> None:
    async def send() -> Any:
        async with open_client() as client:
            return await client.set_executable(digest, state)

    found = asyncio.run(send())
    if output == "json":
        print_json(found)
    else:
        _print_executables((found,))


def _print_profiles(listed: ProfileList, output: str) -> None:
    if output == "json":
        print_json(listed)
        return
    print_table(
        ["type", "profile", "current", "match", "registered"],
        [
            (
                one.type,
                one.digest[:SHORT],
                one.current,
                one.content.get("match"),
                ago(one.registered_at),
            )
            for one in listed.profiles
        ],
    )


def _print_executables(listed: tuple[ExecutableView, ...]) -> None:
    print_table(
        ["executable", "version", "state", "nodes", "last registered", "digest"],
        [
            (one.name, one.version, one.state, one.nodes, ago(one.seen_at), one.digest)
            for one in listed
        ],
    )
