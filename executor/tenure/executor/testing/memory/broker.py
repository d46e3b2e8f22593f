"""The relay and the broker in memory: a cursor over the log, and a queue for each node."""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from tenure.contract.ids import IncarnationId, TaskId
from tenure.executor.testing.memory.authority import LogRow


class MemoryBroker:
    """Queues of nodes. ``arrived``: how often each event was confirmed."""

    def __init__(self) -> None:
        self.arrived: Counter[str] = Counter()
        self._queues: defaultdict[IncarnationId, deque[LogRow]] = defaultdict(deque)
        self._kept_back: dict[TaskId, list[LogRow]] = {}

    def publish(self, row: LogRow) -> None:
        """Take a message in, and confirm it."""
        event = row.event
        assert event.to_node is not None
        self.arrived[event.event_id] += 1
        kept_back = None if event.task_id is None else self._kept_back.get(event.task_id)
        if kept_back is None:
            self._enqueue(row)
        else:
            kept_back.append(row)

    def take(self, incarnation: IncarnationId) -> list[bytes]:
        """What waits for a node, in order."""
        queue = self._queues[incarnation]
        bodies = [row.body for row in queue]
        queue.clear()
        return bodies

    def keep_back(self, task_id: TaskId) -> None:
        """Deliver nothing about the task for now."""
        self._kept_back[task_id] = []

    def kept_back(self, task_id: TaskId) -> Sequence[LogRow]:
        """What is not delivered for now."""
        return self._kept_back[task_id]

    def deliver_newest(self, task_id: TaskId) -> None:
        """Deliver of what is kept back what came last."""
        self._enqueue(self._kept_back[task_id].pop())

    def deliver_rest(self, task_id: TaskId) -> None:
        """Deliver all that is kept back."""
        for row in self._kept_back.pop(task_id):
            self._enqueue(row)

    def _enqueue(self, row: LogRow) -> None:
        assert row.event.to_node is not None
        self._queues[row.event.to_node].append(row)


class MemoryRelay:
    """Publishes the log from its cursor on. One that was killed is followed by another, which
    begins where the cursor stands."""

    def __init__(self, log: Sequence[LogRow], broker: MemoryBroker) -> None:
        self.deaths = 0
        self._log = log
        self._broker = broker
        self._cursor = 0
        self._dies_with: TaskId | None = None

    def die_after_confirm(self, task_id: TaskId) -> None:
        """Be killed once the broker has confirmed a message about the task, before the cursor is
        moved."""
        self._dies_with = task_id

    def publish(self) -> bool:
        """Publish what is new. Whether anything was."""
        rows = [row for row in self._log[self._cursor :] if row.event.to_node is not None]
        end = len(self._log)
        for row in rows:
            self._broker.publish(row)
        if any(row.event.task_id == self._dies_with for row in rows if self._dies_with):
            self._dies_with = None
            self.deaths += 1
        else:
            self._cursor = end
        return bool(rows)
