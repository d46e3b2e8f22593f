"""``tenure verify``: whether a database keeps its invariants."""

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from tenure.cli.exits import CommandError, needs
from tenure.cli.output import Output, print_fields, print_json, print_table
from tenure.cli.settings import Config, completed, given

if TYPE_CHECKING:
    from tenure.coordinator.store.verify import Findings


class InvariantsBroken(CommandError):
    """Rows of the database contradict each other."""

    code = "invariants_broken"


def verify(*, config: Config = None, output: Output = "table") -> None:
    """Look for anything in the database that breaks an invariant, and name it with examples.

    Reads only, in short snapshots, and may run while everything runs. TENURE_DATABASE_URL must be
    the login that owns the schema; without it, the local stack of the working directory. Exit code
    1 when anything is broken.
    """
    with needs("coordinator"):
        from tenure.coordinator.config import MigrateSettings
        from tenure.coordinator.store.verify import INVARIANTS, verify
    from tenure.settings.process import load

    settings = load(MigrateSettings, completed("migrate", given(config=config))[0])
    terminal = sys.stderr.isatty()

    def say(walk: str, rows: int) -> None:
        if terminal:
            print(f"\r\033[K{walk}: {rows:,} rows", end="", file=sys.stderr, flush=True)

    findings = asyncio.run(verify(settings.database_url.current(), say))
    if terminal:
        print("\r\033[K", end="", file=sys.stderr)
    if output == "json":
        print_json(
            {
                "clean": not findings.broken,
                "invariants": INVARIANTS,
                "rows": findings.rows,
                "broken": {name: asdict(found) for name, found in findings.broken.items()},
            }
        )
    else:
        _print(findings, len(INVARIANTS))
    if findings.broken:
        raise InvariantsBroken(
            f"{', '.join(findings.broken)}.",
            next_step="Keep the database as it is, with its log, and see docs/operations.md.",
        )


def _print(findings: "Findings", invariants: int) -> None:
    if findings.broken:
        print_table(
            ["invariant", "broken", "subject", "what is wrong"],
            [
                (name, found.count, example.subject, example.detail)
                for name, found in findings.broken.items()
                for example in found.examples
            ],
        )
        return
    print_fields([(name, f"{rows:,}") for name, rows in findings.rows.items()])
    print(f"{invariants} invariants hold")
