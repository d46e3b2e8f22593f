"""What is on the broker beside what must be there, as the coordinator found it."""

from enum import StrEnum

from pydantic import Field

from tenure.contract.reports import Frozen


class BrokerObject(StrEnum):
    """What something on the broker is."""

    EXCHANGE = "exchange"
    QUEUE = "queue"


class Fitness(StrEnum):
    """Whether it is as it must be."""

    OK = "ok"
    MISSING = "missing"
    DIFFERENT = "different"  # it is there under this name, with other properties
    SILENT = "silent"  # it is there and does not answer: a queue without a leader


class TopologyFinding(Frozen):
    """One exchange or queue."""

    kind: BrokerObject
    name: str
    fitness: Fitness
    says: str = Field(description="what the broker said, where it is not ok")
    next_step: str
    messages: int | None = Field(default=None, description="that wait in a queue")
    consumers: int | None = Field(default=None, description="of a queue")


class TopologyReport(Frozen):
    """``GET /v1/topology``. Bindings cannot be seen over AMQP: they are stated anew every few
    seconds, and by ``/apply``."""

    findings: tuple[TopologyFinding, ...]


class TopologyRepair(Frozen):
    """``POST /v1/topology/apply``: declare what is missing and state every binding.

    What is different or silent is only replaced where it is named: a queue goes with what is in it.
    """

    replace: tuple[str, ...] = Field(default=(), max_length=1000)
