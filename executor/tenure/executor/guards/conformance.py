"""Does a receiver refuse what it should? Checks that anybody can run against their own (LEASE-10).

    for outcome in await check_sql("postgresql://bookkeeper@…/ledger"):
        assert outcome.passed, outcome

Each makes up tasks and attempts of its own, and plays what goes wrong: an older token, a lease that
is over, a holder that was paused, an answer that is asked for again. ``tenure guard check`` runs
them from a terminal. What they leave behind is a few rows, objects or requests of tasks that nobody
knows; an HTTP receiver acts a few times, so give it one for tests.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tenure.contract.errors import TenureError
from tenure.contract.ids import AttemptId, FencingToken, TaskId, fencing_token
from tenure.contract.scope import UNLIMITED, Scope
from tenure.executor.clock import system_clock
from tenure.executor.context import Context
from tenure.executor.lease import Lease

LEASE_SECONDS: Final = 60.0
TOLERANCE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found. ``says`` is for people: what was expected, and what came."""

    check: str
    passed: bool
    says: str


class Unexpected(Exception):
    """The receiver did something else."""


Check = Callable[[], Awaitable[None]]


def probe(
    task_id: str | None = None,
    generation: int = 1,
    *,
    now: datetime | None = None,
    lease_seconds: float = LEASE_SECONDS,
    scope: Scope = UNLIMITED,
) -> Context[None]:
    """An attempt that nobody granted, which believes that it has a minute. ``lease_seconds`` from
    ``now`` on the receiver's clock its lease ends; negative for one that is over."""
    clock = system_clock()
    lease = Lease(
        task_id=TaskId(task_id or str(uuid.uuid4())),
        attempt_id=AttemptId(str(uuid.uuid4())),
        fencing_token=FencingToken(fencing_token(1, generation)),
        clock=clock,
        tolerance_seconds=TOLERANCE_SECONDS,
        renewal_interval_seconds=LEASE_SECONDS,
        sent_at=clock(),
        remaining_seconds=LEASE_SECONDS,
        expires_at=(now or datetime.now(UTC)) + timedelta(seconds=lease_seconds),
    )
    return Context(
        lease=lease, task_type="conformance", resources=None, ordinal=generation, scope=scope
    )


def successor(context: Context[Any], *, now: datetime | None = None) -> Context[None]:
    """The next attempt of the same task."""
    return probe(context.task_id, 2, now=now)


async def refused(action: Awaitable[object], *errors: type[TenureError]) -> None:
    """The action has to be refused with one of these. Raises Unexpected."""
    try:
        await action
    except errors:
        return
    except TenureError as error:
        raise Unexpected(f"{type(error).__name__}: {error}") from error
    raise Unexpected("it was not refused")


async def run(checks: dict[str, Check]) -> list[Outcome]:
    """Run them in order. Errors of Tenure's and what a receiver does otherwise are outcomes;
    others pass through."""
    outcomes = []
    for name, check in checks.items():
        try:
            async with asyncio.timeout(LEASE_SECONDS):
                await check()
        except Unexpected as error:
            outcomes.append(Outcome(name, False, str(error)))
        except TimeoutError:
            outcomes.append(Outcome(name, False, f"no end within {LEASE_SECONDS:g} s"))
        except TenureError as error:
            outcomes.append(Outcome(name, False, f"{error.code}: {error}"))
        else:
            outcomes.append(Outcome(name, True, "as it should be"))
    return outcomes
