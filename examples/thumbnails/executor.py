"""The executor: ``tenure executor thumbnails.executor:app``.

Pictures are other people's files, and taking them apart is work for the processor: each attempt
runs in a process of its own, which may take so much memory and time and is killed with its lease.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

from PIL import Image, ImageOps

from tenure.executor import Context, Executor, Fail, Resources
from tenure.executor.guards.objects import ObjectGuard
from thumbnails.tasks import (
    MakeThumbnails,
    Picture,
    Thumbnails,
    digest_of,
    key_of,
    store_settings,
    the_store,
)

app = Executor("thumbnailer", version="1")


@app.lifespan
@asynccontextmanager
async def gallery() -> AsyncIterator[ObjectGuard]:
    """For the executor: it shuts older attempts out before the process of a new one begins."""
    yield ObjectGuard(the_store())


@app.task(
    MakeThumbnails,
    effects="guarded",
    guards=lambda gallery: [gallery],
    runs_in="process",
    environment=store_settings(),
    resources=Resources.of(memory="1Gi"),
    time_limit_seconds=120,
)
def make_thumbnails(input: Picture, context: Context[None]) -> Thumbnails:
    """All of them are committed together, at the end of the block, or none is."""
    store = the_store()
    with ObjectGuard(store).outputs_now(context) as outputs:
        if not outputs.already_done:
            picture = opened(bytes(store.get(key_of(input.sha256)).bytes()), input.sha256)
            for number, edge in enumerate(input.edges):
                context.progress(number / len(input.edges), f"{edge} pixels")
                outputs.put_now(f"{edge}.jpg", shrunk(picture, edge))
    return Thumbnails(images=outputs.reference)


def opened(data: bytes, digest: str) -> Image.Image:
    """The picture, upright. Raises Fail for what is none: no other attempt would help."""
    if digest_of(data) != digest:
        raise Fail("original-damaged", f"{key_of(digest)} has other content.")
    try:
        return ImageOps.exif_transpose(Image.open(BytesIO(data))).convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise Fail("no-picture", "It cannot be read as a picture.") from error


def shrunk(picture: Image.Image, edge: int) -> bytes:
    """A JPEG that is no longer than ``edge`` pixels on either side."""
    small = picture.copy()
    small.thumbnail((edge, edge))
    file = BytesIO()
    small.save(file, "JPEG", quality=85)
    return file.getvalue()
