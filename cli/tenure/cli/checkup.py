"""What `tenure doctor` makes of the facts: for each the verdict, and what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tenure.cli.output import roughly
from tenure.contract.errors import TenureError
from tenure.contract.states import ReplayPause

if TYPE_CHECKING:
    from tenure.coordinator.broker_inspection import BrokerFacts
    from tenure.coordinator.config import TokenEntry
    from tenure.coordinator.store.inspection import Clock, DatabaseFacts, LeftUndone, Service
    from tenure.executor.guards.sql_inspection import DownstreamFacts

DISK_WARN_BYTES: Final = 2**30
DISK_FAIL_BYTES: Final = 100 * 2**20
CLOCK_FAIL_SECONDS: Final = 60.0
SHORT_TOKEN: Final = 32
OVERDUE_WARN_SECONDS: Final = 3600.0
"""Removal looks every half minute; a large backlog takes it a while."""
_UNLIMITED: Final = 0


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # works, and should be looked at
    FAIL = "fail"  # does not work, or is not safe


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. ``next_step`` says what to do, unless all is well."""

    check: str
    verdict: Verdict
    says: str
    next_step: str = ""


def ok(check: str, says: str) -> Finding:
    """All is well."""
    return Finding(check, Verdict.OK, says)


def warn(check: str, says: str, next_step: str) -> Finding:
    """It works, and should be looked at."""
    return Finding(check, Verdict.WARN, says, next_step)


def fail(check: str, says: str, next_step: str) -> Finding:
    """It does not work, or is not safe."""
    return Finding(check, Verdict.FAIL, says, next_step)


def failed(check: str, error: TenureError) -> Finding:
    """What an error says."""
    return fail(check, f"{error.code}: {error.message}", error.next_step)


def judge_database(
    facts: "DatabaseFacts",
    service: "Service",
    *,
    pooled: bool,
    verified: bool,
    connections: int,
    tolerance_seconds: float,
    administrator: bool = False,
) -> Iterator[Finding]:
    """About the database. ``verified``: its certificate is, or it is this machine. ``connections``:
    as many as the process may open. ``administrator``: the login is known to be one."""
    says = f"PostgreSQL {facts.server_version}, logged in as {facts.user_name}"
    if verified:
        yield ok("database", says)
    else:
        yield warn(
            "database",
            f"{says}; its certificate is not verified",
            "Add ?sslmode=verify-full&sslrootcert=FILE to TENURE_DATABASE_URL.",
        )
    if facts.schema_fault is None:
        yield ok("migrations", "the schema is this release's")
    else:
        yield failed("migrations", facts.schema_fault)
    if facts.authority_confirmed is False:
        yield fail(
            "authority",
            "the running server is not the one this authority was opened on",
            "Decide what this database is: a promoted standby, a restored backup, or a copy.",
        )
    if administrator:
        yield ok("rights", "the administrator of the local stack")
    else:
        yield from _judge_rights(facts, service)
        yield from _judge_limits(facts)
    yield _judge_pooler(facts, pooled)
    if facts.free_connections >= connections:
        yield ok("connections", f"room for {facts.free_connections} more")
    else:
        yield warn(
            "connections",
            f"room for {facts.free_connections} more, and this process may open {connections}",
            "Raise max_connections, lower the TENURE_*_CONNECTIONS, or use a pooler.",
        )
    yield _judge_clock(facts, tolerance_seconds)


def _judge_rights(facts: "DatabaseFacts", service: "Service") -> Iterator[Finding]:
    use_role = f"Use the role that `tenure migrate up` makes for it, by default tenure_{service}."
    if facts.superuser:
        yield fail("rights", f"{facts.user_name} is a superuser, whom nothing binds", use_role)
    elif facts.owner:
        yield fail(
            "rights", f"{facts.user_name} owns the schema and could change anything in it", use_role
        )
    elif facts.writable:
        yield fail(
            "rights",
            f"{facts.user_name} may change tables by itself: {', '.join(facts.writable)}",
            "Run `tenure migrate up`, which grants what is needed and nothing else.",
        )
    elif facts.lacking:
        yield fail(
            "rights",
            f"{facts.user_name} may not use {', '.join(facts.lacking)}",
            f"{use_role} `tenure migrate up` grants its rights anew.",
        )
    elif facts.schema_fault is None:
        yield ok("rights", "what a service needs, and no table to write to")


