"""Identities and the fencing token.

Standard library only (no ``uuid``), so that the pure cores may import it: ids are strings in cores,
minted outside and passed in.
"""

import re
from typing import Final, NewType

TaskId = NewType("TaskId", str)
AttemptId = NewType("AttemptId", str)
LeaseId = NewType("LeaseId", str)
EventId = NewType("EventId", str)
ReportId = NewType("ReportId", str)
CommandId = NewType("CommandId", str)
IncarnationId = NewType("IncarnationId", str)
"""One start of one executor process: random per start, so a restart under the same node name never
keeps its predecessor's work alive."""
NodeId = NewType("NodeId", str)
"""The node's name, chosen by whoever runs it; unique within a tenant."""
TenantId = NewType("TenantId", str)
FencingToken = NewType("FencingToken", int)

DEFAULT_TENANT: Final = TenantId("default")

GENERATION_LIMIT: Final = 2**32
EPOCH_LIMIT: Final = 2**21

TENANT_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
NODE_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
TRACEPARENT_PATTERN: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
"""W3C Trace Context: version, trace, span, flags."""
TASK_TYPE_PATTERN: Final = re.compile(r"[a-z][a-z0-9_.-]{0,127}")


def fencing_token(epoch: int, generation: int) -> FencingToken:
    """The one number that users see: ``epoch * 2**32 + generation`` (LEASE-04).

    ``epoch`` stays below 2**21, so a token is below 2**53 and exact in any JSON reader.

    Raises ValueError when either part is out of range.
    """
    if not 1 <= epoch < EPOCH_LIMIT:
        raise ValueError(f"epoch {epoch} is not in 1 … {EPOCH_LIMIT - 1}")
    if not 1 <= generation < GENERATION_LIMIT:
        raise ValueError(f"generation {generation} is not in 1 … {GENERATION_LIMIT - 1}")
    return FencingToken(epoch * GENERATION_LIMIT + generation)


def epoch_of(token: FencingToken) -> int:
    """The authority's epoch that a token was granted under."""
    return token // GENERATION_LIMIT


def generation_of(token: FencingToken) -> int:
    """How many attempts the task had had when the token was granted."""
    return token % GENERATION_LIMIT
