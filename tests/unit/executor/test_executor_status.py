"""Health and metrics of an executor: alive by answering, ready with its servers."""

import socket
from collections.abc import AsyncIterator

import httpx2
import pytest

from tenure.contract.errors import TenureError
from tenure.executor.errors import ListenRefused
from tenure.executor.metrics import ExecutorMetrics
from tenure.executor.patience import Condition
from tenure.executor.status import StatusPages, serve


class Pages:
    """A served set of pages over one condition."""

    def __init__(self) -> None:
        self.broker = Condition("the broker")
        self.metrics = ExecutorMetrics()
        self.pages = StatusPages(
            not_ready=lambda: "" if self.broker.usable else f"the broker: {self.broker.error}",
            metrics=lambda: self.metrics.render([("broker", self.broker.usable)]),
        )


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
async def http(pages: Pages) -> AsyncIterator[httpx2.AsyncClient]:
    server = await serve(("127.0.0.1", 0), pages.pages)
    port = server.sockets[0].getsockname()[1]
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client
    server.close()


async def test_ready_needs_the_servers_and_alive_does_not(
    pages: Pages, http: httpx2.AsyncClient
) -> None:
    for trouble in (None, TenureError("no route.", code="broker_unavailable")):
        if trouble is not None:
            pages.broker.trouble(trouble)
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503
    assert "no route" in (await http.get("/readyz")).text
    pages.broker.well()
    assert (await http.get("/readyz")).text == "ready\n"


async def test_the_metrics_tell_of_attempts_and_servers(
    pages: Pages, http: httpx2.AsyncClient
) -> None:
    pages.metrics.attempts.labels(task_type="echo", outcome="delivered").inc()
    page = (await http.get("/metrics")).text
    assert 'tenure_executor_attempts_total{outcome="delivered",task_type="echo"} 1.0' in page
    assert 'tenure_executor_usable{server="broker"} 0.0' in page


async def test_other_requests_are_refused(http: httpx2.AsyncClient) -> None:
    assert (await http.post("/healthz")).status_code == 405
    assert (await http.get("/")).status_code == 404


async def test_a_taken_address_says_which_setting_to_change(pages: Pages) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ListenRefused, match="TENURE_EXECUTOR_LISTEN"),
    ):
        await serve(("127.0.0.1", taken.getsockname()[1]), pages.pages)


def test_trouble_is_said_at_first_and_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    broker = Condition("the broker")
    for code in ("broker_unavailable", "broker_unavailable", "certificate_untrusted"):
        broker.trouble(TenureError("it is away.", code=code))
    broker.well()
    broker.well()
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert [line.count("not usable") for line in lines] == [1, 1, 0]
    assert "usable again" in lines[2]