def _judge_limits(facts: "DatabaseFacts") -> Iterator[Finding]:
    unlimited = sorted(name for name, value in facts.limits.items() if value == _UNLIMITED)
    if unlimited:
        yield fail(
            "limits",
            f"{facts.user_name} has no {', '.join(unlimited)}: a process that is stopped in the"
            " middle would block others without end",
            "Let an administrator run what `tenure migrate roles --print` prints.",
        )
        return
    times = [
        facts.limits.get(name, _UNLIMITED)
        for name in ("lock_timeout", "statement_timeout", "transaction_timeout")
    ]
    if times != sorted(set(times)):
        yield warn(
            "limits",
            "lock_timeout < statement_timeout < transaction_timeout does not hold",
            "Let an administrator run what `tenure migrate roles --print` prints.",
        )
    else:
        yield ok("limits", f"no transaction lasts longer than {times[-1] / 1000:g} s")


def _judge_pooler(facts: "DatabaseFacts", pooled: bool) -> Finding:
    match facts.pooling, pooled:
        case "none", False:
            return ok("pooler", "none, as set")
        case "none", True:
            return warn(
                "pooler",
                "none was seen, but TENURE_POOLED is set: statements are prepared each time",
                "Unset TENURE_POOLED where the connection is direct.",
            )
        case "transaction", False:
            return fail(
                "pooler",
                "one in transaction mode, and TENURE_POOLED is not set",
                "Set TENURE_POOLED=true, or connect directly.",
            )
        case "session", False:
            return warn(
                "pooler",
                "there is one, not seen to be in transaction mode",
                "Set TENURE_POOLED=true unless it is in session mode.",
            )
    return ok("pooler", "there is one, as set")


def _judge_clock(facts: "DatabaseFacts", tolerance_seconds: float) -> Finding:
    ahead, uncertainty = facts.clock.ahead_seconds, facts.clock.uncertainty_seconds
    side = "ahead of" if ahead > 0 else "behind"
    says = (
        f"the database's is {abs(ahead):.3f} s {side} this machine's, give or take"
        f" {uncertainty:.3f} s"
    )
    certain = abs(ahead) - uncertainty
    step = "Keep both clocks right with NTP. Leases follow the database's alone."
    if certain > CLOCK_FAIL_SECONDS:
        return fail("clock", says, step)
    if certain > tolerance_seconds:
        return warn("clock", says, step)
    return ok("clock", says)


def judge_left_undone(left: "LeftUndone") -> Iterator[Finding]:
    """About what waits for a person."""
    if left.parked:
        yield warn(
            "parked messages",
            f"{left.parked} could not be published and are set aside",
            "See `tenure outbox parked list`; mend what keeps them, then `tenure outbox retry`.",
        )
    failed_replays = {
        why: number
        for why, number in left.paused_replays.items()
        if why != ReplayPause.OPERATOR.value
    }
    if failed_replays:
        reasons = ", ".join(f"{number} by {why}" for why, number in sorted(failed_replays.items()))
        yield warn(
            "replays",
            f"paused since they cannot go on: {reasons}",
            "See `tenure outbox replay list --state paused`; mend it, then `tenure outbox replay"
            " resume`, or cancel them.",
        )
    elif left.paused_replays:
        yield warn(
            "replays",
            f"{sum(left.paused_replays.values())} paused by an operator; they keep the log from"
            " being removed",
            "`tenure outbox replay resume` or `cancel` them once that is no longer wanted.",
        )
    overdue = {
        kind: seconds
        for kind, seconds in left.overdue_seconds.items()
        if seconds > OVERDUE_WARN_SECONDS
    }
    if overdue:
        kinds = ", ".join(
            f"{kind} for {roughly(int(seconds))}" for kind, seconds in sorted(overdue.items())
        )
        yield warn(
            "retention",
            f"rows that should be removed are still there: {kinds}",
            "`tenure retention plan` says what keeps them; `tenure retention run` removes now.",
        )
    if left.waiting_for_a_type:
        types = ", ".join(
            f"{number} of type {name}" for name, number in sorted(left.waiting_for_a_type.items())
        )
        yield warn(
            "waiting tasks",
            f"no node runs what they need: {types}",
            "Start an executor that has the type: `tenure executor MODULE:NAME`.",
        )
    if not (left.parked or left.paused_replays or overdue or left.waiting_for_a_type):
        yield ok("left undone", "nothing is parked, paused, overdue for removal or without a node")


