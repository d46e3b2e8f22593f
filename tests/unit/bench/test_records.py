"""What the benchmark's handlers write is what its reader reads."""

import time
from pathlib import Path

import pytest

from bench.records import FILE_VARIABLE, Reader, Writer


def test_a_reader_sees_what_came_since_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "records"
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    writer = Writer()
    writer.write(1)
    reader = Reader(file)
    assert reader.count() == 0
    before = time.monotonic_ns()
    writer.write(2)
    writer.write(3)
    assert reader.count() == 2
    assert [sent for sent, _ in reader.records()] == [2, 3]
    assert all(before <= handled <= time.monotonic_ns() for _, handled in reader.records())
