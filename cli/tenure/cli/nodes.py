"""``tenure node …``."""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from tenure.cli.connection import open_client
from tenure.cli.exits import CommandError, Exit, UsageError
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.operations import QuarantineRequest, ReviewClosing
from tenure.contract.quantities import cpu_text, memory_text
from tenure.contract.scheduling import NodeDetail, NodeFactsChange
from tenure.contract.states import NodeState
from tenure.contract.tasks import NodeList

LOOK_SECONDS: Final = 0.5

app = App(name="node", help="See the executors' processes, and state facts about them.")


@app.command
def show(node_id: str, /, *, output: Output = "table") -> None:
    """Show one node: what it offers, and what is stated about it."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.node(node_id)

    _print(asyncio.run(read()), output)


@app.command(name="set")
def set_facts(
    node_id: str,
    /,
    *,
    pool: Annotated[str | None, Parameter(help="The pool that it belongs to.")] = None,
    location: Annotated[str | None, Parameter(help="Where data on it is.")] = None,
    zone: Annotated[str | None, Parameter(help="What fails together with it.")] = None,
    networks: Annotated[str | None, Parameter(help="What it reaches, like internet,db.")] = None,
    label: Annotated[
        tuple[str, ...], Parameter(negative="", help="NAME=VALUE, or NAME to take it back.")
    ] = (),
    unset: Annotated[
        tuple[Literal["pool", "location", "zone", "networks"], ...],
        Parameter(negative="", help="Take a word back: what the node states itself counts."),
    ] = (),
    output: Output = "table",
) -> None:
    """State facts about a node, before what it states itself. What is not named stays.

    The node need not have registered yet.
    """
    change: dict[str, Any] = dict.fromkeys(unset)
    given = {"pool": pool, "location": location, "zone": zone}
    change |= {name: word for name, word in given.items() if word is not None}
    if networks is not None:
        change["networks"] = tuple(word.strip() for word in networks.split(",") if word.strip())
    if label:
        pairs = (one.partition("=") for one in label)
        change["labels"] = {name: value if equals else None for name, equals, value in pairs}
    try:
        request = NodeFactsChange(**change)
    except ValueError as error:
        raise UsageError("a name is of letters, digits, '.', '_', '/' and '-'.") from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.set_node_facts(node_id, request)

    _print(asyncio.run(ask()), output)


def _print(detail: NodeDetail, output: str) -> None:
    if output == "json":
        print_json(detail)
        return
    current = detail.current
    facts = detail.stated if current is None else current.facts
    labels = ", ".join(f"{name}={value}" for name, value in sorted(facts.labels.items()))
    print_fields(
        [
            ("node", detail.node_id),
            ("state", "not registered" if current is None else current.state),
            ("pool", facts.pool),
            ("location", facts.location),
            ("zone", facts.zone),
            ("networks", facts.networks),
            ("labels", labels),
            ("by operators", detail.stated.model_dump_json(exclude_defaults=True)),
        ]
    )
    if current is None:
        return
    program = current.executable
    offered, used = current.resources, current.resources_used
    print_fields(
        [
            ("incarnation", current.incarnation),
            ("software", current.software),
            ("executable", program and f"{program.name} {program.version} {program.digest}"),
            ("withdrawn", "yes: it is given nothing" if program and program.withdrawn else None),
            ("slots", f"{current.slots_used} of {current.slots}"),
            ("cpu", offered and f"{cpu_text(used.cpu_millis)} of {cpu_text(offered.cpu_millis)}"),
            (
                "memory",
                offered
                and f"{memory_text(used.memory_bytes)} of {memory_text(offered.memory_bytes)}",
            ),
            ("last seen", ago(current.last_seen_at)),
            ("health", "under review" if current.under_review else None),
        ]
    )
    print()
    print_table(
        ["task type", "at once", "profile"],
        [
            (name, current.concurrency.get(name, current.slots), digest)
            for name, digest in sorted(current.profiles.items())
        ],
    )


@app.command(name="list")
def list_nodes(
    *,
    every_start: Annotated[
        bool,
        Parameter(
            name="--all", negative="", help="With starts that have ended within the last hour."
        ),
    ] = False,
    output: Output = "table",
) -> None:
    """List the executors' processes, one line for each."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.nodes()

    known = asyncio.run(read())
    shown = tuple(node for node in known.nodes if every_start or node.state != NodeState.GONE)
    if output == "json":
        print_json(NodeList(nodes=shown))
        return
    print_table(
        ["node", "state", "software", "slots", "task types", "last seen", "incarnation"],
        [
            (
                node.node_id,
                f"{node.state}, under review" if node.under_review else node.state,
                node.software,
                f"{node.slots_used}/{node.slots}",
                node.task_types,
                ago(node.last_seen_at),
                node.incarnation,
            )
            for node in shown
        ],
    )
    if ended := len(known.nodes) - len(shown):
        print(f"{ended} more ended within the last hour: --all lists them")


