"""Requests to a coordinator; the only module of the client that knows the HTTP library.

Every request the client makes may be repeated: reads, keyed submissions and cancellations change
nothing the second time. So one policy serves all, and it is the only layer that retries: what is
unreachable or says "later" is asked again, with full jitter, until ``retry_seconds`` have passed.
``Http`` and ``AsyncHttp`` differ in how they wait and in nothing else.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_before_delay,
    wait_random_exponential,
)

from tenure.client.calls import LATER_CODES, Call, Plan, Reply, problem
from tenure.client.errors import ClientError, Refused, Unreachable, UnreadableReply
from tenure.client.settings import DEFAULT_URL
from tenure.contract.codes import Code
from tenure.contract.tasks import Problem

T = TypeVar("T")

log = logging.getLogger("tenure.client")
"""Says at the level INFO that a request is repeated, and why."""

Token = str | Callable[[], str]
"""What is shown to the coordinator, or a function that is asked for it."""

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 15.0
"""How long an answer may take beyond the wait that the request itself asks for."""
LONGEST_PAUSE_SECONDS: Final = 5.0
LATER_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504})


class _Later(Exception):
    """The request should be repeated; ``error`` is what to raise once there is no time left."""

    def __init__(self, error: ClientError, pause_seconds: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause_seconds = pause_seconds


class _Coordinator:
    """One coordinator and one token: how it is asked, and what its answers mean. A token that is a
    function is asked for each call, so that it may be replaced.

    Raises Unreachable at construction for a URL that is none, Refused for a token that cannot be
    one.
    """

    def __init__(self, url: str, token: Token, *, retry_seconds: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Unreachable(
                f"{url!r} is no address of a coordinator.",
                next_step="Give one like http://127.0.0.1:8420.",
            )
        self.url = url.rstrip("/")
        self._token = token
        self._authorization()
        # A proxy configured for the world cannot reach this machine's own loopback.
        self._trust_env = not _is_loopback(parts.hostname)
        self._retry_seconds = retry_seconds

    def connections(self, max_connections: int) -> dict[str, Any]:
        """Arguments of either HTTP client."""
        return {
            "base_url": self.url,
            "headers": {"Accept": "application/json"},
            "limits": httpx2.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
            "trust_env": self._trust_env,
        }

    def tries(self, call: Call) -> dict[str, Any]:
        """Arguments of either retrying object."""
        seconds = self._retry_seconds if call.retry_seconds is None else call.retry_seconds
        return {
            "retry": retry_if_exception_type(_Later),
            "stop": stop_before_delay(seconds),
            "wait": _pause,
            "before_sleep": _say_that_it_goes_on,
            "reraise": True,
        }

    def request(self, call: Call) -> dict[str, Any]:
        """Arguments of either client's ``request``: the same for every try."""
        headers = self._authorization()
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        return {
            "method": call.method,
            "url": call.path,
            "params": dict(call.query),
            "content": call.body,
            "headers": headers | dict(call.headers),
            "timeout": httpx2.Timeout(
                ANSWER_SECONDS + call.wait_seconds,
                connect=CONNECT_SECONDS,
                # Waiting for a connection of the pool is no fault of the server's.
                pool=None,
            ),
        }

    def _authorization(self) -> dict[str, str]:
        token = self._token if isinstance(self._token, str) else self._token()
        if not token.isascii() or not token.isprintable() or not token:
            raise Refused(
                problem(
                    401,
                    Code.UNAUTHENTICATED,
                    "the token is empty or holds odd characters.",
                    "Give a token of the coordinator; from_environment() finds what is set.",
                )
            )
        return {"Authorization": f"Bearer {token}"}

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Names what the HTTP library raises. Raises _Later and UnreadableReply."""
        try:
            yield
        except httpx2.TransportError as error:
            raise _Later(
                Unreachable(
                    f"no answer from {self.url}: {_words(error)}.",
                    next_step=where_to_look(self.url),
                )
            ) from error
        except httpx2.HTTPError as error:
            raise UnreadableReply(f"the answer of {self.url} is no HTTP: {_words(error)}.") from (
                error
            )

    def judge(self, call: Call, response: httpx2.Response) -> Reply:
        """The answer, if it is final and good. Raises _Later and Refused."""
        if response.is_success:
            reply = Reply(response.status_code, response.headers, response.content)
            not_final = None if call.again is None else call.again(reply)
            if not_final is not None:
                raise _Later(not_final)
            return reply
        refused = Refused(_read_problem(response))
        if refused.status in LATER_STATUSES or refused.code in LATER_CODES:
            raise _Later(_not_now(refused), _retry_after(response.headers.get("Retry-After")))
        raise refused


class Http:
    """One coordinator, one token, one pool of connections. Safe for concurrent threads.

    ``transport`` is the seam for tests. Raises as ``_Coordinator`` does at construction.
    """

    def __init__(
        self,
        url: str,
        token: Token,
        *,
        retry_seconds: float,
        max_connections: int = 64,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._coordinator = _Coordinator(url, token, retry_seconds=retry_seconds)
        self._client = httpx2.Client(
            transport=transport, **self._coordinator.connections(max_connections)
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def run(self, plan: Plan[T]) -> T:
        """Follow a plan to its end. Raises what the plan and ``request`` raise."""
        with closing(plan):
            try:
                call = next(plan)
                while True:
                    time.sleep(call.pause_seconds)
                    call = plan.send(self.request(call))
            except StopIteration as end:
                result: T = end.value
                return result

    def request(self, call: Call) -> Reply:
        """Ask until there is an answer that is final.

        Raises Refused, Unreachable, UnreadableReply.
        """
        try:
            return Retrying(**self._coordinator.tries(call))(self._once, call)
        except _Later as later:
            raise later.error from later.__cause__

    def _once(self, call: Call) -> Reply:
        with self._coordinator.sending():
            response = self._client.request(**self._coordinator.request(call))
        return self._coordinator.judge(call, response)


class AsyncHttp:
    """As ``Http``, safe for concurrent tasks of one event loop."""

    def __init__(
        self,
        url: str,
        token: Token,
        *,
        retry_seconds: float,
        max_connections: int = 64,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._coordinator = _Coordinator(url, token, retry_seconds=retry_seconds)
        self._client = httpx2.AsyncClient(
            transport=transport, **self._coordinator.connections(max_connections)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def run(self, plan: Plan[T]) -> T:
        """Follow a plan to its end. Raises what the plan and ``request`` raise."""
        with closing(plan):
            try:
                call = next(plan)
                while True:
                    await asyncio.sleep(call.pause_seconds)
                    call = plan.send(await self.request(call))
            except StopIteration as end:
                result: T = end.value
                return result

    async def request(self, call: Call) -> Reply:
        """Ask until there is an answer that is final.

        Raises Refused, Unreachable, UnreadableReply.
        """
        try:
            return await AsyncRetrying(**self._coordinator.tries(call))(self._once, call)
        except _Later as later:
            raise later.error from later.__cause__

    async def _once(self, call: Call) -> Reply:
        with self._coordinator.sending():
            response = await self._client.request(**self._coordinator.request(call))
        return self._coordinator.judge(call, response)


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


def _say_that_it_goes_on(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, _Later):
        log.info("%s Asking again.", error.error.message)


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


def where_to_look(url: str) -> str:
    """What to do when nobody answers. Whoever sets the token alone means the local stack, mostly,
    and gets the default address."""
    if url == DEFAULT_URL:
        return (
            "Is the coordinator running there? It is the address where TENURE_URL is not set;"
            " a local stack is found in its folder where TENURE_TOKEN is not set either."
        )
    return "Is the coordinator running there, and is TENURE_URL right?"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _words(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
