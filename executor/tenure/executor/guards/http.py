"""Requests to a receiver that refuses stale attempts and answers each effect once (LEASE-10).

``HttpGuard`` is for ``async def`` handlers, ``BlockingHttpGuard`` for handlers in threads; both
over a client of httpx2 that is the application's. The receiver's half is ``guards.http_receiver``.

    response = await guard.post(context, "https://shop…/charges", operation="charge", json={…})

A request that was not answered is repeated under the same key while the attempt has authority; its
receiver acts once. Other clients send ``guards.http_wire.fencing_headers``. Needs the extra
``http``.
"""

import asyncio
import random
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin

import httpx2

from tenure.executor.context import Context
from tenure.executor.core.receiving import Verdict
from tenure.executor.errors import (
    AnswerNotKept,
    AuthorityOver,
    CommitUnknown,
    EffectConflict,
    GuardError,
    GuardNotInstalled,
    GuardUnavailable,
    OutcomeUnknown,
    OutOfScope,
    StaleToken,
)
from tenure.executor.guards.http_wire import FENCE_PATH, fencing_headers, problem_code

_FIRST_WAIT_SECONDS: Final = 0.2
_LONGEST_WAIT_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 1.0  # a request that was sent is given so long to be refused
_OF_SENDING: Final = {"auth", "follow_redirects"}
_OF_ADDRESS: Final = {"params", "cookies", "extensions"}
_UNANSWERED: Final = frozenset({502, 503, 504})  # by something in between, or not begun
_REPEAT: Final = "Repeat it under the same operation name."


class HttpGuard:
    """For handlers on the event loop. ``client`` stays open.

    ``fence_url`` is where the receiver raises fences: by default the middleware's path at the
    client's ``base_url``. Raises ValueError when there is neither.
    """

    def __init__(self, client: httpx2.AsyncClient, *, fence_url: str | None = None) -> None:
        self._client = client
        self._fence_url = _fence_url(client.base_url, fence_url)

    async def raise_fence(self, context: Context[Any]) -> None:
        """Shut every older attempt of the task out of the receiver, before the handler begins.

        Raises StaleToken, AuthorityOver, GuardNotInstalled, or GuardUnavailable (may be repeated).
        """
        context.check_authority()
        try:
            response = await self._client.post(
                self._fence_url, headers=fencing_headers(context), timeout=_patience(context)
            )
        except httpx2.TransportError as error:
            raise _away(error) from error
        _judge_fence(response, context)

    async def request(
        self,
        context: Context[Any],
        method: str,
        url: str,
        *,
        operation: str,
        key: str = "",
        **options: Any,
    ) -> httpx2.Response:
        """One guarded request, repeated until it was answered. ``operation`` names the effect
        within the task, ``key`` what it is done to where one operation has several or where the
        lease's scope names objects; ``options`` are those of the client's ``request``.

        Gives the receiver's answer, whatever its status; its header ``Idempotent-Replayed`` says
        whether an earlier request acted. Raises OutOfScope, StaleToken, AuthorityOver,
        EffectConflict (the operation stands for another request), AnswerNotKept (done before, the
        answer is not there), OutcomeUnknown (the receiver was interrupted: a person has to look),
        CommitUnknown (no answer while there was authority: repeat it).
        """
        async with context.side_effect(operation, key=key) as effect:
            exchange = _Exchange(context, operation, effect.id)
            letter = _Letter(self._client, method, url, effect.id, options)
            await letter.written.aread()
            while True:
                exchange.check_authority()
                try:
                    response = await self._client.send(letter.next_try(exchange), **letter.sending)
                except httpx2.TransportError as error:
                    wait = exchange.unanswered(error)
                else:
                    found = exchange.judge(response)
                    if found is None:
                        return response
                    wait = found
                await asyncio.sleep(wait)

    async def post(
        self, context: Context[Any], url: str, *, operation: str, key: str = "", **options: Any
    ) -> httpx2.Response:
        """``request`` with the method POST."""
        return await self.request(context, "POST", url, operation=operation, key=key, **options)


