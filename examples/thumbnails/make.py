"""Makes thumbnails of all pictures in a folder: ``python -m thumbnails.make FOLDER``.

May be run again: what was made before is shown, and not made again.
"""

import sys
from pathlib import Path

from tenure.client import Client, NotDelivered, ResultTimeout, TaskHandle
from tenure.executor.guards.objects import Store, create, resolve_now
from thumbnails.tasks import (
    MakeThumbnails,
    Picture,
    Thumbnails,
    digest_of,
    key_of,
    the_store,
)

EDGES = (64, 256, 1024)


def submit(client: Client, store: Store, data: bytes) -> TaskHandle[Thumbnails]:
    """The original goes into the store first: executors may run on other machines."""
    digest = digest_of(data)
    create(store, key_of(digest), data)
    return client.submit(
        MakeThumbnails,
        Picture(sha256=digest, edges=EDGES),
        idempotency_key=f"thumbnails {EDGES} of {digest}",
    )


def show(name: str, task: TaskHandle[Thumbnails], store: Store) -> None:
    """How far it is while it runs, then what was made."""
    made: Thumbnails | None = None
    while made is None:
        try:
            made = task.result(timeout=1)
        except ResultTimeout:
            progress = task.view().progress
            if progress is not None and progress.fraction is not None:
                print(f"{name}: {progress.fraction:.0%}, {progress.message}")
        except NotDelivered as error:
            print(f"{name}: {error.message}")
            return
    for entry in resolve_now(store, made.images).entries:
        print(f"{name}: {entry.name}, {entry.size} bytes, at {entry.key}")


def main(folder: Path) -> None:
    """Submit everything, then wait for one after the other."""
    store = the_store()
    with Client.from_environment() as client:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        tasks = {path.name: submit(client, store, path.read_bytes()) for path in files}
        for name, task in tasks.items():
            show(name, task, store)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
