"""Requests to a coordinator; the only module of the client that knows the HTTP library.

Every request the client makes may be repeated: reads, keyed submissions and cancellations change
nothing the second time. So one policy serves all, and it is the only layer that retries: what is
unreachable or says "later" is asked again, with full jitter, until ``retry_seconds`` have passed.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Final, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_before_delay,
    wait_random_exponential,
)

from tenure.client.errors import ClientError, Refused, Unreachable, UnreadableReply
from tenure.contract.codes import Code
from tenure.contract.tasks import Problem

ModelT = TypeVar("ModelT", bound=BaseModel)

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0
"""How long an answer may take beyond the wait that the request itself asks for."""
LONGEST_PAUSE_SECONDS: Final = 5.0
LATER_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})
LATER_CODES: Final = frozenset({Code.UNAVAILABLE.value, Code.OVERLOADED.value})


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a 2xx status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def read(self, model: type[ModelT]) -> ModelT:
        """The body as ``model``. Raises UnreadableReply."""
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise UnreadableReply(
                f"the answer is no {model.__name__} that this client knows"
                f" ({error.error_count()} fields are wrong).",
                next_step="Use a client of the server's release.",
            ) from error


class _Later(Exception):
    """The request should be repeated; ``error`` is what to raise once there is no time left."""

    def __init__(self, error: ClientError, pause_seconds: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause_seconds = pause_seconds


class Http:
    """One coordinator, one token, one pool of connections. Safe for concurrent tasks of one loop.

    ``transport`` is the seam for tests. Raises Unreachable at construction for a URL that is none,
    Refused for a token that cannot be one.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        retry_seconds: float,
        max_connections: int = 64,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Unreachable(
                f"{url!r} is no address of a coordinator.",
                next_step="Give one like http://127.0.0.1:8420.",
            )
        if not token.isascii() or not token.isprintable() or not token:
            raise Refused(
                problem(401, Code.UNAUTHENTICATED, "the token is empty or holds odd characters.")
            )
        self._url = url.rstrip("/")
        self._retry_seconds = retry_seconds
        self._client = httpx2.AsyncClient(
            base_url=self._url,
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            limits=httpx2.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
            transport=transport,
            # A proxy configured for the world cannot reach this machine's own loopback.
            trust_env=not _is_loopback(parts.hostname),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait_seconds: float = 0.0,
        again: Callable[[Reply], ClientError | None] | None = None,
    ) -> Reply:
        """Ask until there is an answer that is final.

        ``wait_seconds`` is how long the server itself may wait before it answers. ``again`` may
        find in an answer why it is not final: what it returns is raised when no time is left.

        Raises Refused, Unreachable and UnreadableReply.
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Later),
            stop=stop_before_delay(self._retry_seconds),
            wait=_pause,
            reraise=True,
        )
        try:
            return await retrying(
                self._once, method, path, query, body, headers, wait_seconds, again
            )
        except _Later as later:
            raise later.error from later.__cause__

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        wait_seconds: float,
        again: Callable[[Reply], ClientError | None] | None,
    ) -> Reply:
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent.update(headers or {})
        try:
            response = await self._client.request(
                method,
                path,
                params=dict(query or {}),
                content=body,
                headers=sent,
                timeout=httpx2.Timeout(
                    ANSWER_SECONDS + wait_seconds,
                    connect=CONNECT_SECONDS,
                    # Waiting for a connection of the pool is no fault of the server's.
                    pool=None,
                ),
            )
        except httpx2.TransportError as error:
            raise _Later(
                Unreachable(
                    f"no answer from {self._url}: {_words(error)}.",
                    next_step="Is the coordinator running there, and is TENURE_URL right?",
                )
            ) from error
        except httpx2.HTTPError as error:
            raise UnreadableReply(f"the answer of {self._url} is no HTTP: {_words(error)}.") from (
                error
            )
        if response.is_success:
            reply = Reply(response.status_code, response.headers, response.content)
            not_final = again(reply) if again is not None else None
            if not_final is not None:
                raise _Later(not_final)
            return reply
        refused = Refused(_read_problem(response))
        if refused.status in LATER_STATUSES or refused.code in LATER_CODES:
            raise _Later(_not_now(refused), _retry_after(response.headers.get("Retry-After")))
        raise refused


def _not_now(refused: Refused) -> Unreachable:
    """What to raise when the server kept saying "later" until there was no time left."""
    return Unreachable(
        f"the coordinator cannot answer now ({refused.code}): {refused.message}",
        next_step=refused.next_step or "Repeat the request with the same key.",
    )


_jitter: Final = wait_random_exponential(multiplier=0.2, max=LONGEST_PAUSE_SECONDS)


def _pause(state: RetryCallState) -> float:
    """Full jitter, on top of what the server asked for."""
    pause: float = _jitter(state)
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _Later):
        pause += error.pause_seconds
    return pause


def _retry_after(value: str | None) -> float:
    """Seconds that a Retry-After header asks for, 0 when there is none, at most 60."""
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(seconds, 0.0), 60.0)


def _read_problem(response: httpx2.Response) -> Problem:
    """The problem in an answer; one made of the status when a proxy or another server answered."""
    try:
        return Problem.model_validate_json(response.content)
    except ValidationError:
        code = {
            401: Code.UNAUTHENTICATED,
            403: Code.FORBIDDEN_ROLE,
            404: Code.NOT_FOUND,
            413: Code.PAYLOAD_TOO_LARGE,
            429: Code.OVERLOADED,
            503: Code.UNAVAILABLE,
        }.get(response.status_code, Code.INTERNAL_ERROR)
        return problem(
            response.status_code,
            code,
            f"the server answered {response.status_code} {response.reason_phrase}"
            " without saying why.",
            "Is TENURE_URL the address of a Tenure coordinator?",
        )


def problem(status: int, code: Code, detail: str, next_step: str = "") -> Problem:
    """A problem that was found on this side."""
    return Problem(
        type="about:blank",
        title=code.value,
        status=status,
        code=code.value,
        detail=detail,
        next_step=next_step,
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _words(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