@app.command
def drain(
    node_id: str,
    /,
    *,
    wait: Annotated[bool, Parameter(negative="", help="Until nothing runs on it.")] = False,
    timeout: Annotated[float | None, Parameter(help="Seconds to wait at most.")] = None,
    output: Output = "table",
) -> None:
    """Give a node nothing new, and let it finish what it runs: before its machine is stopped.

    What it has not begun is handed back, and burns no attempt. It stays so until its next start.
    With --wait the exit code is 5 when the timeout passes first.
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout without --wait.")

    async def ask() -> Any:
        async with open_client() as client:
            detail = await client.node(node_id)
            if detail.current is None:
                raise CommandError(
                    f"node {node_id!r} does not run.",
                    next_step="`tenure node list` shows those that do.",
                    code="unknown_node",
                )
            incarnation = detail.current.incarnation
            await client.drain_node(node_id, incarnation)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    while True:
                        detail = await client.node(node_id)
                        if not wait or not _uses_slots(detail, incarnation):
                            break
                        await asyncio.sleep(LOOK_SECONDS)
            return detail, _uses_slots(detail, incarnation)

    detail, used = asyncio.run(ask())
    if output == "json":
        print_json(detail)
    else:
        state = "nothing runs on it" if not used else f"{used} of its slots are in use"
        print(f"node {node_id} gets nothing new: {state}")
    if wait and used:
        raise SystemExit(Exit.NOT_YET)


def _uses_slots(detail: NodeDetail, incarnation: str) -> int:
    current = detail.current
    if current is None or current.incarnation != incarnation:
        return 0  # that start has ended
    return current.slots_used


@app.command
def quarantine(
    node_id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why, for those who look after the node.")],
    output: Output = "table",
) -> None:
    """Take a node out of service: it gets nothing new, and what it has is revoked.

    It stays so over restarts, until `tenure node release`.
    """

    async def ask() -> Any:
        async with open_client() as client:
            return await client.quarantine(node_id, QuarantineRequest(reason=reason))

    reply = asyncio.run(ask())
    if output == "json":
        print_json(reply)
        return
    print(f"node {reply.node_id} is quarantined: its {len(reply.attempts)} attempts are revoked")
    if reply.attempts:
        print(
            "receivers accept their tokens until the instant named, or a successor's first touch:"
        )
        print_table(
            ["task", "attempt", "fencing token", "until"],
            [
                (one.task_id, one.attempt_id, one.fencing_token, one.expires_at)
                for one in reply.attempts
            ],
        )


@app.command
def release(node_id: str, /) -> None:
    """Let a quarantined node back: it may be given work again."""

    async def ask() -> None:
        async with open_client() as client:
            await client.release_node(node_id)

    asyncio.run(ask())
    print(f"node {node_id} may be given work again")


@app.command
def reviews(
    node_id: str,
    /,
    *,
    close: Annotated[
        str | None, Parameter(help="Close the open one: what somebody found who has looked.")
    ] = None,
    output: Output = "table",
) -> None:
    """List the health reviews of a node: when its heartbeats were missing, and what came of it."""

    async def ask() -> Any:
        async with open_client() as client:
            if close is not None:
                return await client.close_review(node_id, ReviewClosing(reason=close))
            return await client.reviews(node_id)

    known = asyncio.run(ask())
    if output == "json":
        print_json(known)
        return
    print_table(
        ["opened", "last seen before", "closed", "outcome", "by", "message", "incarnation"],
        [
            (
                one.opened_at,
                one.last_seen_at,
                one.closed_at,
                one.outcome or "open",
                one.closed_by,
                one.message,
                one.incarnation,
            )
            for one in known.reviews
        ],
    )
