"""Every name a setting may have, so that a misspelt one stops the start instead of being ignored.

Processes often share an environment or a file, and none of them knows another's model: this list is
the union. A test compares it with the models.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

PREFIX: Final = "TENURE_"

_LOGS: Final = ("log_format", "log_level")
_SERVERS: Final = ("database_url", "pooled", "broker_url", "broker_ca_file", "name_prefix")

PROCESSES: Final[dict[str, frozenset[str]]] = {
    "coordinator": frozenset(
        (
            *_LOGS, *_SERVERS, "tokens", "listen", "payload_limit_bytes", "batch_limit_bytes",
            "max_waiting_requests", "max_waiting_bytes", "max_waiters", "tail_interval_seconds",
            "request_deadline_seconds", "drain_seconds", "read_connections", "node_connections",
            "commit_connections", "lease_seconds", "clock_tolerance_seconds",
            "node_silence_seconds", "retry_base_seconds", "retry_cap_seconds",
            "node_retired_seconds",
        )
    ),
    "relay": frozenset(
        (
            *_LOGS, *_SERVERS, "relay_listen", "relay_claim_seconds",
            "relay_confirm_timeout_seconds", "relay_drain_seconds", "relay_max_in_flight",
            "relay_window_rows", "relay_window_bytes", "relay_max_body_bytes",
            "relay_backoff_base_seconds", "relay_backoff_cap_seconds",
            "relay_parking", "relay_park_after_seconds", "relay_max_parked_rows",
        )
    ),
    "executor": frozenset(
        (
            *_LOGS, "broker_url", "broker_ca_file", "url", "token", "state_dir", "node", "slots",
            "concurrency", "cpu", "memory", "pool", "location", "zone", "networks", "labels",
            "build_digest", "executor_listen", "drain_seconds", "output_limit_bytes",
            "inbox_retention_seconds", "comparison_seconds", "run_as", "scratch_dir",
            "cgroup", "no_broker",
        )
    ),
    "consumer": frozenset(
        (
            *_LOGS, "broker_url", "broker_ca_file", "url", "token", "consumer_listen",
            "drain_seconds", "consumer_reconcile_seconds", "consumer_evidence_seconds",
        )
    ),
    "migrate": frozenset(
        (
            "database_url", "coordinator_role", "relay_role", "coordinator_password",
            "relay_password",
        )
    ),
}  # fmt: skip
"""Names of each process's settings, as in a configuration file."""

SECRETS: Final = frozenset(
    {"database_url", "broker_url", "tokens", "token", "coordinator_password", "relay_password"}
)
"""Settings that may also come from a file of their own: ``TENURE_TOKEN_FILE``, ``token_file``."""

PATHS: Final = frozenset({"broker_ca_file", "state_dir", "scratch_dir", "cgroup"})

VARIABLES_ONLY: Final = frozenset({"config", "pg_bin", "rabbitmq_server"})
"""What has a variable and no place in a configuration file."""

_FAMILIES: Final = ("TENURE_TEST_", "TENURE_PRIVATE_", "TENURE_COMPOSE_")
"""Variables of the test suite, the mark on private servers, and what fills in compose.yaml."""

_KUBERNETES: Final = re.compile(
    r"TENURE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)"
    r"(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_PORT: Final = re.compile(r"TENURE(_[A-Z0-9_]+)?_PORT")
"""Kubernetes describes a service called ``tenure…`` to every container beside it like this."""


def settings_names() -> frozenset[str]:
    """Names of all settings of all processes."""
    return frozenset().union(*PROCESSES.values())


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def with_files(names: Iterable[str]) -> frozenset[str]:
    """The names, and for each secret among them the name that says which file holds it."""
    names = frozenset(names)
    return names | {f"{name}_file" for name in names & SECRETS}


def is_known_variable(name: str, value: str) -> bool:
    """Whether something of Tenure's may read this variable, or it is nothing of ours."""
    upper = name.upper()
    if not upper.startswith(PREFIX) or upper.startswith(_FAMILIES):
        return True
    if upper.removeprefix(PREFIX).lower() in with_files(settings_names() | VARIABLES_ONLY):
        return True
    if _KUBERNETES_PORT.fullmatch(upper) and re.match(r"(tcp|udp|sctp)://", value):
        return True
    return _KUBERNETES.fullmatch(upper) is not None


def near_variable(name: str) -> str:
    """The known variable most like ``name``; empty when none is."""
    known = [variable(one) for one in with_files(settings_names() | VARIABLES_ONLY)]
    return _nearest(name.upper(), known)


def near_key(name: str, known: Iterable[str]) -> str:
    """The known key most like ``name``; empty when none is."""
    return _nearest(name.lower(), known)


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0.75)), "")
