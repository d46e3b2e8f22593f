"""``tenure doctor``: whether a process could work here, what is wrong, and what to do."""

import asyncio
import logging
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast
from urllib.parse import parse_qsl, urlsplit

from cyclopts import Parameter

from tenure.cli.arguments import read_secret_argument
from tenure.cli.checkup import (
    Finding,
    Verdict,
    fail,
    failed,
    judge_broker,
    judge_database,
    judge_disk,
    judge_downstream,
    judge_left_undone,
    judge_tokens,
    ok,
    warn,
    worst,
)
from tenure.cli.connection import CONNECTION_FILE, read_connection_file, state_directory
from tenure.cli.exits import Exit, needs
from tenure.cli.output import Output, print_json
from tenure.cli.settings import Config, given, is_incomplete, model_of, read
from tenure.contract.errors import TenureError
from tenure.contract.tasks import IdentityView
from tenure.contract.topology import DEFAULT_PREFIX

if TYPE_CHECKING:
    from tenure.coordinator.config import CoordinatorSettings
    from tenure.coordinator.store.inspection import Clock
    from tenure.executor.config import ExecutorSettings
    from tenure.relay.config import RelaySettings
    from tenure.settings.process import DatabaseSettings

Patient = Literal["coordinator", "relay", "executor"]

_HTTP_SECONDS: Final = 10.0
_RELAY_CONNECTIONS: Final = 2
_DEFAULT_TOLERANCE_SECONDS: Final = 1.0


