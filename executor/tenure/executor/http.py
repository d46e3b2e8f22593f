"""Requests to the coordinator. The only module that knows the HTTP library.

Every failure is one of three: no usable answer (the outcome is unknown, the same request may be
repeated), a refusal with its code, or the end of this incarnation.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import httpx2
import structlog
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tenure.contract.codec import decode_event
from tenure.contract.codes import Code
from tenure.contract.events import Event
from tenure.contract.ids import IncarnationId, NodeId, TaskId
from tenure.contract.operations import Evidence, PresentedPosition, PresentedToken
from tenure.contract.progress import ProgressReplies, ProgressReports
from tenure.contract.reports import (
    Assignments,
    DrainRequest,
    Registration,
    RegistrationReply,
    RenewalReplies,
    Renewals,
    ReportReplies,
    Reports,
)
from tenure.contract.states import EntityType
from tenure.contract.subscriptions import SubscriptionList
from tenure.contract.tasks import Problem, StreamView
from tenure.executor.errors import (
    CoordinatorError,
    CoordinatorRefused,
    CoordinatorUnavailable,
    NodeGone,
)

log = structlog.get_logger("tenure.executor")

REQUEST_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0
_JSON: Final = {"content-type": "application/json"}
_STREAM_PAGE: Final = 1000
_REPEATABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_FAILURES: Final = (httpx2.TransportError, httpx2.DecodingError, OSError)

ModelT = TypeVar("ModelT", bound=BaseModel)


class History(NamedTuple):
    """A part of a stream as the authority has it: its epoch, the sequence of the stream's last
    event, and the events that were asked for."""

    epoch: int
    last_sequence: int
    events: tuple[Event, ...]


class Coordinator:
    """The coordinator as the event loop uses it. Every method raises CoordinatorError.

    ``token`` is asked for every request, so that it may be replaced."""

    def __init__(self, url: str, token: Callable[[], str]) -> None:
        self._client = httpx2.AsyncClient(**_options(url, token, REQUEST_SECONDS))

    async def register(self, registration: Registration) -> RegistrationReply:
        """Make the incarnation known. Repeatable."""
        return _read(
            await self._send("POST", "/v1/nodes", registration),
            RegistrationReply,
        )

    async def report(self, node_id: NodeId, reports: Reports) -> ReportReplies:
        """One batch of reports. Repeatable: the report ids make it so."""
        return _read(
            await self._send("POST", f"{_node(node_id)}/reports", reports),
            ReportReplies,
        )

    async def assignments(self, node_id: NodeId, incarnation: IncarnationId) -> Assignments:
        """What the coordinator believes this incarnation has."""
        path = f"{_node(node_id)}/assignments?incarnation={incarnation}"
        return _read(await self._send("GET", path), Assignments)

    async def news(
        self, node_id: NodeId, incarnation: IncarnationId, *, seen: str, wait_seconds: float
    ) -> Assignments:
        """The same, once there is something new in it, or the time is over. The time is less than
        a request may take."""
        path = (
            f"{_node(node_id)}/assignments?incarnation={incarnation}"
            f"&wait={wait_seconds:g}&seen={quote(seen)}"
        )
        return _read(await self._send("GET", path), Assignments)

    async def tell_progress(self, node_id: NodeId, reports: ProgressReports) -> ProgressReplies:
        """How far attempts are. Repeatable: saying the same again changes nothing."""
        return _read(
            await self._send("POST", f"{_node(node_id)}/progress", reports),
            ProgressReplies,
        )

    async def drain(self, node_id: NodeId, request: DrainRequest) -> None:
        """Nothing new for this incarnation; or its end."""
        _checked(await self._send("POST", f"{_node(node_id)}/drain", request))

    async def present_token(self, task_id: TaskId, seen_token: int) -> None:
        """Tell what a receiver has seen for a task (LEASE-04). Never raises: what cannot be told
        now is told by the next witness, and a number that no authority gives is no evidence."""
        try:
            evidence = Evidence(tokens=(PresentedToken(task_id=task_id, fencing_token=seen_token),))
        except ValidationError:
            log.warning("a receiver names a token that no authority gives", seen_token=seen_token)
            return
        with suppress(CoordinatorError):
            _checked(await self._send("POST", "/v1/authority/evidence", evidence))

    async def history(self, entity_type: str, entity_id: str, *, after: int) -> History:
        """The events of a stream with a sequence above ``after``, to its end."""
        events: list[Event] = []
        while True:
            path = f"/v1/streams/{entity_type}/{quote(entity_id, safe='')}"
            query = f"?after={after}&limit={_STREAM_PAGE}"
            view = _read(await self._send("GET", path + query), StreamView)
            events += (decode_event(to_json(event)) for event in view.events)
            if len(view.events) < _STREAM_PAGE:
                return History(view.epoch, view.sequence, tuple(events))
            after = events[-1].sequence

    async def subscriptions(self) -> SubscriptionList:
        """Subscriptions that this token may see."""
        return _read(await self._send("GET", "/v1/subscriptions"), SubscriptionList)

    async def present_positions(self, positions: Sequence[tuple[str, str, int, int]]) -> None:
        """Tell how far streams were seen: type and id of the entity, epoch, sequence. Never raises:
        what cannot be told now is told later."""
        evidence = Evidence(
            positions=tuple(
                PresentedPosition(
                    entity_type=EntityType(kind), entity_id=name, epoch=epoch, sequence=sequence
                )
                for kind, name, epoch, sequence in positions
            )
        )
        with suppress(CoordinatorError):
            _checked(await self._send("POST", "/v1/authority/evidence", evidence))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _send(self, method: str, path: str, body: BaseModel | None = None) -> httpx2.Response:
        content = None if body is None else body.model_dump_json()
        try:
            return await self._client.request(method, path, content=content)
        except _FAILURES as error:
            raise _unavailable(error) from error


class RenewingCoordinator:
    """The coordinator as the renewals' thread uses it: blocking, with connections of its own, so
    that neither a blocked event loop nor a busy one can starve it."""

    def __init__(self, url: str, token: Callable[[], str], *, timeout_seconds: float) -> None:
        self._client = httpx2.Client(**_options(url, token, timeout_seconds))

    def renew(self, node_id: NodeId, renewals: Renewals) -> RenewalReplies:
        """Renew leases, and say that the node lives. Raises CoordinatorError."""
        try:
            response = self._client.post(
                f"{_node(node_id)}/renewals", content=renewals.model_dump_json()
            )
        except _FAILURES as error:
            raise _unavailable(error) from error
        return _read(response, RenewalReplies)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class _Bearer(httpx2.Auth):
    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["authorization"] = f"Bearer {self._token()}"
        yield request


def _options(url: str, token: Callable[[], str], timeout_seconds: float) -> dict[str, Any]:
    return {
        "base_url": url,
        "auth": _Bearer(token),
        "headers": _JSON,
        "timeout": httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds)),
    }


def _node(node_id: NodeId) -> str:
    return f"/v1/nodes/{quote(node_id, safe='')}"


def _read(response: httpx2.Response, model: type[ModelT]) -> ModelT:
    try:
        return model.model_validate_json(_checked(response).content)
    except ValidationError as error:
        raise CoordinatorUnavailable(
            f"the answer to {response.request.url.path} is no {model.__name__}:"
            f" {error.error_count()} fields are wrong."
        ) from error


def _checked(response: httpx2.Response) -> httpx2.Response:
    if response.is_success:
        return response
    raise _failure(response)


def _failure(response: httpx2.Response) -> CoordinatorError:
    status = response.status_code
    try:
        problem = Problem.model_validate_json(response.content)
        code, message, next_step = problem.code, problem.detail, problem.next_step
    except ValidationError:  # somebody between us and the coordinator answered
        code, message, next_step = f"http_{status}", f"HTTP status {status}.", ""
    if status in _REPEATABLE:
        return CoordinatorUnavailable(
            message,
            code=code,
            retry_after_seconds=_seconds(response.headers.get("retry-after")),
        )
    if code == Code.NODE_GONE:
        return NodeGone(message, next_step=next_step)
    return CoordinatorRefused(message, status=status, code=code, next_step=next_step)


def _seconds(retry_after: str | None) -> float | None:
    """Whole seconds, as the coordinator writes it; a date or nonsense asks for nothing."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None


def _unavailable(error: Exception) -> CoordinatorUnavailable:
    return CoordinatorUnavailable(
        f"no answer from the coordinator: {str(error) or type(error).__name__}."
    )
