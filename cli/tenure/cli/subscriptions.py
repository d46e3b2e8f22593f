"""``tenure subscription …``."""

import asyncio
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.instants import read_length
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.subscriptions import Audience, SubscriptionRequest, SubscriptionView

app = App(name="subscription", help="See and state which events reach which queue.")

Name = Annotated[str, Parameter(help="Of the subscription: letters, digits, - and _.")]
Tenant = Annotated[str | None, Parameter(help="Whose events. [default: the token's tenant]")]
AllTenants = Annotated[bool, Parameter(negative="", help="Events of every tenant.")]
ALL = "all"


@app.command
def add(
    name: Name,
    /,
    *events: Annotated[
        str, Parameter(help="all; task, attempt or node; or ENTITY.STATE like task.delivered.")
    ],
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    dedupe_retention: Annotated[
        str, Parameter(help="How long its consumers remember ids: nothing older is replayed to it.")
    ] = "7d",
    output: Output = "table",
) -> None:
    """Let events reach a queue from now on. The same name again: change which."""
    if not events:
        raise UsageError(
            "name the events.", next_step=f"Say `{ALL}`, `task`, or states like `task.delivered`."
        )
    remembered = read_length(dedupe_retention, "--dedupe-retention")
    try:
        request = SubscriptionRequest(
            **_audience(name, tenant, all_tenants=all_tenants),
            events=events,
            dedupe_retention_seconds=remembered.total_seconds(),
        )
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.subscribe(request)

    found = asyncio.run(ask())
    if output == "json":
        print_json(found)
        return
    one = found.subscription
    print_fields(
        [
            ("name", one.name),
            ("tenant", _tenant(one)),
            ("queue", one.queue),
            ("events", one.events),
            ("whole streams", one.whole_streams or "none: consumers cannot notice gaps"),
            ("remembered for", f"{one.dedupe_retention_seconds / 86_400:g} days"),
            ("queue is there", "yes" if found.bound else "not yet: once the broker can be used"),
        ]
    )


@app.command(name="list")
def list_subscriptions(*, output: Output = "table") -> None:
    """List which events reach which queues."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.subscriptions()

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    print_table(
        ["name", "tenant", "events", "whole streams", "queue", "changed", "by"],
        [
            (
                one.name,
                _tenant(one),
                one.events,
                one.whole_streams or None,
                one.queue,
                ago(one.changed_at),
                one.changed_by,
            )
            for one in found.subscriptions
        ],
    )


@app.command
def remove(
    name: Name,
    /,
    *,
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    output: Output = "table",
) -> None:
    """End a subscription. Its queue is deleted with the events that wait in it."""
    try:
        which = Audience(**_audience(name, tenant, all_tenants=all_tenants))
    except ValidationError as error:
        raise _usage(error) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.unsubscribe(which)

    found = asyncio.run(ask())
    if output == "json":
        print_json(found)
        return
    print(f"{name}: removed" if found.removed else f"{name}: was not there")


def _audience(name: str, tenant: str | None, *, all_tenants: bool) -> dict[str, Any]:
    """What was given, and nothing else."""
    given: dict[str, Any] = {"name": name}
    if tenant is not None:
        given["tenant"] = tenant
    if all_tenants:
        given["all_tenants"] = True
    return given


def _tenant(one: SubscriptionView) -> str:
    return "(all)" if one.tenant is None else one.tenant


def _usage(error: ValidationError) -> UsageError:
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"][:1])
    words = fault["msg"].removeprefix("Value error, ")
    return UsageError(f"{where + ': ' if where else ''}{words}.")
