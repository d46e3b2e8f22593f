"""The example ``thumbnails`` with everything behind it, and what becomes of it under faults."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tenure.cli.local import processes
from tenure.client import Client
from tenure.executor.guards.objects import Manifest, listed, read, resolve
from tests.support.coordinator import TOKENS, Fleet, fleet
from tests.support.examples import STRUCK_AT, STRUCK_SIGNS, executor_process, quarantine
from tests.support.executors import attempts, result
from tests.support.isolation import BrokerSpace, FreshDatabase
from tests.support.s3 import S3Server
from tests.support.waiting import eventually
from thumbnails import draw, make
from thumbnails.tasks import Thumbnails, the_store

EXAMPLE = "thumbnails.executor:app"
STRUCK = "tests.support.struck_thumbnails:app"
pytestmark = pytest.mark.timeout(300)  # several programs are started, one after the other


@pytest.fixture
async def api(
    database: FreshDatabase, broker: BrokerSpace, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Fleet]:
    async with fleet(database, broker) as found:
        monkeypatch.setenv("TENURE_URL", found.coordinator.url)
        monkeypatch.setenv("TENURE_TOKEN", str(TOKENS[0]["token"]))
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store in a local folder."""
    monkeypatch.setenv("THUMBNAILS_STORE", f"file://{tmp_path / 'store'}")
    return the_store()


@pytest.fixture
def bucket(object_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store on an S3 server."""
    monkeypatch.setenv("THUMBNAILS_STORE", f"s3://thumbnails/{tmp_path.name}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", object_server.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", object_server.secret)
    return the_store()


@pytest.fixture
def picture(tmp_path: Path) -> bytes:
    draw.draw(tmp_path / "drawn", 1)
    return (tmp_path / "drawn" / "mandelbrot-0.png").read_bytes()


def contents(store: Any) -> dict[str, bytes]:
    """Everything that is in a store."""
    return {key: bytes(store.get(key).bytes()) for key in listed(store, "")}


async def submit(store: Any, picture: bytes) -> str:
    """As the example's program does it; the task's id."""

    def ask() -> str:
        with Client.from_environment() as client:
            return make.submit(client, store, picture).task_id

    return await asyncio.to_thread(ask)


async def delivered(api: Fleet, store: Any, task_id: str) -> Manifest:
    """What the task's output leads to, once it is there."""
    ended = await result(api, task_id)
    assert ended["state"] == "delivered", ended
    return await resolve(store, Thumbnails.model_validate(ended["output"]).images)


async def test_every_picture_of_a_folder_gets_its_thumbnails_once(
    api: Fleet,
    broker: BrokerSpace,
    folder: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pictures = tmp_path / "pictures"
    draw.draw(pictures, 2)
    (pictures / "notes.txt").write_text("no picture")
    async with executor_process(EXAMPLE, api, broker, tmp_path, "node"):
        await asyncio.to_thread(make.main, pictures)
        first, made = shown(capsys), contents(folder)
        await asyncio.to_thread(make.main, pictures)
        again = shown(capsys)
    assert (again, contents(folder)) == (first, made)
    (notes,) = [line for line in first if "notes" in line]
    assert notes.endswith("is failed (no-picture): It cannot be read as a picture.")
    sizes = {line.partition(",")[0]: size_of(made, line) for line in first if ", at " in line}
    assert sizes == {
        f"mandelbrot-{number}.png: {edge}.jpg": (edge, edge * 3 // 4)
        for number in (0, 1)
        for edge in make.EDGES
    }


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was said of results; the coordinator in this process says other things."""
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if ", at " in line or line.startswith("notes.txt: task")]


def size_of(made: dict[str, bytes], line: str) -> tuple[int, int]:
    """Of the picture at the key that the line ends with."""
    with Image.open(BytesIO(made[line.rpartition(", at ")[2]])) as picture:
        assert picture.format == "JPEG"
        return picture.size


@pytest.mark.requirement("LEASE-10")
async def test_thumbnails_of_an_executor_killed_on_the_way_are_no_part_of_the_result(
    api: Fleet, broker: BrokerSpace, folder: Any, picture: bytes, tmp_path: Path
) -> None:
    """It has written one of three."""
    struck = {STRUCK_AT: "/outputs/256.jpg", STRUCK_SIGNS: str(tmp_path)}
    async with executor_process(STRUCK, api, broker, tmp_path, "victim", **struck) as victim:
        task_id = await submit(folder, picture)
        child = await stands(tmp_path)
        victim.kill()
        await victim.wait()
        await quarantine(api, "victim")
    await eventually(lambda: not processes.is_alive(child))
    left = contents(folder)
    async with executor_process(EXAMPLE, api, broker, tmp_path, "heir"):
        manifest = await delivered(api, folder, task_id)
    await of_one_attempt(api, folder, task_id, manifest, left)
    first, _ = await tokens(api, task_id)
    (lone,) = [key for key in left if "/data/" in key]
    assert lone.endswith(f"/data/{first:016d}/outputs/64.jpg")


@pytest.mark.requirement("LEASE-10")
async def test_thumbnails_of_a_zombie_are_refused_by_the_store(
    api: Fleet, broker: BrokerSpace, bucket: Any, picture: bytes, tmp_path: Path
) -> None:
    """Stopped after its last check, in front of its commit, until another has done the work."""
    struck = {STRUCK_AT: "/commits/", STRUCK_SIGNS: str(tmp_path)}
    async with executor_process(STRUCK, api, broker, tmp_path, "zombie", **struck):
        task_id = await submit(bucket, picture)
        child = await stands(tmp_path)
        left = contents(bucket)
        await quarantine(api, "zombie")
        async with executor_process(EXAMPLE, api, broker, tmp_path, "heir"):
            manifest = await delivered(api, bucket, task_id)
        made = contents(bucket)
        os.kill(child, signal.SIGCONT)
        raised = tmp_path / "raised"
        await eventually(lambda: raised.exists() and raised.read_text() != "")
        assert raised.read_text() == "StaleToken"
    await of_one_attempt(api, bucket, task_id, manifest, left)
    assert contents(bucket) == made
    first, second = await tokens(api, task_id)
    (seal,) = [made[key] for key in made if key.endswith(f"/commits/outputs/{first:016d}")]
    assert seal == b'{"sealed_by":%d}' % second


async def stands(signs: Path) -> int:
    """The process that stands still, once it does."""
    sign = signs / "stands"
    await eventually(lambda: sign.exists() and sign.read_text().endswith("\n"))
    pid = int(sign.read_text())
    await eventually(lambda: processes.is_stopped(pid))
    return pid


async def tokens(api: Fleet, task_id: str) -> list[int]:
    """Those of the attempts, in order."""
    return sorted(each["fencing_token"] for each in await attempts(api, task_id))


async def of_one_attempt(
    api: Fleet, store: Any, task_id: str, manifest: Manifest, left: dict[str, bytes]
) -> None:
    """The manifest names the second attempt's objects, and nothing ``left`` before has changed."""
    _, second = await tokens(api, task_id)
    assert manifest.fencing_token == second
    assert [entry.name for entry in manifest.entries] == ["1024.jpg", "256.jpg", "64.jpg"]
    for entry in manifest.entries:
        assert f"/data/{second:016d}/outputs/" in entry.key
        assert len(await read(store, entry)) == entry.size
    now = contents(store)
    assert {key: now[key] for key in left} == left
