"""Keeps what attempts say of their progress, each under its own authority."""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.contract.ids import IncarnationId, NodeId, TenantId
from tenure.contract.progress import Progress
from tenure.coordinator.store.reading import Reader

_RECORD = (
    "select code from tenure.record_progress($1, $2, $3::uuid, $4::uuid[], $5::uuid[],"
    " $6::bigint[], $7::float8[], $8::text[], $9::text[]) order by ord"
)


@dataclass(frozen=True, slots=True)
class Said:
    """One attempt's progress; ``checkpoint_text`` is JSON, None where there is none."""

    progress: Progress
    checkpoint_text: str | None


class ProgressStore:
    """Over the pool of the reads. Saying the same again changes nothing."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def record(
        self,
        tenant: TenantId,
        node_id: NodeId,
        incarnation: IncarnationId,
        said: Sequence[Said],
    ) -> tuple[str | None, ...]:
        """For each None where it is durable, else the code of the refusal. Raises Unavailable."""
        rows = await self._reader.fetch(
            _RECORD,
            tenant,
            node_id,
            incarnation,
            [each.progress.task_id for each in said],
            [each.progress.attempt_id for each in said],
            [each.progress.fencing_token for each in said],
            [each.progress.fraction for each in said],
            [each.progress.message for each in said],
            [each.checkpoint_text for each in said],
        )
        return tuple(row["code"] for row in rows)
