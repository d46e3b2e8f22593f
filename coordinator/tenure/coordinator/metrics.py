"""What the coordinator tells Prometheus. Labels are bounded: routes, statuses, codes, lanes.

Counters and histograms are counted where things happen. Gauges of the state come from the database
at a scrape, and are kept for a few seconds, so that many scrapers cost one query.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from tenure.contract.codes import HELD_REASONS, Reason
from tenure.contract.states import (
    TERMINAL_ATTEMPT_STATES,
    TERMINAL_TASK_STATES,
    AttemptState,
    EntityType,
    LimitScope,
    NodeState,
    PauseScope,
    ReplayState,
    RetentionKind,
)
from tenure.coordinator.core.decisions import Happened
from tenure.coordinator.errors import Unavailable
from tenure.coordinator.store.figures import Figures
from tenure.coordinator.store.postgres import PostgresError

log = structlog.get_logger()

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
KEPT_SECONDS: Final = 5.0
TYPES_SHOWN: Final = 50
OTHER_TYPES: Final = "other"
_REASONS: Final = frozenset(reason.value for reason in Reason)
_OPEN_ATTEMPTS: Final = (AttemptState.SUBMITTED, AttemptState.ACCEPTED, AttemptState.RUNNING)
MAX_LIMITS_TOLD: Final = 100
_LIVE_NODES: Final = (NodeState.ACTIVE, NodeState.DRAINING, NodeState.QUARANTINED)


class Metrics:
    """All metrics of one coordinator, with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sent_again_total = 0
        self._requests = self._counter(
            "tenure_http_requests", "Requests answered.", ("route", "method", "status")
        )
        self._request_seconds = Histogram(
            "tenure_http_request_seconds",
            "Seconds until a request was answered, waiting for results included.",
            ("route", "method"),
            buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self._refusals = self._counter(
            "tenure_http_refusals", "Requests refused, by the code of the answer.", ("code",)
        )
        self._commits = self._counter("tenure_commits", "Batches committed.", ("lane",))
        self._batch_items = Histogram(
            "tenure_commit_items",
            "Commands in one committed batch.",
            ("lane",),
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self._applied = self._counter(
            "tenure_commands_applied", "Commands whose change was committed.", ("lane",)
        )
        self._refused = self._counter(
            "tenure_commands_refused", "Commands refused, by code.", ("lane", "code")
        )
        self._evidence = self._counter(
            "tenure_receipts_not_active",
            "Deliveries kept as evidence, by why they are not active.",
            ("code",),
        )
        self._stalls = self._counter(
            "tenure_lane_stalls", "Batches that failed and are tried again.", ("lane", "error")
        )
        self._tail_ticks = self._counter(
            "tenure_tail_ticks", "Looks at the log for waiting clients.", ()
        )
        self._dead_letters = self._counter(
            "tenure_dead_letters", "Messages that came back undelivered, by reason.", ("reason",)
        )
        self._sent_again = self._counter(
            "tenure_assignments_sent_again", "Assignments that nobody had accepted in time.", ()
        )
        self._removed = self._counter(
            "tenure_retention_removed",
            "Rows (of the log partitions) removed by this replica as too old.",
            ("kind",),
        )
        self._queued = self._gauge("tenure_lane_queued", "Commands that wait.", ("lane",))
        self._waiting = self._gauge(
            "tenure_http_waiting_requests", "Requests that wait in the lanes.", ("gate",)
        )
        self._waiters = self._gauge("tenure_waiters", "Requests that wait for a result.", ())
        self._last_run = self._gauge(
            "tenure_loop_last_run_seconds", "Seconds since a loop last ran through.", ("loop",)
        )
        self._epoch = self._gauge(
            "tenure_authority_epoch", "The authority's epoch; 0 while nothing is granted.", ()
        )
        self._history_lost = self._gauge(
            "tenure_authority_history_lost", "1 while history is proven to be lost.", ()
        )
        self._clock_steps = self._gauge(
            "tenure_clock_steps",
            "How often the database's clock was seen to be set, since this replica started.",
            ("direction",),
        )
        self._policy_version = self._gauge(
            "tenure_policy_version", "The lease policy that this replica decides by.", ()
        )
        self._broker = self._gauge("tenure_broker_connected", "1 while the broker can be used.", ())
        self._silent_queues = self._gauge(
            "tenure_broker_silent_queues",
            "Queues of subscriptions, and the dead-letter queue, that do not answer.",
            (),
        )
        self._tasks = self._gauge(
            "tenure_tasks", "Tasks by what they wait for (waiting ones up to 100,000).", ("phase",)
        )
        self._held = self._gauge(
            "tenure_tasks_held", "Tasks that wait for a person, by reason.", ("reason",)
        )
        self._by_type = self._gauge(
            "tenure_tasks_by_type",
            f"Tasks that go on, of the {TYPES_SHOWN} types with the most; the rest is `other`.",
            ("type", "phase"),
        )
        self._attempts_ended = self._counter(
            "tenure_attempts_ended",
            "Attempts that ended by commits of this replica; a handler's own reason is `handler`.",
            ("state", "reason"),
        )
        self._tasks_ended = self._counter(
            "tenure_tasks_ended", "Tasks that ended by commits of this replica.", ("state",)
        )
        self._slots = self._gauge(
            "tenure_slots", "Slots that active nodes offer, and slots in use.", ("what",)
        )
        self._standby = self._gauge(
            "tenure_commits_waiting_for_standby",
            "Commits that wait for the answer of a synchronous standby.",
            (),
        )
        self._standby_silent = self._gauge(
            "tenure_standby_not_answering",
            "1 while this replica commits nothing since a synchronous standby does not answer.",
            (),
        )
        self._intake = self._gauge(
            "tenure_intake_rows",
            "Rows of the intake that wait or were refused (up to 100,000).",
            ("state",),
        )
        self._oldest_intake = self._gauge(
            "tenure_intake_oldest_seconds", "Age of the oldest row that waits to be taken in.", ()
        )
        self._oldest_waiting = self._gauge(
            "tenure_oldest_waiting_seconds", "Age of the oldest task that waits for a node.", ()
        )
        self._nodes = self._gauge("tenure_nodes", "Live incarnations of nodes.", ("state",))
        self._reviews = self._gauge(
            "tenure_nodes_under_review", "Incarnations whose heartbeats are missing.", ()
        )
        self._pauses = self._gauge("tenure_pauses", "Pauses in force.", ("scope",))
        self._letters = self._gauge(
            "tenure_dead_letters_waiting", "Messages that came back and wait for somebody.", ()
        )
        self._log_bytes = self._gauge(
            "tenure_log_bytes", "Size of the log with its indexes on disk.", ()
        )
        self._misplaced = self._gauge(
            "tenure_log_rows_beyond_partitions",
            "Rows of the log that no partition was made for in time (up to 10,000).",
            (),
        )
        self._limits = self._gauge("tenure_limits", "Limits that are stated.", ("scope",))
        self._limit_running = self._gauge(
            "tenure_limit_running",
            "Tasks that nodes have under the limits of tenants and types (100 of them).",
            ("tenant", "type"),
        )
        self._limit_max = self._gauge(
            "tenure_limit_max_running", "What these limits allow.", ("tenant", "type")
        )
        self._overdue = self._gauge(
            "tenure_retention_overdue_seconds",
            "How long ago the oldest row that is still there should have been removed.",
            ("kind",),
        )
        self._replays = self._gauge(
            "tenure_replays", "Replays that have not ended, by state.", ("state",)
        )
        self._lag_rows = self._gauge(
            "tenure_outbox_lag_rows", "Rows of the log not published yet (10,000 a shard).", ()
        )
        self._lag_seconds = self._gauge(
            "tenure_outbox_oldest_seconds", "Age of the oldest row not published yet.", ()
        )
        self._parked = self._gauge(
            "tenure_outbox_parked", "Messages that could not be published and are set aside.", ()
        )

    # What the HTTP side tells

    def requested(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route, method).observe(seconds)

    def request_refused(self, code: str) -> None:
        """A request was refused."""
        self._refusals.labels(code).inc()

    def tail_ticked(self) -> None:
        """The log was asked for waiting clients."""
        self._tail_ticks.inc()

    # What the lanes tell

    def batch_committed(self, lane: str, items: int, applied: int) -> None:
        """A commit came back."""
        self._commits.labels(lane).inc()
        self._batch_items.labels(lane).observe(items)
        self._applied.labels(lane).inc(applied)

    def refused(self, lane: str, code: str) -> None:
        """A command was refused."""
        self._refused.labels(lane, code).inc()

    def evidence_kept(self, code: str) -> None:
        """A delivery was recorded that is not active."""
        self._evidence.labels(code).inc()

    def stalled(self, lane: str, error: str) -> None:
        """A batch failed and will be tried again."""
        self._stalls.labels(lane, error).inc()

    def happened(self, events: Sequence[Happened]) -> None:
        """A commit of this replica changed states."""
        for event in events:
            if event.entity_type is EntityType.ATTEMPT:
                if event.next_state in TERMINAL_ATTEMPT_STATES:
                    self._attempts_ended.labels(event.next_state, _bounded(event.reason)).inc()
            elif event.entity_type is EntityType.TASK and event.next_state in TERMINAL_TASK_STATES:
                self._tasks_ended.labels(event.next_state).inc()

    # What the loops and the broker tell

    def dead_letter(self, reason: str) -> None:
        """A message came back undelivered."""
        self._dead_letters.labels(reason).inc()

    def set_sent_again(self, total: int) -> None:
        """Assignments sent again since the start."""
        self._sent_again.inc(total - self._sent_again_total)
        self._sent_again_total = total

    def removed(self, kind: str, rows: int) -> None:
        """Retention removed a batch."""
        self._removed.labels(kind).inc(rows)

    # Gauges, set at a scrape

    def set_queued(self, lane: str, commands: int) -> None:
        """Commands that wait in a lane."""
        self._queued.labels(lane).set(commands)

    def set_waiting_requests(self, gate: str, requests: int) -> None:
        """Requests that wait in the lanes."""
        self._waiting.labels(gate).set(requests)

    def set_waiters(self, number: int) -> None:
        """Requests that wait for a result."""
        self._waiters.set(number)

    def set_last_run(self, loop: str, seconds_ago: float) -> None:
        """How long ago a loop ran through."""
        self._last_run.labels(loop).set(seconds_ago)

    def set_standing(self, epoch: int | None, *, lost: bool) -> None:
        """Whether anything is granted, and under which epoch."""
        self._epoch.set(epoch or 0)
        self._history_lost.set(lost)

    def set_standby_silent(self, silent: bool) -> None:
        """Whether commits would wait for a standby that does not answer."""
        self._standby_silent.set(silent)

    def set_clock_steps(self, *, backward: int, forward: int) -> None:
        """How often the database's clock was set."""
        self._clock_steps.labels("backward").set(backward)
        self._clock_steps.labels("forward").set(forward)

    def set_policy_version(self, version: int) -> None:
        """The policy in force."""
        self._policy_version.set(version)

    def set_broker(self, *, connected: bool, silent_queues: int) -> None:
        """Whether the broker can be used, and how many queues do not answer."""
        self._broker.set(connected)
        self._silent_queues.set(silent_queues)

    def set_figures(self, figures: Figures) -> None:
        """Gauges of the state."""
        self._tasks.labels("waiting").set(figures.waiting_tasks)
        self._tasks.labels("not_before").set(figures.not_before_tasks)
        self._tasks.labels("held").set(sum(figures.held_tasks.values()))
        for reason in HELD_REASONS:
            self._held.labels(reason.value).set(figures.held_tasks.get(reason.value, 0))
        for state in _OPEN_ATTEMPTS:
            self._tasks.labels(state.value).set(figures.open_attempts.get(state.value, 0))
        self._by_type.clear()
        for (type_name, phase), number in _largest(figures.tasks_by_type).items():
            self._by_type.labels(type_name, phase).set(number)
        self._slots.labels("offered").set(figures.slots)
        self._slots.labels("used").set(figures.slots_used)
        self._standby.set(figures.commits_waiting_for_standby)
        self._oldest_waiting.set(figures.oldest_waiting_seconds)
        for node_state in _LIVE_NODES:
            self._nodes.labels(node_state.value).set(figures.nodes.get(node_state.value, 0))
        self._reviews.set(figures.nodes_under_review)
        for scope in PauseScope:
            self._pauses.labels(scope.value).set(figures.pauses.get(scope.value, 0))
        for limited in LimitScope:
            self._limits.labels(limited.value).set(figures.limits_by_scope.get(limited.value, 0))
        self._limit_running.clear()
        self._limit_max.clear()
        for tenant, type_name, most, running in figures.limits[:MAX_LIMITS_TOLD]:
            self._limit_running.labels(tenant, type_name).set(running)
            self._limit_max.labels(tenant, type_name).set(most)
        for going in (ReplayState.RUNNING, ReplayState.PAUSED):
            self._replays.labels(going.value).set(figures.replays.get(going.value, 0))
        self._intake.labels("waiting").set(figures.intake_waiting)
        self._intake.labels("refused").set(figures.intake_refused)
        self._oldest_intake.set(figures.oldest_intake_seconds)
        for kind in RetentionKind:
            self._overdue.labels(kind.value).set(figures.retention_overdue.get(kind.value, 0))
        self._letters.set(figures.dead_letters)
        self._log_bytes.set(figures.log_bytes)
        self._misplaced.set(figures.log_rows_beyond_partitions)
        self._lag_rows.set(figures.lag_rows)
        self._lag_seconds.set(figures.oldest_unpublished_seconds)
        self._parked.set(figures.parked)

    def text(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, labels: Sequence[str]) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: Sequence[str]) -> Gauge:
        return Gauge(name, help_text, labels, registry=self.registry)


def _bounded(reason: str | None) -> str:
    """Handlers write reasons of their own: as a label each would be a series."""
    if reason is None:
        return ""
    return reason if reason in _REASONS else "handler"


def _largest(tasks_by_type: Sequence[tuple[str, str, int]]) -> dict[tuple[str, str], int]:
    """Numbers by type and phase; the largest come first, and what is beyond the bound is one."""
    shown = set(list(dict.fromkeys(name for name, _, _ in tasks_by_type))[:TYPES_SHOWN])
    numbers: dict[tuple[str, str], int] = {}
    for name, phase, number in tasks_by_type:
        key = (name if name in shown else OTHER_TYPES, phase)
        numbers[key] = numbers.get(key, 0) + number
    return numbers


class Scrape:
    """Gauges of the state, read at most once in a few seconds; absent while the database is."""

    def __init__(
        self,
        metrics: Metrics,
        figures: Callable[[], Awaitable[Figures]],
        *,
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self._metrics = metrics
        self._figures = figures
        self._kept_seconds = kept_seconds
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the gauges when they are old. A database that is away leaves them as they were."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if self._read_at is not None and loop.time() < self._read_at + self._kept_seconds:
                return
            self._read_at = loop.time()
            try:
                self._metrics.set_figures(await self._figures())
            except (Unavailable, PostgresError) as error:
                log.warning("gauges of the state stay as they were", error=str(error))