def judge_downstream(
    facts: "DownstreamFacts", authority: "Clock | None", tolerance_seconds: float
) -> Iterator[Finding]:
    """About a guarded database. ``authority`` is the clock that leases end by, where it could be
    read: both against this machine's."""
    check = f"downstream {facts.name}"
    if facts.lacking:
        yield fail(
            check,
            f"{facts.user_name} has no use of {', '.join(facts.lacking)}",
            "Let its owner run what `tenure guard sql --print --role ACCOUNT` prints; over an"
            " installation of an earlier version too.",
        )
    elif facts.writable:
        yield warn(
            check,
            f"{facts.user_name} may write to {', '.join(facts.writable)} by itself",
            "Give executors a login of their own, which may only call the guard.",
        )
    elif not facts.ends_transactions:
        yield ok(
            check,
            f"PostgreSQL {facts.server_version}: each statement and each pause is limited, and the"
            " commit is judged; from 17 on the transaction as a whole is limited",
        )
    else:
        yield ok(check, f"PostgreSQL {facts.server_version}, guarded")
    ahead = facts.ahead_seconds - (authority.ahead_seconds if authority else 0.0)
    uncertainty = facts.uncertainty_seconds + (authority.uncertainty_seconds if authority else 0.0)
    side = "ahead of" if ahead > 0 else "behind"
    other = "the authority's" if authority else "this machine's"
    says = f"{abs(ahead):.3f} s {side} {other}, give or take {uncertainty:.3f} s"
    step = (
        "Keep both clocks right with NTP: a downstream that is ahead refuses leases that are good,"
        " one that is behind takes writes after their end."
    )
    if abs(ahead) - uncertainty > tolerance_seconds:
        yield fail(f"{check} clock", says, step)
    else:
        yield ok(f"{check} clock", says)


def judge_broker(facts: "BrokerFacts", name_prefix: str) -> Iterator[Finding]:
    """About the broker."""
    yield ok("broker", facts.product)
    if facts.refused:
        yield fail(
            "broker rights",
            f"with the prefix {name_prefix}, this login may not {'; nor '.join(facts.refused)}",
            "Give it the permissions that docs/settings.md names, or correct TENURE_NAME_PREFIX.",
        )
    else:
        yield ok("broker rights", f"what was tried with names that begin with {name_prefix}.")
    if facts.exchange_exists and facts.dead_letters_exist:
        yield ok("topology", "the events exchange and the dead-letter queue are there")
    else:
        yield warn(
            "topology",
            "the events exchange or the dead-letter queue is missing",
            "Start a coordinator, which declares them; check TENURE_NAME_PREFIX.",
        )


def judge_tokens(entries: "Sequence[TokenEntry]") -> Iterator[Finding]:
    """About the coordinator's list of tokens."""
    roles = {entry.role.value for entry in entries}
    short = sorted(
        entry.name for entry in entries if len(entry.token.get_secret_value()) < SHORT_TOKEN
    )
    missing = [role for role in ("application", "executor") if role not in roles]
    if short:
        yield warn(
            "tokens",
            f"shorter than {SHORT_TOKEN} characters: {', '.join(short)}",
            "Make longer ones, for example with `openssl rand -hex 32`.",
        )
    if missing:
        yield warn(
            "tokens",
            f"nobody has the role {' nor '.join(missing)}",
            "Add entries to TENURE_TOKENS: nothing can be submitted or worked on without.",
        )
    if not short and not missing:
        yield ok("tokens", f"{len(entries)}, for the roles {', '.join(sorted(roles))}")


def judge_disk(path: str, free_bytes: int) -> Finding:
    """About the disk under a folder."""
    says = f"{free_bytes / 2**30:.1f} GiB free under {path}"
    step = "Make room, or move the folder (TENURE_STATE_DIR)."
    if free_bytes < DISK_FAIL_BYTES:
        return fail("disk", says, step)
    if free_bytes < DISK_WARN_BYTES:
        return warn("disk", says, step)
    return ok("disk", says)


def worst(findings: Sequence[Finding]) -> Verdict:
    """The verdict on the whole."""
    order = list(Verdict)
    return max((one.verdict for one in findings), key=order.index, default=Verdict.OK)
