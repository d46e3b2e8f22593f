"""The receiver's half of guarded HTTP: a pure ASGI middleware around the application (LEASE-10).

    app = GuardMiddleware(app, SqliteRequests("requests.db"))

What it makes of a request that changes something, in this order: a token smaller than one that was
seen, or a lease that is over, is refused (412); the same key with another request is refused (422);
while the first request of a key runs, others are told to come later (409); when it is done, its
stored answer is sent again. The fence of a task is raised by its first request, or before, at
``FENCE_PATH``.

Answers are stored before they are sent, so that nobody has seen one that a repetition would not
get. Needs no extra, except for its store in PostgreSQL.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from uuid import uuid4

from tenure.executor.core.receiving import Presented, Verdict, claims
from tenure.executor.guards.http_store import Answer, Begun, RequestStore, StoreUnavailable
from tenure.executor.guards.http_wire import (
    FENCE_PATH,
    PROBLEM_TYPE,
    REPLAYED,
    HeaderFault,
    granted_scope,
    presented,
    problem_body,
)

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
NOT_BEGUN: Final = frozenset({401, 403, 408, 409, 421, 425, 429, 503})
"""Statuses by which an application says that it did nothing and may be asked again."""
EXTENSION: Final = "tenure.guard"
_UNSTORED: Final = frozenset(
    {"connection", "date", "keep-alive", "set-cookie", "transfer-encoding", "upgrade"}
)


def changes_something(scope: Scope) -> bool:
    """Whether a request is guarded, by default: all but the safe methods."""
    return scope["method"] not in SAFE_METHODS


def nobody(scope: Scope) -> str:
    """Whose key it is, by default: all senders share one space of keys."""
    return ""


@dataclass(frozen=True, slots=True)
class GuardedRequest:
    """In the scope of a guarded request, under ``scope["extensions"]["tenure.guard"]``: what
    ``PostgresRequests.confirm`` wants."""

    presented: Presented
    claim: str


class GuardMiddleware:
    """Around an ASGI application.

    ``guarded`` says which requests are; ``scope_of`` whose key it is: give the authenticated
    sender, so that nobody is answered with what another one asked, and the same for all executors
    of a task. ``effect_of`` says which operation on which object a request is, as the receiver sees
    it: what the lease's scope does not permit is refused (403). ``on_abandoned`` says what
    becomes of a key whose request was interrupted with its process: ``refuse`` (nobody knows
    whether it acted; 409 ``outcome_unknown`` until ``store.forget``) or ``repeat`` (the application
    acts and notes it in one transaction, or may safely be asked again). ``claim_seconds`` is how
    long a process may be silent before its requests count as interrupted.
    """

    def __init__(
        self,
        app: App,
        store: RequestStore,
        *,
        guarded: Callable[[Scope], bool] = changes_something,
        scope_of: Callable[[Scope], str] = nobody,
        effect_of: Callable[[Scope], tuple[str, str]] | None = None,
        on_abandoned: Literal["refuse", "repeat"] = "refuse",
        claim_seconds: float = 30.0,
        body_limit_bytes: int = 1024 * 1024,
        answer_limit_bytes: int = 256 * 1024,
        fence_path: str = FENCE_PATH,
    ) -> None:
        self._app = app
        self._store = store
        self._guarded = guarded
        self._scope_of = scope_of
        self._effect_of = effect_of
        self._repeat_abandoned = on_abandoned == "repeat"
        self._claim_seconds = claim_seconds
        self._body_limit_bytes = body_limit_bytes
        self._answer_limit_bytes = answer_limit_bytes
        self._fence_path = fence_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == self._fence_path and scope["method"] == "POST":
            await self._fence(scope, send)
        elif self._guarded(scope):
            await self._guard(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _fence(self, scope: Scope, send: Send) -> None:
        try:
            asked = presented(scope["headers"], scope=self._scope_of(scope), fingerprint=None)
        except HeaderFault as fault:
            await _refuse(send, fault.code, str(fault))
            return
        begun = await self._begin(asked, "", send)
        if begun is not None and not await _refused(begun, send):
            await _send(send, 204, [], b"")

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive, self._body_limit_bytes)
        if body is None:
            return  # its sender has gone, and nothing has begun
        if len(body) > self._body_limit_bytes:
            await _refuse(
                send, "body_too_large", f"at most {self._body_limit_bytes} bytes are taken."
            )
            return
        try:
            asked = presented(
                scope["headers"], scope=self._scope_of(scope), fingerprint=_fingerprint(scope, body)
            )
            self._check_scope(scope)
        except HeaderFault as fault:
            await _refuse(send, fault.code, str(fault))
            return
        claim = str(uuid4())
        begun = await self._begin(asked, claim, send)
        if begun is None or await _refused(begun, send):
            return
        if begun.answer is not None:
            headers = [*begun.answer.headers, (REPLAYED, "?1")]
            await _send(send, begun.answer.status, headers, begun.answer.body)
        elif claims(begun.verdict):
            request = GuardedRequest(asked, claim)
            await self._run(_inner(scope, request), body, receive, send, claim)

    def _check_scope(self, scope: Scope) -> None:
        """Raises HeaderFault for what the lease of the request does not permit (LEASE-11)."""
        if self._effect_of is None:
            return
        operation, target = self._effect_of(scope)
        if not granted_scope(scope["headers"]).permits(operation, target):
            raise HeaderFault(
                "out_of_scope", f"the lease permits no operation {operation!r} on {target!r}."
            )

    async def _begin(self, asked: Presented, claim: str, send: Send) -> Begun | None:
        try:
            return await self._store.begin(
                asked,
                claim=claim,
                claim_seconds=self._claim_seconds,
                repeat_abandoned=self._repeat_abandoned,
            )
        except StoreUnavailable as error:
            await _refuse(send, "store_unavailable", f"{error}.")
            return None

    async def _run(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, claim: str
    ) -> None:
        """Let the application answer, and store its answer before anybody sees it."""
        captured = _Captured(
            send, self._answer_limit_bytes, lambda whole: self._settle(claim, whole)
        )
        keeping = asyncio.create_task(self._keep(claim))
        try:
            await self._app(scope, _replayed(body, receive), captured.send)
            if captured.streaming:
                await self._finish(claim, None)
            elif not captured.settled:
                await self._finish(claim, _failed("the application did not end its answer."))
        except Exception:
            # It may have acted before it failed: whoever repeats is told, and nothing is run. What
            # it does after its answer, like tasks in the background, is its own.
            if not captured.settled:
                await self._finish(claim, _failed("the application raised."))
            raise
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
        if not captured.settled and not captured.streaming:
            status, problem = problem_body("request_failed", "the application did not answer.")
            await _send(send, status, [("content-type", PROBLEM_TYPE)], problem)

    async def _settle(self, claim: str, answer: Answer) -> Answer:
        """Store a whole answer; what is sent instead where that cannot be."""
        try:
            if not (answer.status in NOT_BEGUN and await self._store.release(claim)):
                await self._store.finish(claim, _stored(answer))
        except StoreUnavailable as error:
            # Done, and not stored: the claim runs out, and what then is ``on_abandoned``'s.
            status, problem = problem_body(
                "store_unavailable", f"{error}; the request may have acted."
            )
            return Answer(status, (("content-type", PROBLEM_TYPE),), problem)
        return answer

    async def _finish(self, claim: str, answer: Answer | None) -> None:
        with suppress(StoreUnavailable):  # the claim runs out
            await self._store.finish(claim, answer)

    async def _keep(self, claim: str) -> None:
        """Tell the store that this process is alive."""
        while True:
            await asyncio.sleep(self._claim_seconds / 3)
            with suppress(StoreUnavailable):
                if not await self._store.keep(claim, self._claim_seconds):
                    return


class _Captured:
    """An answer that is held back until it is whole and ``settle`` has stored it. One that grows
    above the limit is let through as it comes, and not kept."""

    def __init__(
        self, send: Send, limit_bytes: int, settle: Callable[[Answer], Awaitable[Answer]]
    ) -> None:
        self._send = send
        self._limit_bytes = limit_bytes
        self._settle = settle
        self._start: Message | None = None
        self._body = bytearray()
        self.streaming = False
        self.settled = False

    async def send(self, message: Message) -> None:
        """The application's ``send``."""
        if self.streaming:
            await self._send(message)
            return
        if self.settled:
            return  # what comes after the end of an answer is no part of it
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body" or self._start is None:
            return
        self._body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(self._body) > self._limit_bytes:
            self.streaming = True
            await self._send(self._start)
            await self._send(
                {"type": "http.response.body", "body": bytes(self._body), "more_body": more}
            )
        elif not more:
            self.settled = True
            await self._release(await self._settle(self._answer(self._start)))

    def _answer(self, start: Message) -> Answer:
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in start.get("headers", [])
        )
        return Answer(start["status"], headers, bytes(self._body))

    async def _release(self, answer: Answer) -> None:
        """As the application gave it: who repeats it gets what is stored of it."""
        headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers
        ]
        await self._send(
            {"type": "http.response.start", "status": answer.status, "headers": headers}
        )
        await self._send({"type": "http.response.body", "body": answer.body})


