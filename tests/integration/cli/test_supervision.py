"""Child processes: seen to serve, restarted when they die, drained, ended with their supervisor."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.cli.local import processes
from tenure.cli.local.errors import LocalProcessFailedError
from tenure.cli.local.ports import LOOPBACK, PortReservation, reserve_port
from tenure.cli.local.programs import Program, ProgramSpec
from tenure.cli.local.supervisor import LONGEST_PAUSE_SECONDS, Supervisor, pause_before_restart
from tenure.cli.local.terminal import LogFollower
from tests.support.waiting import eventually

SERVER = """
import http.server, signal, subprocess, sys
port, stubborn = int(sys.argv[1]), sys.argv[2]
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ready")
    def log_message(self, *words):
        pass
def end(*_):
    print("asked to end", flush=True)
    if stubborn == "no":
        sys.exit(0)
signal.signal(signal.SIGTERM, end)
child = subprocess.Popen(["sleep", "600"])
print("serving", child.pid, flush=True)
http.server.HTTPServer(("127.0.0.1", port), Ready).serve_forever()
"""


class Scene:
    """Makes programs, and ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []
        self.ports: list[PortReservation] = []

    def program(self, name: str, *, stubborn: bool = False, script: str = SERVER) -> Program:
        port = reserve_port()
        self.ports.append(port)
        program = Program(
            ProgramSpec(
                name=name,
                command=(sys.executable, "-c", script, str(port.port), "yes" if stubborn else "no"),
                environment=dict(os.environ),
                directory=self.folder,
                log=self.folder / f"{name}.log",
                ready_url=f"http://{LOOPBACK}:{port.port}/readyz",
                drain_seconds=60.0,
            )
        )
        self.programs.append(program)
        return program

    def grandchild(self, program: Program) -> int:
        return int(program.spec.log.read_text().split("serving ")[-1].split()[0])


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    for program in scene.programs:
        program.kill()
    for port in scene.ports:
        port.release()


async def test_a_program_is_ready_once_it_answers_and_ends_with_all_it_started(
    scene: Scene,
) -> None:
    program = scene.program("one")
    await program.start()
    await program.ready(within_seconds=90)
    other = scene.grandchild(program)
    assert processes.is_alive(other)
    await program.stop(asyncio.Event())
    assert program.status == "ended with status 0"
    await eventually(lambda: not processes.is_alive(other))


async def test_a_program_that_ends_at_its_start_shows_the_end_of_its_log(scene: Scene) -> None:
    program = scene.program("broken", script="raise SystemExit('no such thing')")
    await program.start()
    with pytest.raises(LocalProcessFailedError, match="no such thing") as caught:
        await program.ready(within_seconds=90)
    assert caught.value.code == "local_process_failed"


async def test_what_an_earlier_start_has_logged_is_not_shown_for_this_one(scene: Scene) -> None:
    first = scene.program("broken", script="raise SystemExit('an old fault')")
    await first.start()
    with pytest.raises(LocalProcessFailedError, match="an old fault"):
        await first.ready(within_seconds=90)
    again = scene.program("broken", script="raise SystemExit('a new fault')")
    await again.start()
    with pytest.raises(LocalProcessFailedError, match="a new fault") as caught:
        await again.ready(within_seconds=90)
    assert "an old fault" not in str(caught.value)


async def test_hurry_ends_what_does_not_want_to_end(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.cli.local.programs.HURRIED_SECONDS", 0.1)
    program = scene.program("stubborn", stubborn=True)
    await program.start()
    await program.ready(within_seconds=90)
    hurry = asyncio.Event()
    stopping = asyncio.create_task(program.stop(hurry))
    await eventually(lambda: program.spec.log.read_text().count("asked to end") == 1)
    assert not stopping.done()
    hurry.set()
    await stopping
    assert program.status == "was ended by SIGKILL"


async def test_a_killed_program_is_started_again_until_it_is_let_go(scene: Scene) -> None:
    said: list[str] = []
    supervisor = Supervisor(lambda name, words: said.append(f"{name}: {words}"))
    program = scene.program("one")
    await program.start()
    await program.ready(within_seconds=90)
    supervisor.keep("one", program, lambda: program.status)
    first = program.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: program.pid not in (None, first))
    await program.ready(within_seconds=90)
    assert said[0].startswith("one: was ended by SIGKILL; starting it again in")
    assert supervisor.deaths == {"one": 1}
    await supervisor.let_go("one")
    await program.stop(asyncio.Event())
    assert not program.running


def test_the_pause_before_a_restart_grows_to_a_limit_and_is_jittered() -> None:
    longest = [pause_before_restart(deaths, 1.0) for deaths in range(1, 8)]
    assert longest == [0.5, 1.0, 2.0, 4.0, 8.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert pause_before_restart(3, 0.0) == 1.0
    assert pause_before_restart(10**6, 1.0) == LONGEST_PAUSE_SECONDS


async def test_children_do_not_outlive_a_killed_supervisor(scene: Scene, tmp_path: Path) -> None:
    port = reserve_port()
    scene.ports.append(port)
    script = f"""
import asyncio, os
from pathlib import Path
from tenure.cli.local.programs import Program, ProgramSpec
async def main():
    program = Program(ProgramSpec(
        name="one", command=({sys.executable!r}, "-c", {SERVER!r}, "{port.port}", "yes"),
        environment=dict(os.environ), directory=Path({str(tmp_path)!r}),
        log=Path({str(tmp_path / "one.log")!r}),
        ready_url="http://127.0.0.1:{port.port}/", drain_seconds=60.0))
    await program.start()
    await program.ready(within_seconds=90)
    print(program.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    assert supervisor.stdout is not None
    pid = int(await supervisor.stdout.readline())
    assert processes.is_alive(pid)
    grandchild = int((tmp_path / "one.log").read_text().split("serving ")[-1].split()[0])
    supervisor.kill()
    await supervisor.wait()
    await eventually(lambda: not processes.is_alive(pid))
    os.kill(grandchild, signal.SIGKILL)


async def test_followed_logs_are_printed_by_line_also_after_they_were_turned_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "one.log"
    log.write_text("old\n")
    follower = LogFollower(width=3)
    follower.follow("one", log)
    with log.open("a") as file:
        file.write("first\nsec")
        file.flush()
        follower.say("two", "words\nof ours")
        file.write("ond\n\x1b[31mred\x1b[0m\n")
    printed = ""

    def seen(line: str) -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return line in printed

    await eventually(lambda: seen("one | red\n"))
    log.replace(tmp_path / "one.log.1")
    log.write_text("new\n")
    await eventually(lambda: seen("one | new\n"))
    await follower.close()
    assert printed.splitlines() == [
        "two | words",
        "two | of ours",
        "one | first",
        "one | second",
        "one | red",
        "one | new",
    ]
