"""The executor on its own: no server runs but what writes thumbnails, a process for each attempt.

They are written to the store that the executor has here, and removed again.
"""

from io import BytesIO

import pytest
from PIL import Image

from tenure.contract.ids import TaskId
from tenure.executor.guards.objects import ObjectGuard, create, read, resolve
from tenure.executor.testing import FleetTask, MakeFleet, NotDelivered
from thumbnails.executor import app
from thumbnails.tasks import MakeThumbnails, Picture, Thumbnails, digest_of, key_of, the_store

PATIENCE_SECONDS = 60  # a machine that has other work starts processes slowly


def stored(data: bytes) -> Picture:
    """An original in the store, and what is wanted of it."""
    create(the_store(), key_of(digest_of(data)), data)
    return Picture(sha256=digest_of(data), edges=(16, 64))


def drawn() -> bytes:
    """A picture that is wider than high."""
    file = BytesIO()
    Image.effect_mandelbrot((320, 240), (-2.0, -1.5, 1.0, 1.5), 20).save(file, "PNG")
    return file.getvalue()


async def removed(task: FleetTask[Thumbnails]) -> int:
    """How many objects the task had left."""
    return await ObjectGuard(the_store()).prune(TaskId(task.task_id))


@pytest.mark.parametrize("fault", ["late_receipt", "kill_node"])
async def test_the_thumbnails_are_those_of_one_attempt(tenure_fleet: MakeFleet, fault: str) -> None:
    async with tenure_fleet(app, patience_seconds=PATIENCE_SECONDS) as fleet:
        task = await fleet.submit(MakeThumbnails, stored(drawn()))
        await getattr(fleet, fault)(task)
        manifest = await resolve(the_store(), (await fleet.result(task)).images)
        sizes = {}
        for entry in manifest.entries:
            with Image.open(BytesIO(await read(the_store(), entry))) as thumbnail:
                sizes[entry.name] = thumbnail.size
        assert sizes == {"16.jpg": (16, 12), "64.jpg": (64, 48)}
        # What the first attempt has committed is adopted by the second, which has made nothing.
        assert manifest.attempt_id == (await fleet.story(task)).attempts[0].attempt_id
        await removed(task)


async def test_the_store_refuses_a_zombie(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, patience_seconds=PATIENCE_SECONDS) as fleet:
        task = await fleet.submit(MakeThumbnails, stored(drawn()))
        zombie = await fleet.zombie(task)
        manifest = await resolve(the_store(), (await fleet.result(task)).images)
        assert manifest.fencing_token > zombie.fencing_token
        await removed(task)


async def test_what_is_no_picture_fails_for_good(tenure_fleet: MakeFleet) -> None:
    async with tenure_fleet(app, patience_seconds=PATIENCE_SECONDS) as fleet:
        task = await fleet.submit(MakeThumbnails, stored(b"no picture"))
        with pytest.raises(NotDelivered, match="no-picture"):
            await fleet.result(task)
        assert len((await fleet.story(task)).attempts) == 1
        await removed(task)
