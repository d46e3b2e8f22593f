"""One way in: every route is an ``Endpoint``, and every request takes the same steps.

Who asks, may they, is the schema right, is there room, is the request well-formed; then the
handler; and whatever is raised on the way becomes one problem with a code. The same table of
endpoints makes the routes and the OpenAPI document.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Protocol, TypeVar

import structlog
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tenure.contract.codes import Code
from tenure.contract.errors import TenureError
from tenure.coordinator.api import reading
from tenure.coordinator.api.auth import authenticate, require
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.problems import problem_of, response_of
from tenure.coordinator.errors import RequestRefused, Unavailable
from tenure.coordinator.identities import CurrentIdentities, Identity, Role

log = structlog.get_logger()

ModelT = TypeVar("ModelT", bound=BaseModel)

EVERY_ROLE = frozenset(Role)
READERS = EVERY_ROLE - {Role.EXECUTOR}
SUBMITTERS = frozenset({Role.APPLICATION, Role.OPERATOR})
EXECUTORS = frozenset({Role.EXECUTOR})
_CLIENT_CLOSED_REQUEST = 499


class Size(Enum):
    """How large a body may be, and the code of the refusal."""

    PAYLOAD = Code.PAYLOAD_TOO_LARGE
    BATCH = Code.BATCH_TOO_LARGE


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes of bodies in bytes, and how long a body may take to arrive."""

    payload_bytes: int
    batch_bytes: int
    arrival_seconds: float

    def body_bytes(self, size: Size) -> int:
        """Largest body."""
        return reading.body_limit(self.payload_bytes) if size is Size.PAYLOAD else self.batch_bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler gives back."""

    model: BaseModel
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    exclude_none: bool = False


class Call:
    """One authenticated request on its way through a handler."""

    def __init__(self, endpoint: "Endpoint", request: Request, who: Identity, limits: Limits):
        self._endpoint = endpoint
        self._limits = limits
        self.request = request
        self.identity = who

    def path(self, name: str) -> str:
        """A part of the path, as sent."""
        return str(self.request.path_params[name])

    def query(self, model: type[ModelT]) -> ModelT:
        """The query parameters, which are declared in the endpoint."""
        assert model is self._endpoint.query
        return reading.read_query(self.request, model)

    async def body(self) -> bytes:
        """The body, within the endpoint's limit.

        Raises RequestRefused, and Unavailable when it does not arrive in time.
        """
        size = self._endpoint.body_size
        try:
            async with asyncio.timeout(self._limits.arrival_seconds):
                return await reading.read_body(
                    self.request, limit_bytes=self._limits.body_bytes(size), code=size.value
                )
        except TimeoutError as error:
            raise Unavailable(
                f"The body did not arrive within {self._limits.arrival_seconds:g} s."
            ) from error


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route: who may use it, what it takes, what it answers."""

    method: str
    path: str
    name: str
    summary: str
    roles: frozenset[Role]
    handler: Handler
    reply: type[BaseModel]
    body: type[BaseModel] | None = None
    body_size: Size = Size.PAYLOAD
    query: type[BaseModel] | None = None
    gate: Gate | None = None
    replies: tuple[int, ...] = (200,)
    request_headers: dict[str, str] = field(default_factory=dict)
    reply_headers: dict[int, dict[str, str]] = field(default_factory=dict)
    """By status: name and meaning of the headers that an answer has besides the usual ones."""
    codes: tuple[Code, ...] = ()
    """Codes of its own, besides those that any request of its form may get."""

    def all_codes(self) -> frozenset[Code]:
        """Every code a request to this endpoint may be refused with."""
        codes = {
            *self.codes,
            Code.UNAUTHENTICATED,
            Code.FORBIDDEN_ROLE,
            Code.INVALID_FIELD,  # an unknown query parameter, at least
            Code.METHOD_NOT_ALLOWED,
            Code.NOT_MIGRATED,
            Code.SCHEMA_TOO_NEW,
            Code.UNAVAILABLE,
            Code.INTERNAL_ERROR,
        }
        if self.method != "GET":
            codes.add(Code.STANDBY_NOT_ANSWERING)
        if self.body is not None:
            codes |= {
                Code.MALFORMED_JSON,
                Code.INVALID_CHARACTER,
                self.body_size.value,
                Code.OVERLOADED,
                Code.AUTHORITY_UNCONFIRMED,
                Code.AUTHORITY_HISTORY_LOST,
                Code.INTERNAL_REFUSED,
            }
        return frozenset(codes)


class Observer(Protocol):
    """Told about each request, for the metrics."""

    def requested(self, route: str, method: str, status: int, seconds: float) -> None:
        """A request was answered."""

    def request_refused(self, code: str) -> None:
        """A request was refused."""


class Entrance:
    """Takes requests to endpoints."""

    def __init__(
        self,
        *,
        identities: CurrentIdentities,
        limits: Limits,
        check_usable: Callable[[], None],
        check_writable: Callable[[], None],
        observer: Observer,
    ) -> None:
        """``check_usable`` raises what keeps every request from being served, if anything does, and
        ``check_writable`` what keeps those from it that may change something."""
        self._identities = identities
        self._limits = limits
        self._check_usable = check_usable
        self._check_writable = check_writable
        self._observer = observer

    def route(self, endpoint: Endpoint) -> Route:
        """The Starlette route of an endpoint."""

        async def serve(request: Request) -> Response:
            started = perf_counter()
            response = await self._serve(endpoint, request)
            self._observer.requested(
                endpoint.path, endpoint.method, response.status_code, perf_counter() - started
            )
            return response

        return Route(endpoint.path, serve, methods=[endpoint.method], name=endpoint.name)

    async def _serve(self, endpoint: Endpoint, request: Request) -> Response:
        try:
            who = authenticate(request, self._identities)
            require(who, endpoint.roles)
            self._check_usable()
            if endpoint.method != "GET":
                self._check_writable()
            if endpoint.query is None:
                reading.refuse_query(request)
            with self._room(endpoint, request):
                answer = await endpoint.handler(Call(endpoint, request, who, self._limits))
            return Response(
                answer.model.model_dump_json(exclude_none=answer.exclude_none),
                answer.status,
                headers=answer.headers,
                media_type="application/json",
            )
        except TenureError as error:
            return self._refused(endpoint, error)
        except ClientDisconnect:
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        except Exception:
            log.exception("request failed", route=endpoint.path, method=endpoint.method)
            return self._refused(
                endpoint,
                RequestRefused(Code.INTERNAL_ERROR, "The coordinator failed at this request."),
            )

    def _room(self, endpoint: Endpoint, request: Request) -> AbstractContextManager[None]:
        if endpoint.gate is None:
            return nullcontext()
        declared = request.headers.get("content-length", "")
        limit = self._limits.body_bytes(endpoint.body_size)
        return endpoint.gate.admit(min(int(declared), limit) if declared.isdecimal() else limit)

    def _refused(self, endpoint: Endpoint, error: TenureError) -> Response:
        details = problem_of(error)
        self._observer.request_refused(details.code)
        log.info(
            "request refused",
            route=endpoint.path,
            method=endpoint.method,
            code=details.code,
            detail=details.detail,
        )
        return response_of(error)
