"""``tenure tenant …``."""

import asyncio
from typing import Annotated, Any

from cyclopts import App, Parameter
from pydantic import ValidationError

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.scheduling import ANY, TenantChange, TenantView
from tenure.contract.states import TenantState

app = App(name="tenant", help="See and state what tenants may use.")

WITHOUT_LIMIT = "any"
UNLIMITED = "unlimited"
NOT_STATED = "none"


@app.command(name="set")
def set_tenant(
    tenant: str,
    /,
    *,
    unrestricted: Annotated[
        bool, Parameter(negative="", help="State that there is no limit of any kind.")
    ] = False,
    state: Annotated[TenantState | None, Parameter(help="Suspended: its tasks wait.")] = None,
    weight: Annotated[int | None, Parameter(help="Its share beside other tenants.")] = None,
    pools: Annotated[
        str | None, Parameter(help="Node pools, like a,b; any: no limit; none: take it back.")
    ] = None,
    locations: Annotated[
        str | None, Parameter(help="Where its data may be processed, in the same form.")
    ] = None,
    networks: Annotated[
        str | None, Parameter(help="What its work may reach, in the same form.")
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="In minor units of the currency; or unlimited; or none.")
    ] = None,
    currency: Annotated[str | None, Parameter(help="Of the budget, like EUR.")] = None,
    output: Output = "table",
) -> None:
    """State what a tenant may use. What is not named stays; what was never stated counts as no.

    A new tenant needs pools, locations, networks and a budget before its tasks run.
    """
    change: dict[str, Any] = {}
    if unrestricted:
        change |= dict.fromkeys(("node_pools", "locations", "networks"), (ANY,))
        change |= {"budget_unlimited": True}
    if state is not None:
        change["state"] = state
    if weight is not None:
        change["weight"] = weight
    lists = {"node_pools": pools, "locations": locations, "networks": networks}
    change |= {name: _words(given) for name, given in lists.items() if given is not None}
    if budget is not None:
        change |= _budget(budget)
    if currency is not None:
        change["currency"] = currency
    try:
        request = TenantChange(**change)
    except ValidationError as error:
        raise UsageError(_first(error)) from error

    async def ask() -> Any:
        async with open_client() as client:
            return await client.set_tenant(tenant, request)

    _print(asyncio.run(ask()), output)


@app.command
def show(tenant: str = "default", /, *, output: Output = "table") -> None:
    """Show what is stated about a tenant, and its account."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.tenant(tenant)

    _print(asyncio.run(read()), output)


@app.command(name="list")
def list_tenants(*, output: Output = "table") -> None:
    """List the tenants about which something is stated."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.tenants()

    found = asyncio.run(read())
    if output == "json":
        print_json(found)
        return
    print_table(
        ["tenant", "state", "weight", "pools", "locations", "networks", "budget", "held", "spent"],
        [
            (
                one.tenant,
                one.state.value,
                one.weight,
                permitted_text(one.node_pools),
                permitted_text(one.locations),
                permitted_text(one.networks),
                _budget_text(one),
                one.held_minor,
                one.spent_minor,
            )
            for one in found.tenants
        ],
    )


def permitted_text(words: tuple[str, ...] | None) -> str:
    """A list of what a tenant may use, as it is typed."""
    if words is None:
        return "not stated"
    return WITHOUT_LIMIT if ANY in words else ",".join(words) or "nothing"


def _words(given: str) -> tuple[str, ...] | None:
    if given == NOT_STATED:
        return None
    if given == WITHOUT_LIMIT:
        return (ANY,)
    return tuple(word.strip() for word in given.split(",") if word.strip())


def _budget(given: str) -> dict[str, Any]:
    if given == UNLIMITED:
        return {"budget_unlimited": True}
    if given == NOT_STATED:
        return {"budget_minor": None, "budget_unlimited": False}
    if not given.isdecimal():
        raise UsageError("--budget takes a whole number of minor units, unlimited, or none.")
    return {"budget_minor": int(given)}


def _budget_text(view: TenantView) -> str:
    if view.budget_unlimited:
        return UNLIMITED
    return "not stated" if view.budget_minor is None else f"{view.budget_minor} {view.currency}"


def _first(error: ValidationError) -> str:
    """What is wrong, by the name of the option."""
    fault = error.errors(include_url=False, include_input=False)[0]
    field = str(fault["loc"][0])
    option = {"node_pools": "pools", "budget_minor": "budget"}.get(field, field)
    if fault["type"] == "string_pattern_mismatch" and field != "currency":
        return f"--{option}: a name is of letters, digits, '.', '_', '/' and '-'."
    if field == "currency":
        return "--currency: three capital letters, like EUR."
    return f"--{option}: {fault['msg']}."


def _print(view: TenantView, output: str) -> None:
    if output == "json":
        print_json(view)
        return
    print_fields(
        [
            ("tenant", view.tenant),
            ("state", view.state.value),
            ("weight", view.weight),
            ("pools", permitted_text(view.node_pools)),
            ("locations", permitted_text(view.locations)),
            ("networks", permitted_text(view.networks)),
            ("budget", _budget_text(view)),
            ("held", view.held_minor),
            ("spent", view.spent_minor),
            ("changed", f"{ago(view.changed_at)} by {view.changed_by}"),
        ]
    )
