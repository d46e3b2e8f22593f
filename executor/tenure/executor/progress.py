"""How far the attempts of this node are, in one stream for all of them.

What is only said is coalesced: the newest goes with the next request. A checkpoint is waited for,
and whoever saved it knows that the next attempt will find it. Without an answer it is said again;
saying the same again changes nothing.
"""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import structlog
from pydantic import BaseModel
from pydantic_core import from_json

from tenure.contract.codec import encode_json, json_value
from tenure.contract.ids import AttemptId, IncarnationId, NodeId
from tenure.contract.progress import (
    CHECKPOINT_LIMIT_BYTES,
    MAX_PROGRESS_CHARACTERS,
    MAX_PROGRESS_PER_REQUEST,
    Progress,
    ProgressReplies,
    ProgressReply,
    ProgressReports,
)
from tenure.executor.errors import (
    AuthorityOver,
    CheckpointRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    NodeGone,
)
from tenure.executor.lease import Lease
from tenure.executor.losses import REFUSALS
from tenure.executor.patience import Condition, jitter_seconds
from tenure.executor.user_text import storable

MAX_REQUEST_BYTES: Final = 1024 * 1024
"""Of the checkpoints in one request, about."""
PAUSE_SECONDS: Final = 1.0
"""Between two requests that save nothing."""

log = structlog.get_logger("tenure.executor")


class Telling(Protocol):
    """The coordinator, as this stream uses it."""

    async def tell_progress(self, node_id: NodeId, reports: ProgressReports) -> ProgressReplies:
        """One batch. Raises CoordinatorError."""


Saved: TypeAlias = asyncio.Future[ProgressReply]


@dataclass(slots=True, eq=False)
class _Newest:
    """What one attempt has said and nobody has answered yet."""

    lease: Lease
    fraction: float | None = None
    message: str | None = None
    checkpoint: Any = None
    checkpoint_bytes: int = 0
    saved: Saved | None = None


