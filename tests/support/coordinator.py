"""A coordinator over real servers, asked over real HTTP: what the tests of the API share."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx2

from tenure.contract.reports import ReportReply
from tenure.coordinator.app import Coordinator
from tenure.coordinator.config import CoordinatorSettings, load_settings
from tenure.settings.secrets import SecretFile
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.pgbouncer import routed
from tests.support.published import check_response

TOKENS = [
    {"name": "shop", "token": "application-token-1", "tenant": "default", "role": "application"},
    {"name": "fleet", "token": "executor-token-0001", "tenant": "default", "role": "executor"},
    {"name": "ops", "token": "operator-token-0001", "tenant": "default", "role": "operator"},
    {"name": "eyes", "token": "read-only-token-001", "tenant": "default", "role": "read_only"},
    {"name": "other", "token": "other-tenant-token-1", "tenant": "other", "role": "application"},
    {"name": "theirs", "token": "other-executor-token", "tenant": "other", "role": "executor"},
]


def settings_for(
    database_url: str | SecretFile, broker_url: str | SecretFile, **values: Any
) -> CoordinatorSettings:
    """Settings with the tokens above, on a free port."""
    return load_settings(
        **(
            {
                "database_url": routed(database_url)
                if isinstance(database_url, str)
                else database_url,
                "broker_url": broker_url,
                "tokens": TOKENS,
                "listen": "127.0.0.1:0",
            }
            | values
        )
    )


@asynccontextmanager
async def running(settings: CoordinatorSettings) -> AsyncIterator[Coordinator]:
    """A started coordinator."""
    coordinator = Coordinator(settings)
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()


class Caller:
    """Somebody with a token. Every answer is held against the published OpenAPI document."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.http = httpx2.AsyncClient(
            base_url=url, headers=headers, timeout=60, event_hooks={"response": [check_response]}
        )

    async def get(self, path: str, **parameters: Any) -> httpx2.Response:
        # Empty parameters would remove the query that the path has.
        return await self.http.get(path, params=parameters or None)

    async def post(
        self, path: str, body: Any = None, *, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        """``body`` is sent as it is when it is bytes, else as JSON."""
        if isinstance(body, bytes):
            return await self.http.post(path, content=body, headers=headers)
        return await self.http.post(path, json=body, headers=headers)


class Fleet:
    """A coordinator with a caller for each role."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        by_name = {str(entry["name"]): str(entry["token"]) for entry in TOKENS}
        self.callers = {name: Caller(coordinator.url, token) for name, token in by_name.items()} | {
            "nobody": Caller(coordinator.url, None)
        }
        self.application = self.callers["shop"]
        self.executor = self.callers["fleet"]
        self.operator = self.callers["ops"]
        self.reader = self.callers["eyes"]
        self.stranger = self.callers["other"]
        self.nobody = self.callers["nobody"]

    async def close(self) -> None:
        for caller in self.callers.values():
            await caller.http.aclose()

    async def register(
        self, node_id: str = "node-1", types: tuple[str, ...] = ("sha256",), **values: Any
    ) -> str:
        """A new incarnation of a node; its id."""
        body = registration(node_id, types, **values)
        reply = await self.executor.post("/v1/nodes", body)
        assert reply.status_code == 200, reply.text
        return str(body["incarnation"])

    async def unrestrict(self, tenant: str) -> None:
        """State that a tenant has no limits."""
        anything = {name: ["*"] for name in ("node_pools", "locations", "networks")}
        reply = await self.operator.http.patch(
            f"/v1/tenants/{tenant}", json=anything | {"budget_unlimited": True}
        )
        assert reply.status_code == 200, reply.text

    async def submit(self, **values: Any) -> str:
        """A task; its id."""
        reply = await self.application.post("/v1/tasks", {"type": "sha256"} | values)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["task_id"])

    async def assigned(self, incarnation: str, task_id: str, node_id: str = "node-1") -> Any:
        """The assignment of a task, once the scheduler has made it."""

        async def look() -> Any:
            reply = await self.executor.get(
                f"/v1/nodes/{node_id}/assignments", incarnation=incarnation
            )
            assert reply.status_code == 200, reply.text
            for assignment in reply.json()["assignments"]:
                if assignment["task_id"] == task_id:
                    return assignment
            return None

        return await until(look)

    async def report(
        self, incarnation: str, assignment: Any, kind: str, node_id: str = "node-1", **values: Any
    ) -> ReportReply:
        """One report about an assignment."""
        body = {"incarnation": incarnation, "reports": [report_of(assignment, kind, **values)]}
        reply = await self.executor.post(f"/v1/nodes/{node_id}/reports", body)
        assert reply.status_code == 200, reply.text
        return ReportReply.model_validate(reply.json()["replies"][0])

    async def deliver(self, incarnation: str, task_id: str, output: Any = None) -> None:
        """Carry a task through to its delivery."""
        assignment = await self.assigned(incarnation, task_id)
        assert (await self.report(incarnation, assignment, "take")).outcome == "applied"
        delivered = await self.report(incarnation, assignment, "deliver", output=output)
        assert delivered.outcome == "applied"


def registration(
    node_id: str = "node-1", types: tuple[str, ...] = ("sha256",), **values: Any
) -> dict[str, Any]:
    """The body of a registration."""
    return {
        "node_id": node_id,
        "incarnation": str(uuid4()),
        "protocol_version": 1,
        "software": "tests 1",
        "slots": 4,
        "task_types": [{"name": name} for name in types],
    } | values


def report_of(assignment: Any, kind: str, **values: Any) -> dict[str, Any]:
    """One report as JSON."""
    return {
        "kind": kind,
        "report_id": str(uuid4()),
        "task_id": assignment["task_id"],
        "attempt_id": assignment["attempt_id"],
        "fencing_token": assignment["fencing_token"],
    } | values


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """The first true value of ``look``. Fails by the test's own timeout, never by one here."""
    while True:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.02)


@asynccontextmanager
async def fleet(database: FreshDatabase, space: BrokerSpace, **values: Any) -> AsyncIterator[Fleet]:
    """A ready coordinator over a migrated database."""
    settings = settings_for(
        database.coordinator_url, space.url, **({"name_prefix": space.name_prefix} | values)
    )
    async with running(settings) as coordinator:
        found = Fleet(coordinator)

        async def ready() -> bool:
            return (await found.nobody.get("/readyz")).status_code == 200

        await until(ready)
        try:
            yield found
        finally:
            await found.close()
