"""What executors say of the progress of their attempts."""

from tenure.contract.codec import check_value, encode_json
from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.contract.ids import IncarnationId
from tenure.contract.progress import (
    CHECKPOINT_LIMIT_BYTES,
    Progress,
    ProgressReplies,
    ProgressReply,
    ProgressReports,
)
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.executors import node_id_of
from tenure.coordinator.api.problems import problem_of
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store.progress import ProgressStore, Said


class ProgressOfAttempts:
    """Handler of ``/v1/nodes/{node_id}/progress``."""

    def __init__(self, store: ProgressStore) -> None:
        self._store = store

    async def record(self, call: Call) -> Answer:
        """A batch; one that cannot be kept refuses itself only."""
        node_id = node_id_of(call)
        request = read_model(await call.body(), ProgressReports)
        codes: dict[int, str | None] = {}
        said: dict[int, Said] = {}
        for number, progress in enumerate(request.progress):
            try:
                said[number] = Said(progress, _checkpoint(progress))
            except TenureError as error:
                codes[number] = problem_of(error).code
        if said:
            kept = await self._store.record(
                call.identity.tenant,
                node_id,
                IncarnationId(request.incarnation),
                list(said.values()),
            )
            if Code.AUTHORITY_UNCONFIRMED in kept:
                raise RequestRefused(
                    Code.AUTHORITY_UNCONFIRMED, "The authority is not confirmed: nothing was kept."
                )
            codes |= dict(zip(said, kept, strict=True))
        return Answer(
            ProgressReplies(
                replies=tuple(
                    ProgressReply(
                        attempt_id=progress.attempt_id,
                        outcome="recorded" if codes[number] is None else "refused",
                        code=codes[number],
                    )
                    for number, progress in enumerate(request.progress)
                )
            ),
            exclude_none=True,
        )


def _checkpoint(progress: Progress) -> str | None:
    """Raises InvalidPayload for what cannot be stored."""
    if progress.message is not None:
        check_value(progress.message, "message")
    if progress.checkpoint is None:
        return None
    return encode_json(progress.checkpoint, limit_bytes=CHECKPOINT_LIMIT_BYTES, what="a checkpoint")
