"""The parts of the demo that need no stack: the frozen list, the direct figures, the verdict."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tenure.cli.demo.__main__ import run
from tenure.cli.demo.check import compare, compute_directly
from tenure.cli.demo.declarations import (
    FILE_CHANGED,
    FILE_VANISHED,
    FileIn,
    FileOut,
    decode_path,
    encode_path,
)
from tenure.cli.demo.downstream import Row, Written
from tenure.cli.demo.files import NOT_THE_LIBRARY, FrozenFile, InputError, freeze, standard_library
from tenure.cli.demo.hasher import read_file, read_unchanged
from tenure.cli.demo.suffered import Suffered
from tenure.cli.exits import Exit
from tenure.executor import Fail

ODD_NAME = b"caf\xe9 100%\n.txt"
"""A name that is no UTF-8, with a percent sign and a newline in it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_bytes(b"one\ntwo\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "no-newline").write_bytes(b"\x00\xffx")
    with open(os.fsencode(tmp_path) + b"/" + ODD_NAME, "wb") as file:
        file.write(b"odd\n")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def test_the_list_holds_every_regular_file_and_nothing_else(folder: Path) -> None:
    found = {os.path.relpath(file.path, folder): file.size_bytes for file in freeze(folder)}
    assert found == {"a/one.txt": 8, "empty": 0, "no-newline": 3, os.fsdecode(ODD_NAME): 4}


def test_folders_can_be_left_out(folder: Path) -> None:
    (folder / "a" / "__pycache__").mkdir()
    (folder / "a" / "__pycache__" / "x.pyc").write_bytes(b"x")
    paths = [file.path for file in freeze(folder, without=NOT_THE_LIBRARY)]
    assert not any("__pycache__" in path for path in paths)
    assert len(paths) == 4


def test_the_standard_library_is_found() -> None:
    assert (standard_library() / "asyncio" / "tasks.py").is_file()


@pytest.mark.parametrize(
    ("name", "code"),
    [("missing", "input_missing"), ("file", "input_not_a_folder"), ("bare", "input_empty")],
)
def test_an_unfit_folder_has_a_code_and_starts_nothing(
    name: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "bare" / "deeper").mkdir(parents=True)
    assert run(["--input", str(tmp_path / name)]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {code}:")
    assert err.count("\n") == 1


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the refusal comes from the call itself."""
    (tmp_path / "closed").mkdir()

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(InputError, match="Permission denied") as caught:
            freeze(tmp_path)
    assert caught.value.code == "input_unreadable"


def test_a_file_that_may_not_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("one.txt"))
    with pytest.raises(InputError, match=r"one\.txt cannot be read"):
        freeze(folder)


def test_any_path_survives_the_way_through_json_and_back(folder: Path) -> None:
    for file in freeze(folder):
        text = encode_path(file.path)
        text.encode("ascii")
        assert decode_path(json.loads(json.dumps(text))) == file.path


async def test_both_computations_agree_on_every_kind_of_file(folder: Path) -> None:
    files = freeze(folder)
    direct = await compute_directly(files)
    for file, row in zip(files, direct, strict=True):
        output = read_file(file.path)
        assert row == Row(output.sha256, output.size_bytes, output.lines)
    assert direct[files.index(next(f for f in files if f.path.endswith("one.txt")))] == Row(
        hashlib.sha256(b"one\ntwo\n").hexdigest(), 8, 2
    )


async def test_a_file_that_is_not_as_listed_has_changed(folder: Path) -> None:
    files = freeze(folder)
    (folder / "empty").write_bytes(b"more")
    (folder / "no-newline").unlink()
    os.utime(folder / "a" / "one.txt", ns=(1, 1))
    direct = await compute_directly(files)
    unchanged = [file.path for file, row in zip(files, direct, strict=True) if row is not None]
    assert unchanged == [os.fsdecode(os.fsencode(folder) + b"/" + ODD_NAME)]


ONE, TWO = Row("1", 1, 1), Row("2", 2, 2)
FILES = [FrozenFile("/a", 1, 1), FrozenFile("/b", 2, 2)]
OUTPUTS = {
    "/a": FileOut(sha256="1", size_bytes=1, lines=1),
    "/b": FileOut(sha256="2", size_bytes=2, lines=2),
}
GOOD = Written({"/a": [ONE], "/b": [TWO]}, {"task-a": 1, "task-b": 1})


def test_all_as_it_should_be_is_ok() -> None:
    report = compare(FILES, [ONE, TWO], GOOD, OUTPUTS, tasks=2, seconds=1.25)
    assert json.loads(report.as_json()) == {
        "files": 2,
        "tasks": 2,
        "delivered": 2,
        "missing": 0,
        "wrong": 0,
        "changed": 0,
        "effects_twice": 0,
        "stale_writes_refused": 0,
        "late_receipts": 0,
        "relay_kills": 0,
        "in_flight_at_kill": [],
        "coordinator_kills": 0,
        "duplicates_published": 0,
        "duplicates_ignored": 0,
        "invariants_broken": [],
        "seconds": 1.2,
        "ok": True,
    }


def test_a_broken_invariant_of_the_stack_is_not_ok() -> None:
    broken = ["tokens-grow-per-task"]
    report = compare(FILES, [ONE, TWO], GOOD, OUTPUTS, tasks=2, seconds=1, invariants_broken=broken)
    assert (list(report.invariants_broken), report.ok) == (broken, False)


def test_a_row_that_is_not_there_is_missing() -> None:
    written = Written({"/a": [ONE]}, {"task-a": 1})
    report = compare(FILES, [ONE, TWO], written, OUTPUTS, tasks=2, seconds=1)
    assert (report.missing, report.wrong, report.ok) == (1, 0, False)


def test_a_row_with_other_figures_is_wrong() -> None:
    written = Written({"/a": [ONE], "/b": [ONE]}, {"task-a": 1, "task-b": 1})
    report = compare(FILES, [ONE, TWO], written, OUTPUTS, tasks=2, seconds=1)
    assert (report.missing, report.wrong, report.ok) == (0, 1, False)


def test_an_output_that_is_not_what_was_written_is_wrong() -> None:
    outputs = OUTPUTS | {"/b": OUTPUTS["/a"]}
    report = compare(FILES, [ONE, TWO], GOOD, outputs, tasks=2, seconds=1)
    assert (report.wrong, report.ok) == (1, False)


def test_a_row_that_nobody_asked_for_is_wrong() -> None:
    written = Written({**GOOD.rows, "/c": [ONE]}, GOOD.changes)
    report = compare(FILES, [ONE, TWO], written, OUTPUTS, tasks=2, seconds=1)
    assert (report.wrong, report.ok) == (1, False)


def test_an_effect_that_happened_twice_is_counted() -> None:
    written = Written({"/a": [ONE, ONE], "/b": [TWO]}, {"task-a": 2, "task-b": 1})
    report = compare(FILES, [ONE, TWO], written, OUTPUTS, tasks=2, seconds=1)
    assert (report.effects_twice, report.wrong, report.ok) == (1, 0, False)


def test_a_task_without_its_output_is_not_ok_although_the_row_is_there() -> None:
    outputs = {"/a": OUTPUTS["/a"]}
    report = compare(FILES, [ONE, TWO], GOOD, outputs, tasks=2, seconds=1)
    assert (report.delivered, report.missing, report.ok) == (1, 0, False)


def test_a_file_that_changed_is_counted_and_judged_no_further() -> None:
    written = Written({"/a": [ONE]}, {"task-a": 1})
    outputs = {"/a": OUTPUTS["/a"]}
    report = compare(FILES, [ONE, None], written, outputs, tasks=2, seconds=1)
    assert (report.changed, report.missing, report.ok) == (1, 0, True)
    report = compare(FILES, [None, None], written, outputs, tasks=2, seconds=1)
    assert (report.changed, report.ok) == (2, False)


def test_a_file_without_a_task_is_not_ok() -> None:
    report = compare(FILES, [ONE, TWO], GOOD, OUTPUTS, tasks=1, seconds=1)
    assert report.ok is False


ENDURED: dict[str, Any] = {
    "stale_writes_refused": 1,
    "relay_kills": 2,
    "in_flight_at_kill": [3, 4],
    "coordinator_kills": 1,
}


def test_every_fault_as_planned_is_ok() -> None:
    report = compare(
        FILES, [ONE, TWO], GOOD, OUTPUTS, tasks=2, seconds=1, suffered=Suffered(**ENDURED)
    )
    assert report.ok
    assert json.loads(report.as_json())["in_flight_at_kill"] == [3, 4]


@pytest.mark.parametrize(
    "otherwise",
    [
        {"stale_writes_refused": 0},
        {"relay_kills": 1, "in_flight_at_kill": [3]},
        {"in_flight_at_kill": [3, 0]},
        {"coordinator_kills": 0},
        {"events_lost": 1},
    ],
    ids=lambda otherwise: next(iter(otherwise)),
)
def test_a_fault_that_did_not_happen_as_planned_is_not_ok(otherwise: dict[str, Any]) -> None:
    suffered = Suffered(**(ENDURED | otherwise))
    report = compare(FILES, [ONE, TWO], GOOD, OUTPUTS, tasks=2, seconds=1, suffered=suffered)
    assert not report.ok


def test_a_file_that_its_task_found_changed_is_counted_and_judged_no_further() -> None:
    written = Written({"/a": [ONE]}, {"task-a": 1})
    report = compare(
        FILES,
        [ONE, TWO],
        written,
        {"/a": OUTPUTS["/a"]},
        tasks=2,
        seconds=1,
        found_changed={"/b"},
    )
    assert (report.changed, report.missing, report.ok) == (1, 0, True)


def listed(path: Path) -> FileIn:
    found = path.stat()
    return FileIn(
        path=encode_path(str(path)),
        size_bytes=found.st_size,
        modified_nanoseconds=found.st_mtime_ns,
    )


def test_a_file_that_is_as_listed_is_read(folder: Path) -> None:
    assert read_unchanged(listed(folder / "empty")).size_bytes == 0


def test_a_file_that_changed_before_it_is_read_fails_for_good(folder: Path) -> None:
    before = listed(folder / "empty")
    (folder / "empty").write_bytes(b"more")
    with pytest.raises(Fail) as caught:
        read_unchanged(before)
    assert caught.value.reason == FILE_CHANGED


def test_a_file_that_became_a_folder_has_changed(folder: Path) -> None:
    before = listed(folder / "empty")
    (folder / "empty").unlink()
    (folder / "empty").mkdir()
    with pytest.raises(Fail) as caught:
        read_unchanged(before)
    assert caught.value.reason == FILE_CHANGED


@pytest.mark.parametrize(("vanishes", "reason"), [(True, FILE_VANISHED), (False, FILE_CHANGED)])
def test_a_file_that_changes_or_vanishes_while_it_is_read_fails_for_good(
    folder: Path, monkeypatch: pytest.MonkeyPatch, vanishes: bool, reason: str
) -> None:
    file = folder / "no-newline"
    before = listed(file)

    def read_while_it_changes(path: str) -> FileOut:
        output = read_file(path)
        if vanishes:
            file.unlink()
        else:
            file.write_bytes(b"other")
        return output

    monkeypatch.setattr("tenure.cli.demo.hasher.read_file", read_while_it_changes)
    with pytest.raises(Fail) as caught:
        read_unchanged(before)
    assert caught.value.reason == reason
