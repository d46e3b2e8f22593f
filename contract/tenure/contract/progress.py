"""How far an attempt has come, and what the next one may go on from. HTTP under ``/v1/nodes``.

Neither is state: no event tells of them, nothing is decided by them, and the newest is all that is
kept. They are tied to the fencing token all the same: only the current attempt writes them, and
only under a live lease.
"""

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from tenure.contract.reports import Frozen, Token, Uuid

MAX_PROGRESS_PER_REQUEST: Final = 256
MAX_PROGRESS_CHARACTERS: Final = 500
CHECKPOINT_LIMIT_BYTES: Final = 64 * 1024
"""Of a checkpoint as JSON; what is larger is kept elsewhere, and named here."""

Fraction = Annotated[float, Field(ge=0, le=1)]


class Progress(Frozen):
    """One attempt's. What is left out stays as it is."""

    task_id: Uuid
    attempt_id: Uuid
    fencing_token: Token
    fraction: Fraction | None = Field(default=None, description="done, of 1; null: not known")
    message: str | None = Field(default=None, max_length=MAX_PROGRESS_CHARACTERS)
    checkpoint: Any = Field(default=None, description="any JSON but null")


class ProgressReports(Frozen):
    """``POST /v1/nodes/{node_id}/progress``: of all slots of a node together."""

    incarnation: Uuid
    progress: tuple[Progress, ...] = Field(min_length=1, max_length=MAX_PROGRESS_PER_REQUEST)


class ProgressReply(Frozen):
    """``recorded``: it is durable. ``refused``: nothing was kept, ``code`` says why."""

    attempt_id: str
    outcome: Literal["recorded", "refused"]
    code: str | None = None


class ProgressReplies(Frozen):
    """Replies in the order of the request."""

    replies: tuple[ProgressReply, ...]


class ProgressView(Frozen):
    """What is known of a task's progress, of whichever attempt said it last."""

    fencing_token: int = Field(description="of the attempt that said it")
    fraction: float | None
    message: str | None
    at: datetime
    checkpoint: Any = Field(default=None, description="what the next attempt may go on from")
    checkpoint_fencing_token: int | None = Field(
        default=None, description="of the attempt that made the checkpoint"
    )
    checkpoint_at: datetime | None = None