def doctor(
    process: Annotated[
        Patient | None,
        Parameter(help="Which process. [default: the local stack if one runs, else coordinator]"),
    ] = None,
    /,
    *,
    downstream: Annotated[
        tuple[str, ...],
        Parameter(
            help="A guarded database, as executors log in to it, or @FILE: its guard, and its clock"
            " against the authority's. May be given several times."
        ),
    ] = (),
    guard_schema: Annotated[
        str, Parameter(help="Schema of the guard in these databases.")
    ] = "public",
    config: Config = None,
    output: Output = "table",
) -> None:
    """Look at the servers as a process with these settings would use them, and change nothing.

    Each line is ok, warn (it works, and should be looked at) or fail. Exit code 4 when one fails.
    """
    for name in ("aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the report says it
    urls = [read_secret_argument("--downstream", each) for each in downstream]
    found = asyncio.run(_all_examined(process, given(config=config), urls, guard_schema))
    if output == "json":
        print_json(
            [
                {
                    "check": one.check,
                    "verdict": one.verdict.value,
                    "says": one.says,
                    "next_step": one.next_step,
                }
                for one in found
            ]
        )
    else:
        _print(found)
    if worst(found) is Verdict.FAIL:
        sys.exit(Exit.SETUP)


def _print(found: list[Finding]) -> None:
    width = max(len(one.check) for one in found)
    for one in found:
        print(f"{one.verdict:<4}  {one.check:<{width}}  {one.says}")
        if one.next_step:
            print(f"{'':<4}  {'':<{width}}  To do: {one.next_step}")


async def _all_examined(
    process: Patient | None, values: dict[str, Any], downstream: list[str], schema: str
) -> list[Finding]:
    """The process's servers, then the databases that its executors write to."""
    found = await _examined(process, values)
    if downstream:
        with needs("sql"):
            from tenure.executor.guards import sql_inspection
        clock, tolerance_seconds = await _authority_clock(process, values)
        for url in downstream:
            try:
                facts = await sql_inspection.inspect(url, schema=schema)
            except TenureError as error:
                found.append(failed(f"downstream {urlsplit(url).path.lstrip('/')}", error))
            else:
                found += judge_downstream(facts, clock, tolerance_seconds)
    return found


async def _authority_clock(
    process: Patient | None, values: dict[str, Any]
) -> tuple["Clock | None", float]:
    """The clock that leases end by, where this command may ask for it, and the tolerance."""
    tolerance_seconds = _DEFAULT_TOLERANCE_SECONDS
    if process is None and _is_local(values):
        url = str(read_connection_file(state_directory() / CONNECTION_FILE)["database_url"])
    elif process in (None, "coordinator"):
        try:
            settings = cast("CoordinatorSettings", read("coordinator", values)[0])
        except TenureError:
            return None, tolerance_seconds  # which has been said
        url, tolerance_seconds = settings.database_url.current(), settings.clock_tolerance_seconds
    else:
        return None, tolerance_seconds
    from tenure.coordinator.store import inspection

    try:
        return (await inspection.inspect(url, "coordinator")).clock, tolerance_seconds
    except TenureError:
        return None, tolerance_seconds  # which has been said


async def _examined(process: Patient | None, values: dict[str, Any]) -> list[Finding]:
    if process is None and _is_local(values):
        return [finding async for finding in _local_stack()]
    chosen: Patient = process or "coordinator"
    examine = _EXAMINATIONS[chosen]
    try:
        settings, _ = read(chosen, values)
    except TenureError as error:
        if process is None and is_incomplete(error):
            return [_nothing_known(error)]
        return [failed("settings", error)]
    found = [ok("settings", f"a {chosen} could start with them")]
    return found + [finding async for finding in examine(settings)]


def _nothing_known(error: TenureError) -> Finding:
    """Neither a local stack nor servers: who asks may just be in another folder."""
    return fail(
        "settings",
        f"no local stack runs in {state_directory()}, and as to a coordinator of its own:"
        f" {error.message}",
        "Start a local stack with `tenure up` or go to where one runs; or set what is missing.",
    )


def _is_local(values: dict[str, Any]) -> bool:
    """Whether the local stack is meant: it runs here, and nobody told of other servers."""
    if not (state_directory() / CONNECTION_FILE).exists():
        return False
    model = model_of("coordinator")
    from tenure.settings.process import places_of

    return not {"database_url", "broker_url"} & places_of(model, values).keys()


async def _coordinator(settings: "CoordinatorSettings") -> AsyncIterator[Finding]:
    connections = (
        settings.read_connections + settings.node_connections + settings.commit_connections
    )
    async for finding in _database(
        settings, "coordinator", connections, settings.clock_tolerance_seconds
    ):
        yield finding
    async for finding in _broker(settings.broker_url_now(), settings.name_prefix, may_declare=True):
        yield finding
    for finding in judge_tokens(settings.tokens.current()):
        yield finding


async def _relay(settings: "RelaySettings") -> AsyncIterator[Finding]:
    async for finding in _database(
        settings, "relay", _RELAY_CONNECTIONS, _DEFAULT_TOLERANCE_SECONDS
    ):
        yield finding
    async for finding in _broker(
        settings.broker_url_now(), settings.name_prefix, may_declare=False
    ):
        yield finding


async def _executor(settings: "ExecutorSettings") -> AsyncIterator[Finding]:
    async for finding in _http(settings.url, settings.token.current(), "executor"):
        yield finding
    with needs("executor"):
        from tenure.coordinator import broker_inspection
    if not settings.no_broker:
        try:
            yield ok("broker", await broker_inspection.greet(settings.broker_url_now()))
        except TenureError as error:
            yield failed("broker", error)
    yield _disk(settings.state_dir)


_EXAMINATIONS: Final[dict[Patient, Callable[[Any], AsyncIterator[Finding]]]] = {
    "coordinator": _coordinator,
    "relay": _relay,
    "executor": _executor,
}


async def _local_stack() -> AsyncIterator[Finding]:
    """The stack of `tenure up` in the state directory, as its administrator."""
    with needs("all"):
        from tenure.coordinator.store import inspection

    directory = state_directory()
    content = read_connection_file(directory / CONNECTION_FILE)
    yield ok("settings", f"of the local stack in {directory}")
    try:
        facts = await inspection.inspect(str(content["database_url"]), "coordinator")
    except TenureError as error:
        yield failed("database", error)
    else:
        for finding in judge_database(
            facts,
            "coordinator",
            pooled=False,
            verified=True,
            connections=0,
            tolerance_seconds=_DEFAULT_TOLERANCE_SECONDS,
            administrator=True,
        ):
            yield finding
        if facts.schema_fault is None:
            async for finding in _left_undone(str(content["database_url"])):
                yield finding
    prefix = str(content.get("name_prefix", DEFAULT_PREFIX))
    async for finding in _broker(str(content["broker_url"]), prefix, may_declare=True):
        yield finding
    yield await _queues(str(content["url"]), str(content["tokens"]["operator"]))
    for role, token in content["tokens"].items():
        async for finding in _http(str(content["url"]), str(token), role):
            yield finding
    yield _disk(directory)


async def _database(
    settings: "DatabaseSettings",
    service: Literal["coordinator", "relay"],
    connections: int,
    tolerance_seconds: float,
) -> AsyncIterator[Finding]:
    from tenure.coordinator.store import inspection

    url = settings.database_url.current()
    try:
        facts = await inspection.inspect(url, service)
    except TenureError as error:
        yield failed("database", error)
        return
    for finding in judge_database(
        facts,
        service,
        pooled=settings.pooled,
        verified=_is_verified(url),
        connections=connections,
        tolerance_seconds=tolerance_seconds,
    ):
        yield finding
    if service == "coordinator" and facts.schema_fault is None and not facts.lacking:
        async for finding in _left_undone(url):
            yield finding


async def _left_undone(url: str) -> AsyncIterator[Finding]:
    """What waits for a person in a database that can be used."""
    from tenure.coordinator.store import inspection

    try:
        left = await inspection.left_undone(url)
    except TenureError as error:
        yield failed("left undone", error)
        return
    for finding in judge_left_undone(left):
        yield finding


def _is_verified(database_url: str) -> bool:
    """Whether the way to the server is known to lead there: by certificate, or within a machine."""
    parts = urlsplit(database_url)
    query = dict(parse_qsl(parts.query))
    host = parts.hostname or query.get("host", "")
    local = not host or host.startswith(("/", "127.")) or host in ("localhost", "::1")
    return local or query.get("sslmode") == "verify-full"


async def _broker(url: str, name_prefix: str, *, may_declare: bool) -> AsyncIterator[Finding]:
    from tenure.coordinator import broker_inspection

    try:
        facts = await broker_inspection.inspect(url, name_prefix, may_declare=may_declare)
    except TenureError as error:
        yield failed("broker", error)
        return
    for finding in judge_broker(facts, name_prefix):
        yield finding


async def _http(url: str, token: str, role: str) -> AsyncIterator[Finding]:
    """The coordinator, and what our token is worth there."""
    with needs("cli"):
        import httpx2

    check, headers = f"{role} token", {"authorization": f"Bearer {token}"}
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=_HTTP_SECONDS) as client:
            if role == "executor":
                ready = await client.get("/readyz")
                yield _readiness(url, ready.status_code, ready.text)
            answer = await client.get("/v1/identity", headers=headers)
    except httpx2.HTTPError as error:
        reason = str(error) or type(error).__name__
        yield fail(
            "coordinator",
            f"no answer from {url}: {reason}",
            "Check TENURE_URL, and that a coordinator runs there.",
        )
        return
    yield _token(check, role, answer.status_code, answer.text)