def _failed(detail: str) -> Answer:
    status, problem = problem_body("request_failed", detail)
    return Answer(status, (("content-type", PROBLEM_TYPE),), problem)


def _stored(answer: Answer) -> Answer:
    kept = tuple(pair for pair in answer.headers if pair[0].lower() not in _UNSTORED)
    return Answer(answer.status, kept, answer.body)


def _fingerprint(scope: Scope, body: bytes) -> str:
    digest = hashlib.sha256()
    path = scope.get("raw_path") or scope["path"].encode()
    kind = dict(scope["headers"]).get(b"content-type", b"")
    for part in (scope["method"].encode(), path, scope.get("query_string", b""), kind, body):
        digest.update(len(part).to_bytes(8) + part)
    return digest.hexdigest()


def _inner(scope: Scope, request: GuardedRequest) -> Scope:
    """What the application gets. Without the server's own ways to answer, like a file by its path:
    an answer that goes by them can be neither held back nor stored."""
    offered = {
        name: value
        for name, value in (scope.get("extensions") or {}).items()
        if not name.startswith("http.response.")
    }
    return {**scope, "extensions": {**offered, EXTENSION: request}}


async def _body(receive: Receive, limit_bytes: int) -> bytes | None:
    """The whole body, or more than the limit of one that is too large; None when its sender has
    gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > limit_bytes or not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever else comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refused(begun: Begun, send: Send) -> bool:
    """Answer a refusal; whether it was one."""
    match begun.verdict:
        case Verdict.STALE_TOKEN:
            detail = f"a later attempt holds {begun.seen_token}."
            await _refuse(send, begun.verdict, detail, seen_token=begun.seen_token)
        case Verdict.RUNNING:
            await _refuse(send, begun.verdict, "come later.", retry_after="1")
        case Verdict.AUTHORITY_OVER | Verdict.CONFLICT | Verdict.UNKNOWN | Verdict.NO_ANSWER:
            await _refuse(send, begun.verdict, _DETAILS[begun.verdict])
        case _:
            return False
    return True


_DETAILS: Final = {
    Verdict.AUTHORITY_OVER: "its lease ended, by this receiver's clock.",
    Verdict.CONFLICT: "the key was used for another method, path, query or body.",
    Verdict.UNKNOWN: "the process that had it was lost, and nobody knows whether it acted.",
    Verdict.NO_ANSWER: "the request was done; its answer was not kept.",
}


async def _refuse(
    send: Send, code: str, detail: str, *, retry_after: str | None = None, **members: Any
) -> None:
    status, body = problem_body(code, detail, **members)
    headers = [("content-type", PROBLEM_TYPE)]
    if retry_after is not None:
        headers.append(("retry-after", retry_after))
    await _send(send, status, headers, body)


async def _send(send: Send, status: int, headers: "list[tuple[str, str]]", body: bytes) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if status != 204 and not any(name.lower() == b"content-length" for name, _ in raw):
        raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