class BlockingHttpGuard:
    """For handlers in threads. ``client`` stays open. Otherwise as ``HttpGuard``."""

    def __init__(self, client: httpx2.Client, *, fence_url: str | None = None) -> None:
        self._client = client
        self._fence_url = _fence_url(client.base_url, fence_url)

    async def raise_fence(self, context: Context[Any]) -> None:
        """As that of ``HttpGuard``; the runtime awaits it, on its event loop."""
        await asyncio.to_thread(self.raise_fence_now, context)

    def raise_fence_now(self, context: Context[Any]) -> None:
        """As ``raise_fence``, in the calling thread."""
        context.check_authority()
        try:
            response = self._client.post(
                self._fence_url, headers=fencing_headers(context), timeout=_patience(context)
            )
        except httpx2.TransportError as error:
            raise _away(error) from error
        _judge_fence(response, context)

    def request(
        self,
        context: Context[Any],
        method: str,
        url: str,
        *,
        operation: str,
        key: str = "",
        **options: Any,
    ) -> httpx2.Response:
        """As that of ``HttpGuard``; CommitUnknown also when the handler was asked to end while
        nobody answered."""
        with context.side_effect(operation, key=key) as effect:
            exchange = _Exchange(context, operation, effect.id)
            letter = _Letter(self._client, method, url, effect.id, options)
            letter.written.read()
            while True:
                exchange.check_authority()
                try:
                    response = self._client.send(letter.next_try(exchange), **letter.sending)
                except httpx2.TransportError as error:
                    wait = exchange.unanswered(error)
                else:
                    found = exchange.judge(response)
                    if found is None:
                        return response
                    wait = found
                if context.wait_cancelled(wait):
                    raise exchange.unknown("was not answered before it was to end")

    def post(
        self, context: Context[Any], url: str, *, operation: str, key: str = "", **options: Any
    ) -> httpx2.Response:
        """``request`` with the method POST."""
        return self.request(context, "POST", url, operation=operation, key=key, **options)


@dataclass
class _Exchange:
    """What is known of a request that may take several tries."""

    context: Context[Any]
    operation: str
    key: str
    tries: int = 0

    def headers(self, given: Any) -> httpx2.Headers:
        headers = httpx2.Headers(given)
        headers.update(fencing_headers(self.context, key=self.key))
        if self.context.traceparent is not None:
            headers.setdefault("traceparent", self.context.traceparent)
        return headers

    def check_authority(self) -> None:
        """Before each try. Raises AuthorityOver before the first, CommitUnknown after one."""
        try:
            self.context.check_authority()
        except AuthorityOver as over:
            if self.tries == 0:
                raise
            raise self.unknown("was not answered before the authority ended") from over

    def unknown(self, why: str) -> CommitUnknown:
        """For who ends before the outcome is known."""
        return CommitUnknown(f"{self.operation!r} {why}. It may have been done.", next_step=_REPEAT)

    def unanswered(self, error: Exception) -> float:
        """Seconds until the next try. Raises CommitUnknown when there is none."""
        said = str(error) or type(error).__name__
        return self._again(f"{self.operation!r} was not answered: {said}.", error)

    def judge(self, response: httpx2.Response) -> float | None:
        """None for the receiver's own answer; else seconds until the next try, or an error."""
        code, members = problem_code(response.headers.get("content-type", ""), response.content)
        if code == "request_failed":
            return None  # the application's, though written by the middleware
        refusal = _refusal(code, members, self.context)
        if refusal is not None:
            raise refusal
        if code == Verdict.RUNNING:
            return self._again(f"{self.operation!r} is still running at its receiver.")
        if response.status_code in _UNANSWERED:
            return self._again(f"{self.operation!r} was answered with {response.status_code}.")
        return None

    def _again(self, said: str, cause: Exception | None = None) -> float:
        self.tries += 1
        longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(self.tries, 10))
        wait = longest * random.uniform(0.5, 1.0)
        if wait >= self.context.remaining_authority_seconds():
            raise CommitUnknown(f"{said} It may have been done.", next_step=_REPEAT) from cause
        return wait


