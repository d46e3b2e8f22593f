"""What operators say about single tasks, and the evidence that they say it by."""

from tenure.contract.codec import check_value
from tenure.contract.scheduling import ProfileMove
from tenure.contract.tasks import ErasureRequest, HoldRequest, ReceiptList
from tenure.coordinator.api.applications import absent, refuse_body, task_id_of
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.api.words import Words
from tenure.coordinator.store.reads import Reads


class Interventions:
    """Handlers of ``/v1/tasks/{task_id}`` for operators."""

    def __init__(self, words: Words, reads: Reads) -> None:
        self._words = words
        self._reads = reads

    async def hold(self, call: Call) -> Answer:
        """Begin nothing of a task until it is released."""
        request = read_model(await call.body(), HoldRequest)
        check_value(request.reason, "reason")
        return Answer(await self._words.hold(call.identity, task_id_of(call), request.reason))

    async def release(self, call: Call) -> Answer:
        """Let a held task wait for a node again."""
        task_id = task_id_of(call)
        await refuse_body(call)
        return Answer(await self._words.release(call.identity, task_id))

    async def retry(self, call: Call) -> Answer:
        """The next attempt now; for a task that has ended without a delivery a new task."""
        task_id = task_id_of(call)
        await refuse_body(call)
        return Answer(await self._words.retry(call.identity, task_id))

    async def erase(self, call: Call) -> Answer:
        """Erase what an ended task was about. Asking again gives the first answer."""
        request = read_model(await call.body(), ErasureRequest)
        check_value(request.reason, "reason")
        return Answer(await self._words.erase(call.identity, task_id_of(call), request.reason))

    async def receipts(self, call: Call) -> Answer:
        """Every delivery submission of a task with its content, the late ones too (LATE-02)."""
        task_id = task_id_of(call)
        receipts = await self._reads.receipts(call.identity.tenant, task_id)
        if receipts is None:
            raise await absent(self._reads, call.identity.tenant, task_id)
        return Answer(ReceiptList(receipts=receipts))

    async def move_profile(self, call: Call) -> Answer:
        """Freeze another profile in a waiting task: without a digest the current one."""
        request = read_model(await call.body(), ProfileMove)
        task_id = task_id_of(call)
        return Answer(await self._words.move_profile(call.identity, task_id, request.digest))
