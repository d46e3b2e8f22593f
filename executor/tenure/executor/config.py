"""Settings of an executor process: see docs/settings.md."""

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from tenure.contract.ids import NODE_PATTERN, NodeId
from tenure.contract.quantities import (
    MAX_CPU_MILLIS,
    MAX_MEMORY_BYTES,
    cpu_millis,
    memory_bytes,
)
from tenure.contract.reports import MAX_SLOTS, NodeFacts, Resources
from tenure.contract.tasks import DEFAULT_PAYLOAD_LIMIT_BYTES
from tenure.executor.cores import available_cores
from tenure.executor.isolation.place import Account, Place
from tenure.settings.addresses import HttpUrl, ListenAddress, host_and_port
from tenure.settings.process import LogSettings, OptionalBrokerSettings, load
from tenure.settings.secrets import Password

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _checked_by(read: Callable[[str], int]) -> Callable[[str], str]:
    """A validator that keeps a quantity as it was written, once ``read`` can read it."""

    def check(text: str) -> str:
        read(text)
        return text

    return check


def _slots(value: object) -> object:
    return available_cores() if value == "auto" else value


class ExecutorSettings(LogSettings, OptionalBrokerSettings):
    """Everything an executor can be told. Durations in seconds, sizes in bytes."""

    process: ClassVar[str] = "executor"

    url: HttpUrl = Field(default="http://127.0.0.1:8420", description="of the coordinator")
    token: Password = Field(description="bearer token with the role executor")
    state_dir: Path = Field(default=Path(".tenure"), description="folder of the inbox")

    no_broker: bool = Field(
        default=False,
        description="assignments are asked for by long poll, and no broker is needed",
    )

    node: str | None = Field(
        default=None,
        pattern=f"^{NODE_PATTERN.pattern}$",
        description="name of this node, unique within the tenant; none: made up for this start",
    )
    slots: Annotated[int, BeforeValidator(_slots)] = Field(
        default_factory=available_cores,
        ge=1,
        le=MAX_SLOTS,
        description="tasks that run at once; `auto`: one for each core of the machine or container",
    )
    concurrency: str | None = Field(
        default=None,
        description="tasks of a type at once, like `resize=2,ocr=1`; before what handlers declare",
    )
    cpu: Annotated[str, AfterValidator(_checked_by(cpu_millis))] | None = Field(
        default=None, description="cores offered, like `2` or `500m`; none: not limited"
    )
    memory: Annotated[str, AfterValidator(_checked_by(memory_bytes))] | None = Field(
        default=None, description="offered, like `2Gi` or `512M`; none: not limited"
    )
    pool: str | None = Field(default=None, description="of nodes that this one belongs to")
    location: str | None = Field(default=None, description="where data on this node is")
    zone: str | None = Field(default=None, description="what fails together with this node")
    networks: str | None = Field(
        default=None, description="that this node reaches, like `db,internet`; none: not stated"
    )
    labels: str | None = Field(default=None, description="like `gpu=a100,disk=ssd`")
    build_digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="SHA-256 that stands for this build, like an image's; none: of its files",
    )
    executor_listen: ListenAddress | None = Field(
        default=None, description="host:port of health and metrics; none: no listener"
    )
    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = Field(
        default=30.0, description="how long a stop waits for what runs"
    )
    output_limit_bytes: int = Field(
        default=DEFAULT_PAYLOAD_LIMIT_BYTES, ge=1024, description="of a task's output as JSON"
    )
    inbox_retention_seconds: float = Field(
        default=7 * 86_400,
        gt=0,
        le=366 * 86_400,
        description="how long ended rows stay: longer than any way a message may come back",
    )
    run_as: str | None = Field(
        default=None,
        description="account of handlers in processes of their own; needs root; none: as the node",
    )
    scratch_dir: Path | None = Field(
        default=None, description="where such processes get a folder each; none: the system's"
    )
    cgroup: Path | None = Field(
        default=None, description="delegated folder of control groups (v2); none: limits by process"
    )
    comparison_seconds: Seconds = Field(
        default=10.0, description="how often the coordinator is asked what this node should have"
    )

    @property
    def listen_address(self) -> tuple[str, int] | None:
        """Host and port of health and metrics; port 0 takes a free one; None: no listener."""
        return host_and_port(self.executor_listen) if self.executor_listen else None

    @property
    def resources(self) -> Resources | None:
        """What the node offers besides its slots; None: not limited."""
        if self.cpu is None and self.memory is None:
            return None
        return Resources(
            cpu_millis=MAX_CPU_MILLIS if self.cpu is None else cpu_millis(self.cpu),
            memory_bytes=MAX_MEMORY_BYTES if self.memory is None else memory_bytes(self.memory),
        )

    @property
    def facts(self) -> NodeFacts:
        """What the node states about itself."""
        return NodeFacts(
            pool=self.pool,
            location=self.location,
            zone=self.zone,
            networks=None if self.networks is None else tuple(_listed(self.networks)),
            labels=dict(_pair(one) for one in _listed(self.labels or "")),
        )

    @property
    def concurrency_by_type(self) -> dict[str, int]:
        """What ``concurrency`` says."""
        found = {}
        for one in _listed(self.concurrency or ""):
            name, _, number = one.partition("=")
            if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= MAX_SLOTS:
                raise ValueError(
                    f"concurrency: {one!r} is not written like type=2, with 1 … {MAX_SLOTS}"
                )
            found[name] = int(number)
        return found

    @model_validator(mode="after")
    def _check_concurrency(self) -> Self:
        _ = self.concurrency_by_type
        return self

    @model_validator(mode="after")
    def _check_broker(self) -> Self:
        if self.no_broker is (self.broker_url is not None):
            raise ValueError(
                "TENURE_BROKER_URL is set, and TENURE_NO_BROKER too: keep one"
                if self.no_broker
                else "TENURE_BROKER_URL is missing; or set TENURE_NO_BROKER=true to work without"
            )
        return self

    @model_validator(mode="after")
    def _check_facts(self) -> Self:
        try:
            _ = self.facts
        except ValidationError as error:
            where = ", ".join(sorted({str(fault["loc"][0]) for fault in error.errors()}))
            raise ValueError(
                f"{where}: a name is of letters, digits, '.', '_', '/' and '-'"
            ) from error
        return self

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.run_as is not None:
            if os.geteuid() != 0:
                raise ValueError("run_as: only root can run processes as somebody else")
            try:
                Account.named(self.run_as)
            except KeyError as error:
                raise ValueError(f"run_as: there is no account {self.run_as!r}") from error
        for name in ("scratch_dir", "cgroup"):
            folder: Path | None = getattr(self, name)
            if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
                raise ValueError(f"{name}: {folder} is no folder that can be written")
        return self

    @property
    def place(self) -> Place:
        """Where handlers in processes of their own run, and as whom."""
        account = None if self.run_as is None else Account.named(self.run_as)
        return Place(account=account, scratch=self.scratch_dir, cgroup=self.cgroup)

    def node_id(self, executor_name: str, incarnation: str) -> NodeId:
        """The node's name: as set, else host, program and a part of the incarnation, so that two
        processes of one machine never take each other's name."""
        if self.node is not None:
            return NodeId(self.node)
        made = f"{socket.gethostname()}.{executor_name}"
        made = re.sub(r"[^A-Za-z0-9._-]", "-", made).lstrip("._-")[:100] or "node"
        return NodeId(f"{made}.{incarnation[:8]}")


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"labels: {text!r} is not written like name=value")
    return name, value


def load_settings(**values: Any) -> ExecutorSettings:
    """From ``values``, the environment and the files these name. Raises SettingsInvalid."""
    return load(ExecutorSettings, values)