async def _queues(url: str, token: str) -> Finding:
    """What is on the broker beside what must be there, as the coordinator finds it."""
    with needs("cli"):
        import httpx2

    headers = {"authorization": f"Bearer {token}"}
    try:
        async with httpx2.AsyncClient(base_url=url, timeout=_HTTP_SECONDS) as client:
            answer = await client.get("/v1/topology", headers=headers)
            findings = answer.json()["findings"] if answer.status_code == 200 else None
    except (httpx2.HTTPError, ValueError, KeyError):
        findings = None
    if findings is None:
        return warn("queues", "cannot be judged now", "Ask again once the coordinator is ready.")
    wrong = [one for one in findings if one["fitness"] != "ok"]
    if wrong:
        # What is only missing is declared within seconds.
        say = warn if all(one["fitness"] == "missing" for one in wrong) else fail
        names = ", ".join(f"{one['name']} {one['fitness']}" for one in wrong[:5])
        return say("queues", names, "Run `tenure topology check`.")
    return ok("queues", f"{len(findings)} exchanges and queues are as they must be")


def _readiness(url: str, status: int, text: str) -> Finding:
    if status == 200:
        return ok("coordinator", f"{url} is ready")
    faults = [line for line in text.splitlines() if not line.endswith(": ok")]
    return fail(
        "coordinator",
        f"{url} answers and is not ready: {'; '.join(faults) or f'HTTP {status}'}",
        "Run `tenure doctor` where it runs.",
    )


def _token(check: str, role: str, status: int, text: str) -> Finding:
    if status == 200:
        who = IdentityView.model_validate_json(text)
        if who.role == role:
            return ok(check, f"known to the coordinator as {who.name!r} of tenant {who.tenant!r}")
        return fail(
            check,
            f"known to the coordinator, but its role is {who.role} and not {role}",
            f"Use a token with the role {role}.",
        )
    if status == 401:
        return fail(
            check,
            "not known to the coordinator",
            "Compare TENURE_TOKEN with the coordinator's TENURE_TOKENS.",
        )
    return warn(check, f"cannot be judged now: HTTP {status}", "Ask again once it is ready.")


def _disk(directory: Path) -> Finding:
    """Of the nearest folder that exists."""
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    return judge_disk(str(directory), shutil.disk_usage(existing).free)
