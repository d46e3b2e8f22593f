"""``tenure policy …``."""

import asyncio
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from tenure.cli.connection import open_client
from tenure.cli.exits import UsageError
from tenure.cli.output import Output, ago, print_fields, print_json, print_table
from tenure.contract.operations import PolicyChange, PolicyView

app = App(name="policy", help="See and set the terms of leases.")

Seconds = Annotated[float | None, Parameter(help="Seconds; absent: as it is.")]


@app.command
def show(
    *,
    history: Annotated[
        bool, Parameter(negative="", help="Every version, newest first, and why it was set.")
    ] = False,
    output: Output = "table",
) -> None:
    """Show the policy in force: how long leases last, and how nodes are judged."""

    async def read() -> Any:
        async with open_client() as client:
            return await client.policies()

    known = asyncio.run(read())
    if not history:
        _print(known.policies[0], output)
    elif output == "json":
        print_json(known)
    else:
        print_table(
            ["version", "lease", "margin", "tolerance", "silence", "retries", "by", "set", "why"],
            [
                (
                    policy.version,
                    _seconds(policy.lease_seconds),
                    _seconds(_margin(policy)),
                    _seconds(policy.clock_tolerance_seconds),
                    _seconds(policy.node_silence_seconds),
                    f"{policy.retry_base_seconds:g} to {policy.retry_cap_seconds:g} s",
                    policy.set_by,
                    ago(policy.set_at),
                    policy.reason,
                )
                for policy in known.policies
            ],
        )


@app.command(name="set")
def set_policy(
    *,
    reason: Annotated[str, Parameter(help="Why, for those who read the history.")],
    lease_seconds: Seconds = None,
    renewal_margin_seconds: Annotated[
        float | None,
        Parameter(help="What is left of a lease when it is renewed; 0: two thirds of the lease."),
    ] = None,
    clock_tolerance_seconds: Seconds = None,
    node_silence_seconds: Seconds = None,
    retry_base_seconds: Seconds = None,
    retry_cap_seconds: Seconds = None,
    on_promotion: Annotated[
        Literal["continue", "hold"] | None,
        Parameter(help="After a promoted standby: go on at once, or wait for `tenure recover`."),
    ] = None,
    if_version: Annotated[int | None, Parameter(help="Only if this version is in force.")] = None,
    output: Output = "table",
) -> None:
    """Set the policy for what is granted from now on. Granted leases keep their terms."""
    given: dict[str, Any] = {
        "lease_seconds": lease_seconds,
        "renewal_margin_seconds": renewal_margin_seconds,
        "clock_tolerance_seconds": clock_tolerance_seconds,
        "node_silence_seconds": node_silence_seconds,
        "retry_base_seconds": retry_base_seconds,
        "retry_cap_seconds": retry_cap_seconds,
        "on_promotion": on_promotion,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise UsageError("There is nothing to change: name at least one of the terms.")
    if renewal_margin_seconds == 0:
        changes["renewal_margin_seconds"] = None

    async def change() -> Any:
        async with open_client() as client:
            after = if_version or (await client.policies()).policies[0].version
            return await client.set_policy(
                PolicyChange.model_validate({"after_version": after, "reason": reason} | changes)
            )

    _print(asyncio.run(change()), output)


def _print(policy: PolicyView, output: str) -> None:
    if output == "json":
        print_json(policy)
        return
    print_fields(
        [
            ("version", policy.version),
            ("lease", _seconds(policy.lease_seconds)),
            ("renewed with", f"{_seconds(_margin(policy))} left"),
            ("clock tolerance", _seconds(policy.clock_tolerance_seconds)),
            ("node silence", _seconds(policy.node_silence_seconds)),
            ("retries after", f"{policy.retry_base_seconds:g} to {policy.retry_cap_seconds:g} s"),
            ("on promotion", policy.on_promotion),
            ("set by", policy.set_by),
            ("set", policy.set_at),
            ("why", policy.reason),
        ]
    )


def _margin(policy: PolicyView) -> float:
    margin = policy.renewal_margin_seconds
    return policy.lease_seconds * 2 / 3 if margin is None else margin


def _seconds(value: float) -> str:
    return f"{value:g} s"
