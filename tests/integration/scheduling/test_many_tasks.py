"""One word about many tasks, on the command line against a real coordinator (FLOW-01)."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenure.cli.exits import Exit
from tests.support.coordinator import Fleet, fleet, until
from tests.support.isolation import BrokerSpace, FreshDatabase


@pytest.fixture
async def api(database: FreshDatabase, broker: BrokerSpace) -> AsyncIterator[Fleet]:
    async with fleet(database, broker, node_silence_seconds=3600) as found:
        await found.register(types=("kept", "wanted"), slots=1)
        blocking = await found.operator.post(
            "/v1/pauses", {"scope": "node", "name": "node-1", "reason": "nothing begins here"}
        )
        assert blocking.status_code == 200, blocking.text
        yield found


async def begun(api: Fleet, *words: str) -> Process:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tenure.cli", "task", *words,
        env=kept | {"TENURE_URL": api.coordinator.url, "TENURE_TOKEN": "operator-token-0001"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )  # fmt: skip


async def said(api: Fleet, *words: str) -> tuple[int | None, Any, str]:
    """Exit code, the JSON that was printed, standard error."""
    out, err = await (process := await begun(api, *words, "-o", "json")).communicate()
    return process.returncode, json.loads(out) if out else None, err.decode()


async def states(api: Fleet) -> Counter[tuple[str, str]]:
    listed = (await api.reader.get("/v1/tasks", limit="500")).json()["tasks"]
    return Counter((task["type"], task["state"]) for task in listed)


@pytest.mark.requirement("FLOW-01")
async def test_many_are_counted_first_and_every_word_may_be_said_again(api: Fleet) -> None:
    for _ in range(12):
        await api.submit(type="wanted")
    await api.submit(type="kept")
    hold = ("hold", "--filter", "phase=waiting,type=wanted", "--reason", "why")
    code, out, err = await said(api, *hold)
    assert (code, out) == (Exit.USAGE, None)
    assert "12 tasks match; nothing was done" in err
    assert (await states(api))["wanted", "open"] == 12
    code, out, _ = await said(api, *hold, "--yes", "--rate", "200")
    assert code == Exit.DONE
    assert out == {"verb": "hold", "matched": 12, "done": 12, "refused": {}, "stopped": False}
    assert await states(api) == {("wanted", "held"): 12, ("kept", "open"): 1}
    _, out, _ = await said(api, *hold, "--yes")
    assert (out["matched"], out["done"]) == (0, 0)
    _, out, _ = await said(api, "release", "--filter", "state=held,older-than=1h", "--yes")
    assert out["matched"] == 0
    _, out, _ = await said(api, "release", "--filter", "state=held", "--yes")
    assert out["done"] == 12
    for _ in range(2):
        code, _, _ = await said(api, "cancel", "--filter", "type=wanted", "--yes")
        assert code == Exit.DONE
        assert await states(api) == {("wanted", "cancelled"): 12, ("kept", "open"): 1}
    for _ in range(2):
        _, out, _ = await said(api, "retry", "--filter", "type=wanted,state=cancelled", "--yes")
        assert out["done"] == 12
        assert (await states(api))["wanted", "open"] == 12


@pytest.mark.requirement("FLOW-01")
async def test_an_interrupt_stops_between_two_tasks_and_the_rest_is_done_by_repeating(
    api: Fleet,
) -> None:
    for _ in range(20):
        await api.submit(type="wanted")
    cancel = ("cancel", "--filter", "type=wanted,state=open", "--yes")
    process = await begun(api, *cancel, "--rate", "0.5", "-o", "json")

    async def first() -> bool:
        return (await states(api))["wanted", "cancelled"] >= 1

    await until(first)
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    assert process.returncode == Exit.INTERRUPTED
    told = json.loads(out)
    assert told["stopped"]
    assert 1 <= told["done"] < told["matched"] == 20
    assert (await states(api))["wanted", "cancelled"] == told["done"]
    code, again, _ = await said(api, *cancel)
    assert (code, again["done"]) == (Exit.DONE, 20 - told["done"])


@pytest.mark.requirement("FLOW-01")
@pytest.mark.parametrize(
    ("words", "said_to"),
    [
        (("cancel",), "name one task, or many"),
        (("cancel", "some-id", "--filter", "state=open"), "name one task, or many"),
        (("cancel", "some-id", "--yes"), "belong to --filter"),
        (("cancel", "--filter", ""), "is no condition"),
        (("cancel", "--filter", "state=lost"), "is no condition"),
        (("cancel", "--filter", "colour=red"), "is no condition"),
        (("cancel", "--filter", "type=a,type=b"), "a second condition"),
        (("cancel", "--filter", "older-than=ages"), "no point in time"),
        (("cancel", "--filter", "state=open", "--rate", "0"), "above 0"),
    ],
)
async def test_a_wrong_filter_is_refused_before_anybody_is_asked(
    words: tuple[str, ...], said_to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from tenure.cli.main import run

    assert await asyncio.to_thread(run, ["task", *words]) == Exit.USAGE
    assert said_to in capsys.readouterr().err