class _Letter:
    """A request that may be sent several times, with the same body each time: it is read once, and
    held in memory. A form of several parts has the effect's id as its boundary, so that another
    attempt writes the same bytes."""

    def __init__(
        self,
        client: httpx2.AsyncClient | httpx2.Client,
        method: str,
        url: str,
        key: str,
        options: dict[str, Any],
    ) -> None:
        """``options`` as of the client's ``request``. Raises TypeError for one it does not have."""
        self._client = client
        self._method = method
        self._url = url
        self.sending = {name: options.pop(name) for name in _OF_SENDING & set(options)}
        self._address = {name: options.pop(name) for name in _OF_ADDRESS & set(options)}
        self._headers = httpx2.Headers(options.pop("headers", None))
        if options.get("files") is not None:
            self._headers.setdefault("content-type", f"multipart/form-data; boundary={key}")
        self.written = client.build_request(method, url, headers=self._headers, **options)

    def next_try(self, exchange: _Exchange) -> httpx2.Request:
        """With the lease as it is now, which may have been renewed; once ``written`` was read."""
        headers = exchange.headers(self._headers)
        if "content-type" in self.written.headers:
            headers.setdefault("content-type", self.written.headers["content-type"])
        return self._client.build_request(
            self._method,
            self._url,
            headers=headers,
            content=self.written.content,
            timeout=_patience(exchange.context),
            **self._address,
        )


def _refusal(code: str | None, members: dict[str, Any], context: Context[Any]) -> Exception | None:
    """What a receiver's refusal is here."""
    detail = str(members.get("detail", ""))
    match code:
        case Verdict.STALE_TOKEN:
            seen = members.get("seen_token")
            return StaleToken(detail, seen_token=seen if isinstance(seen, int) else None)
        case Verdict.AUTHORITY_OVER:
            return AuthorityOver(
                f"the receiver refused attempt {context.attempt_id} of task {context.task_id}:"
                " its authority is over."
            )
        case Verdict.CONFLICT:
            return EffectConflict(detail, next_step="Give another effect another operation name.")
        case Verdict.UNKNOWN:
            return OutcomeUnknown(detail, next_step="Look at the receiver whether it was done.")
        case Verdict.NO_ANSWER:
            return AnswerNotKept(detail)
        case "out_of_scope":
            return OutOfScope(detail)
        case (
            "idempotency_key_missing"
            | "fencing_token_missing"
            | "header_invalid"
            | ("body_too_large")
        ):
            return GuardError(detail, code=code)
    return None


def _judge_fence(response: httpx2.Response, context: Context[Any]) -> None:
    if response.status_code == 204:
        return
    code, members = problem_code(response.headers.get("content-type", ""), response.content)
    refusal = _refusal(code, members, context)
    if refusal is not None:
        raise refusal
    if response.status_code >= 500 or response.status_code == 429:
        raise GuardUnavailable(f"the receiver answered {response.status_code}.")
    raise GuardNotInstalled(
        f"{response.request.url} answered {response.status_code}: no receiver's half is there.",
        next_step="Add tenure.executor.guards.http_receiver.GuardMiddleware to the receiver, or"
        " pass fence_url.",
    )


def _fence_url(base: httpx2.URL, given: str | None) -> str:
    if given is None and not base.host:
        raise ValueError("pass fence_url, or a client with a base_url: fences are raised there")
    return given if given is not None else urljoin(str(base), FENCE_PATH)


def _patience(context: Context[Any]) -> float:
    """Seconds to wait for an answer: one that comes after the authority is of no use."""
    return max(_LAST_SECONDS, context.remaining_authority_seconds())


def _away(error: Exception) -> GuardUnavailable:
    return GuardUnavailable(f"the receiver did not answer: {str(error) or type(error).__name__}.")
