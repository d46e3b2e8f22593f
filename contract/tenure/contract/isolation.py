"""How a workload is kept apart from the process that runs it, as declared and as enforced."""

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

MAX_TIME_LIMIT_SECONDS: Final = 30 * 86_400
MAX_NOTES: Final = 20

RunsIn: TypeAlias = Literal["executor", "process", "command"]
Network: TypeAlias = Literal["host", "none"]
OnAuthorityLoss: TypeAlias = Literal["cancel", "isolate"]
Note = Annotated[str, Field(max_length=300)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(_Frozen):
    """What a workload in a process of its own may take besides its reservation."""

    open_files: int | None = Field(
        default=None, ge=16, le=1_000_000, description="at once; null: as the executor may"
    )
    file_bytes: int | None = Field(
        default=None, ge=0, le=2**60, description="of the largest file it writes; null: any"
    )
    network: Network = Field(default="host", description="none: it reaches no network")


class Enforcement(_Frozen):
    """What was enforced on the process that made an output (LEASE-11). Null: not limited."""

    runs_in: Literal["process", "command"]
    memory_bytes: int | None = Field(default=None, ge=0, le=2**62)
    cpu_seconds: int | None = Field(
        default=None, ge=0, le=2**40, description="of processor time, all cores together"
    )
    wall_seconds: float | None = Field(default=None, ge=0, le=MAX_TIME_LIMIT_SECONDS)
    open_files: int | None = Field(default=None, ge=0, le=2**40)
    file_bytes: int | None = Field(default=None, ge=0, le=2**62)
    network: Network = "host"
    user: str | None = Field(
        default=None, max_length=100, description="account; null: the executor's own"
    )
    cgroup: bool = Field(
        default=False,
        description="whether a control group held all its processes together; what it could not"
        " limit is in not_enforced",
    )
    program_digest: str | None = Field(
        default=None, pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the program, as verified"
    )
    not_enforced: tuple[Note, ...] = Field(
        default=(), max_length=MAX_NOTES, description="what was declared and could not be, and why"
    )
