"""Handlers that run in processes of their own: another process imports this module for them."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tenure.executor import Context, Fail, Retry


class Job(BaseModel):
    do: str
    path: str = ""
    rate: float = 1.0


class Done(BaseModel):
    said: Any = ""
    number: int = 0


def work(input: Job, context: Context[Any]) -> Done:
    """Does what it is told."""
    found: Done = globals()[f"do_{input.do}"](input, context)
    return found


def do_add(input: Job, context: Context[Any]) -> Done:
    return Done(said=f"{context.task_id} {context.attempt_id}", number=context.fencing_token)


def do_trace(input: Job, context: Context[Any]) -> Done:
    return Done(said=str(context.traceparent))


def do_scope(input: Job, context: Context[Any]) -> Done:
    return Done(said=str(context.scope.to_json()))


def do_place(input: Job, context: Context[Any]) -> Done:
    kept = {name for name in os.environ if name.startswith("TENURE")}
    return Done(said=f"{os.getcwd()} {sorted(kept)}", number=os.getuid())


def do_fail(input: Job, context: Context[Any]) -> Done:
    raise Fail("no_such_thing", "never")


def do_retry(input: Job, context: Context[Any]) -> Done:
    raise Retry("not yet", after=3)


def do_raise(input: Job, context: Context[Any]) -> Done:
    raise KeyError("nothing here")


def do_exit(input: Job, context: Context[Any]) -> Done:
    os._exit(3)


def do_forever(input: Job, context: Context[Any]) -> Done:
    """Never looks, and has a child of its own that does not end either."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(input.path).write_text(f"{os.getpid()} {other.pid}")
    while True:
        time.sleep(0.01)


def do_leave(input: Job, context: Context[Any]) -> Done:
    """Leaves something behind that is no longer in its group of processes."""
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    Path(input.path).write_text(str(other.pid))
    return Done()


def do_misname(input: Job, context: Context[Any]) -> Done:
    """Trips over a name that is no text, as files may have."""
    raise FileNotFoundError(2, "No such file", os.fsdecode(b"caf\xe9"))


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def do_mute(input: Job, context: Context[Any]) -> Done:
    raise Mute


def do_misword(input: Job, context: Context[Any]) -> Done:
    raise Fail("no_file", os.fsdecode(b"caf\xe9"))


def do_nan(input: Job, context: Context[Any]) -> Done:
    return Done(said={"mean": float("nan")})


def do_object(input: Job, context: Context[Any]) -> Done:
    return Done(said=object())


def do_abandon(input: Job, context: Context[Any]) -> Done:
    """Ends without a word; what it has forked has left its group and lives on, with everything
    that was open."""
    path = Path(input.path)
    if os.fork() == 0:
        os.setsid()
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
        time.sleep(600)
    while not path.exists():
        time.sleep(0.01)
    os._exit(3)


def do_chatter(input: Job, context: Context[Any]) -> Done:
    """Says more about its progress than anybody wants to know."""
    for row in range(100):
        context.progress(row / 100, "\ud800" + "x" * 1_000_000)
    return Done(said="done")


def do_spin(input: Job, context: Context[Any]) -> Done:
    while True:
        pass


def do_until_told(input: Job, context: Context[Any]) -> Done:
    Path(input.path).write_text(str(os.getpid()))
    context.wait_cancelled(600)
    context.end_if_cancelled()
    return Done()


def do_act(input: Job, context: Context[Any]) -> Done:
    """Acts for as long as it may."""
    Path(input.path).write_text(str(os.getpid()))
    while context.remaining_authority_seconds() > 0:
        time.sleep(0.005)
    context.check_authority()
    return Done()


def do_swallow(input: Job, context: Context[Any]) -> Done:
    return Done(number=len(bytearray(1 << 30)))


def do_crowd(input: Job, context: Context[Any]) -> Done:
    """Four processes that together need twice the reservation of 128 MiB, and stay."""
    program = "import time; kept = bytearray(b'x') * (64 << 20); print(); time.sleep(600)"
    others = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(4)
    ]
    Path(input.path).write_text(" ".join(str(each.pid) for each in others))
    for each in others:
        assert each.stdout is not None
        each.stdout.readline()  # until it has all of it, or has ended
    return Done()


def do_be_throttled(input: Job, context: Context[Any]) -> Done:
    """Computes until its group had to wait for its next share of the processors."""
    group = Path(input.path)
    while "nr_throttled 0\n" in (group / "cpu.stat").read_text():
        pass
    return Done(said=(group / "cpu.max").read_text().strip())


def do_multiply(input: Job, context: Context[Any]) -> Done:
    """As many threads as it may have, up to a number: to the kernel each is a process."""
    enough = threading.Event()
    threads = [threading.Thread(target=enough.wait) for _ in range(int(input.path))]
    began, said = 0, ""
    try:
        for each in threads:
            each.start()
            began += 1
    except RuntimeError as error:
        said = str(error)
    enough.set()
    return Done(said=said, number=began)


def do_write(input: Job, context: Context[Any]) -> Done:
    Path("much").write_bytes(bytes(1 << 20))
    return Done()


def do_open(input: Job, context: Context[Any]) -> Done:
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
    return Done(number=len(kept))


def do_call_out(input: Job, context: Context[Any]) -> Done:
    try:
        socket.create_connection(("127.0.0.1", int(input.path)), timeout=5).close()
    except OSError as error:
        return Done(said=str(error.errno), number=0)
    return Done(said="reached", number=1)


def do_talk(input: Job, context: Context[Any]) -> Done:
    return Done(said="x" * 100_000)


def do_effect(input: Job, context: Context[Any]) -> Done:
    """Writes the object that it was told."""
    with context.side_effect("write", key=input.path):
        return Done(said="written")


def do_effect_and_stay(input: Job, context: Context[Any]) -> Done:
    """One effect is done, the next one never ends."""
    with context.side_effect("mail", key="one"):
        pass
    with context.side_effect("mail", key="two"):
        while True:
            time.sleep(0.01)


def do_stages(input: Job, context: Context[Any]) -> Done:
    """Two stages; the first attempt ends between them."""
    stage = 0 if context.last_checkpoint is None else int(context.last_checkpoint["stage"])
    if stage == 0:
        context.progress(0.5, "half of it")
        context.checkpoint_blocking({"stage": 1})
        raise Retry("from here on", after=0)
    return Done(said=f"from stage {stage}", number=stage)
