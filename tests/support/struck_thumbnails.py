"""The executor of the example ``thumbnails``, whose work stands still in front of one object.

``STRUCK_AT`` is a part of the object's key, ``STRUCK_SIGNS`` a folder: ``stands`` in it has the pid
of the process that stands still, ``raised`` what came of it when it was continued. The executor is
stopped first, so that nothing of it ends the process meanwhile. It happens once.
"""

import os
import signal
from pathlib import Path

from tenure.executor import Context, Executor
from tenure.executor.guards import objects
from tests.support.examples import STRUCK_AT, STRUCK_SIGNS
from thumbnails import executor as example
from thumbnails.tasks import MakeThumbnails, Picture, Thumbnails, store_settings

app = Executor("thumbnailer", version="1")
app.lifespan(example.gallery)


@app.task(
    MakeThumbnails,
    effects="guarded",
    guards=lambda gallery: [gallery],
    runs_in="process",
    environment={
        **store_settings(),
        STRUCK_AT: os.environ[STRUCK_AT],
        STRUCK_SIGNS: os.environ[STRUCK_SIGNS],
    },
)
def make_thumbnails(input: Picture, context: Context[None]) -> Thumbnails:
    """The example's own, in this process."""
    create, signs = objects.create, Path(os.environ[STRUCK_SIGNS])

    def struck(store: objects.Store, key: str, content: bytes) -> bool:
        if os.environ[STRUCK_AT] in key:
            stand_still(signs)
        return create(store, key, content)

    objects.create = struck
    try:
        return example.make_thumbnails(input, context)
    except Exception as error:
        (signs / "raised").write_text(type(error).__name__)
        raise


def stand_still(signs: Path) -> None:
    """Until somebody continues it, and its executor with it."""
    os.kill(os.getppid(), signal.SIGSTOP)
    with (signs / "stands").open("x", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGSTOP)
