"""Fault points do nothing in what is shipped, and strike where a test says."""

import ast
import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tenure.cli.drills.strikes import Act, Armed, Reached, Strike, StruckError
from tenure.contract.faultpoints import NO_FAULTS, FaultPoint, NoFaults
from tenure.coordinator.app import Coordinator
from tenure.executor.guards.sql import SqlGuard
from tenure.relay.app import build
from tenure.relay.config import load_settings
from tests.support.coordinator import settings_for
from tests.support.repository import REPOSITORY, ROOTS, package
from tests.support.waiting import eventually

DATABASE, BROKER = "postgresql://nobody@127.0.0.1:1/none", "amqp://nobody@127.0.0.1:1/none"
SHIPPED = sorted(
    file
    for root in ROOTS
    for file in package(root).rglob("*.py")
    if not {"drills", "demo", "testing"} & set(file.parts)
)


async def test_what_is_constructed_without_faults_has_inert_ones() -> None:
    relay = build(load_settings(database_url=DATABASE, broker_url=BROKER)).relay
    coordinator = Coordinator(settings_for(DATABASE, BROKER))
    for part in (relay, coordinator, SqlGuard(DATABASE)):
        assert getattr(part, "_faults") is NO_FAULTS  # noqa: B009 - private on purpose
    assert type(NO_FAULTS) is NoFaults
    for point in FaultPoint:
        await NO_FAULTS.reach(point, "anything")


def names_in(file: Path) -> set[str]:
    """Names that a module imports or passes by keyword."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_nothing_that_is_shipped_can_arm_a_fault_point(file: Path) -> None:
    """No setting and no variable leads there: only the demo, the tests and the testing kit know the
    armed kind."""
    assert not any("tenure.cli.drills" in name for name in names_in(file))


@pytest.mark.parametrize("command", ["coordinator", "relay", "executor"])
def test_the_commands_run_their_process_without_faults(command: str) -> None:
    text = (package("cli") / "processes.py").read_text("utf-8")
    (function,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == command
    )
    (call,) = (
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run"
    )
    assert len(call.args) == (2 if command == "executor" else 1)
    assert call.keywords == []


def test_a_strike_survives_the_way_to_another_process(tmp_path: Path) -> None:
    strike = Strike(FaultPoint.AFTER_ACK, Act.WAIT, tmp_path, nth=3, subject="x")
    assert Strike.from_json(strike.as_json()) == strike


async def test_a_strike_waits_for_its_point_its_subject_and_its_turn(tmp_path: Path) -> None:
    strike = Strike(FaultPoint.AFTER_COMMIT, Act.RAISE, tmp_path, nth=2, subject="reports")
    armed = Armed(strike)
    await armed.reach(FaultPoint.BEFORE_COMMIT, "reports")
    await armed.reach(FaultPoint.AFTER_COMMIT, "renewals")
    await armed.reach(FaultPoint.AFTER_COMMIT, "reports")
    assert strike.sign() is None
    with pytest.raises(StruckError):
        await armed.reach(FaultPoint.AFTER_COMMIT, "reports")
    assert strike.sign() is not None
    await armed.reach(FaultPoint.AFTER_COMMIT, "reports")  # once


async def test_of_several_processes_one_is_struck(tmp_path: Path) -> None:
    strike = Strike(FaultPoint.AFTER_COMMIT, Act.RAISE, tmp_path)
    with pytest.raises(StruckError):
        await Armed(strike).reach(FaultPoint.AFTER_COMMIT)
    await Armed(strike).reach(FaultPoint.AFTER_COMMIT)


async def test_waiting_at_a_point_holds_nothing_else(tmp_path: Path) -> None:
    strike = Strike(FaultPoint.AFTER_PUBLISH, Act.WAIT, tmp_path)
    waiting = asyncio.create_task(Armed(strike).reach(FaultPoint.AFTER_PUBLISH))
    await eventually(lambda: strike.sign() is not None)
    assert not waiting.done()
    strike.go()
    await waiting


@pytest.mark.parametrize(
    ("act", "number"), [(Act.KILL, signal.SIGKILL), (Act.STOP, signal.SIGSTOP)]
)
def test_a_process_kills_or_stops_itself_at_the_point_and_no_instruction_later(
    tmp_path: Path, act: Act, number: signal.Signals
) -> None:
    strike = Strike(FaultPoint.BEFORE_EFFECT, act, tmp_path)
    program = (
        "import asyncio, pathlib, sys, threading, time\n"
        "from tenure.cli.drills.strikes import Armed, Strike\n"
        "from tenure.contract.faultpoints import FaultPoint\n"
        "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
        "strike = Strike.from_json(sys.argv[1])\n"
        "asyncio.run(Armed(strike).reach(FaultPoint.BEFORE_EFFECT, 'a'))\n"
        "(strike.folder / 'later').touch()\n"
    )
    child = os.spawnv(
        os.P_NOWAIT, sys.executable, [sys.executable, "-c", program, strike.as_json()]
    )
    _, status = os.waitpid(child, os.WUNTRACED)
    try:
        assert strike.sign() == Reached(child, FaultPoint.BEFORE_EFFECT, "a")
        assert not (tmp_path / "later").exists()
        if act is Act.KILL:
            assert os.WTERMSIG(status) == number
            return
        assert os.WSTOPSIG(status) == number
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (tmp_path / "later").exists()
    finally:
        if not os.WIFSIGNALED(status) and not os.WIFEXITED(status):
            os.kill(child, signal.SIGKILL)