class ProgressStream:
    """``note`` and ``save``; ``run`` does the sending. Made on the event loop."""

    def __init__(
        self,
        coordinator: Telling,
        *,
        node_id: NodeId,
        incarnation: IncarnationId,
        condition: Condition,
    ) -> None:
        self._coordinator = coordinator
        self._node_id = node_id
        self._incarnation = incarnation
        self._condition = condition
        self._newest: dict[AttemptId, _Newest] = {}
        self._noting = threading.Lock()
        self._noted: dict[AttemptId, _Newest] = {}  # by any thread, and not seen by the loop yet
        self._loop = asyncio.get_running_loop()
        self._said = asyncio.Event()
        self._urgent = asyncio.Event()

    def note(self, lease: Lease, fraction: float | None, message: str | None) -> None:
        """Say how far an attempt is, some time soon. From any thread, as often as it likes: the
        loop is called once for all that is said before it looks.

        Raises TypeError or ValueError for a fraction that is no number.
        """
        part, words = as_said(fraction, message)
        with self._noting:
            called = bool(self._noted)
            _say(self._noted.setdefault(lease.attempt_id, _Newest(lease)), part, words)
        if not called:
            with suppress(RuntimeError):  # the loop has ended, and with it whom to tell
                self._loop.call_soon_threadsafe(self._take_in)

    def save_from_thread(self, lease: Lease, data: Any) -> None:
        """``save`` for a thread, which waits."""
        asyncio.run_coroutine_threadsafe(self.save(lease, data), self._loop).result()

    def _take_in(self) -> None:
        with self._noting:
            noted, self._noted = self._noted, {}
        for said in noted.values():
            newest = self._newest.setdefault(said.lease.attempt_id, said)
            _say(newest, said.fraction, said.message)
        self._said.set()

    async def save(self, lease: Lease, data: Any) -> None:
        """Save what the next attempt may go on from, and wait until that is durable.

        Raises AuthorityOver when the attempt may act no longer, CheckpointRefused for what cannot
        be stored, InvalidPayload for what is no JSON or too large, NodeGone.
        """
        value = checkpoint_value(data)
        if value is None:
            raise CheckpointRefused("null is no checkpoint: it would not be told from none.")
        text = encode_json(value, limit_bytes=CHECKPOINT_LIMIT_BYTES, what="the checkpoint")
        newest = self._newest.setdefault(lease.attempt_id, _Newest(lease))
        earlier = newest.saved
        newest.checkpoint, newest.checkpoint_bytes = value, len(text.encode())
        newest.saved = saved = asyncio.get_running_loop().create_future()
        if earlier is not None:  # replaced before it was sent: the newer stands for both
            saved.add_done_callback(partial(_settle_as, earlier))
        self._said.set()
        self._urgent.set()
        reply = await asyncio.shield(saved)
        if reply.outcome == "recorded":
            return
        if reply.code in REFUSALS:
            raise AuthorityOver(
                f"attempt {lease.attempt_id} of task {lease.task_id} may save nothing any more"
                f" ({reply.code})."
            )
        raise CheckpointRefused(f"the coordinator does not keep the checkpoint ({reply.code}).")

    async def run(self) -> None:
        """Until cancelled, or this incarnation is gone."""
        failures = 0
        while True:
            await self._said.wait()
            batch = self._next_batch()
            if not self._newest:
                self._said.clear()
                self._urgent.clear()
            try:
                replies = await self._coordinator.tell_progress(self._node_id, self._request(batch))
            except NodeGone as gone:
                _fail(batch, gone)
                return
            except CoordinatorUnavailable as error:
                self._condition.trouble(error)
                failures += 1
                self._again(batch)
                await asyncio.sleep(jitter_seconds(failures))
                continue
            except CoordinatorError as error:
                log.warning("progress was refused", code=error.code, error=str(error))
                _fail(batch, error)
            else:
                for newest, reply in zip(batch, replies.replies, strict=True):
                    if newest.saved is not None and not newest.saved.done():
                        newest.saved.set_result(reply)
            failures = 0
            try:
                async with asyncio.timeout(PAUSE_SECONDS):
                    await self._urgent.wait()
            except TimeoutError:
                pass  # whatever was said meanwhile goes together

    def _next_batch(self) -> list[_Newest]:
        """What goes with the next request: as many as it may hold, and not too much."""
        batch: list[_Newest] = []
        size = 0
        for newest in list(self._newest.values())[:MAX_PROGRESS_PER_REQUEST]:
            size += newest.checkpoint_bytes
            if batch and size > MAX_REQUEST_BYTES:
                break
            batch.append(self._newest.pop(newest.lease.attempt_id))
        return batch

    def _request(self, batch: Sequence[_Newest]) -> ProgressReports:
        return ProgressReports(
            incarnation=self._incarnation,
            progress=tuple(
                Progress(
                    task_id=newest.lease.task_id,
                    attempt_id=newest.lease.attempt_id,
                    fencing_token=newest.lease.fencing_token,
                    fraction=newest.fraction,
                    message=newest.message,
                    checkpoint=newest.checkpoint,
                )
                for newest in batch
            ),
        )

    def _again(self, batch: Sequence[_Newest]) -> None:
        """Nothing is known of what was sent: it goes again, under what was said since."""
        for sent in batch:
            if not sent.lease.may_act() and sent.saved is None:
                continue
            newer = self._newest.setdefault(sent.lease.attempt_id, sent)
            if newer is sent:
                continue
            newer.fraction = sent.fraction if newer.fraction is None else newer.fraction
            newer.message = sent.message if newer.message is None else newer.message
            if newer.saved is None:
                newer.checkpoint, newer.saved = sent.checkpoint, sent.saved
                newer.checkpoint_bytes = sent.checkpoint_bytes
            elif sent.saved is not None:
                newer.saved.add_done_callback(partial(_settle_as, sent.saved))
        if self._newest:  # what has no authority any more is told to nobody
            self._said.set()
            self._urgent.set()


def as_said(fraction: float | None, message: str | None) -> tuple[float | None, str | None]:
    """Progress as it can be told: a fraction of 1, and text that can be stored.

    Raises TypeError or ValueError for a fraction that is no number.
    """
    return (
        None if fraction is None else min(1.0, max(0.0, float(fraction))),
        None if message is None else storable(message, MAX_PROGRESS_CHARACTERS),
    )


def _say(newest: _Newest, fraction: float | None, message: str | None) -> None:
    newest.fraction = newest.fraction if fraction is None else fraction
    newest.message = newest.message if message is None else message


def checkpoint_value(data: Any) -> Any:
    """A checkpoint as JSON. Raises InvalidPayload for what is none."""
    if isinstance(data, BaseModel):
        return json_value(data, "the checkpoint")
    return from_json(encode_json(data, limit_bytes=CHECKPOINT_LIMIT_BYTES, what="the checkpoint"))


def _settle_as(earlier: Saved, done: Saved) -> None:
    if earlier.done() or done.cancelled():
        return
    error = done.exception()
    if error is None:
        earlier.set_result(done.result())
    else:
        earlier.set_exception(error)


def _fail(batch: Sequence[_Newest], error: Exception) -> None:
    for newest in batch:
        if newest.saved is not None and not newest.saved.done():
            newest.saved.set_exception(error)
