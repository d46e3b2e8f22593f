"""Compares what is downstream with a direct computation in another process."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenure.cli.demo.declarations import FileOut, encode_path
from tenure.cli.demo.downstream import Row, Written
from tenure.cli.demo.files import FrozenFile
from tenure.cli.exits import CommandError, Exit


@dataclass(frozen=True)
class Report:
    """The last line of the demo.

    ``missing``: files without a row. ``wrong``: files whose row, or whose task's output, is not
    what the direct computation says. ``changed``: files that changed since the list was made; they
    are counted nowhere else. ``effects_twice``: tasks whose row was written more than once.
    """

    files: int
    tasks: int
    delivered: int
    missing: int
    wrong: int
    changed: int
    effects_twice: int
    seconds: float
    ok: bool

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


async def compute_directly(files: Sequence[FrozenFile]) -> list[Row | None]:
    """Figures of each file by a process that knows hashlib and not Tenure; None: it changed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",  # neither our environment nor our path
        str(Path(__file__).with_name("direct.py")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    asked = "".join(
        json.dumps([file.path, file.size_bytes, file.modified_nanoseconds]) + "\n" for file in files
    )
    try:
        output, _ = await process.communicate(asked.encode())
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    answers = [json.loads(line) for line in output.splitlines()]
    if process.returncode != 0 or len(answers) != len(files):
        raise CommandError(
            f"the direct computation ended with status {process.returncode}"
            f" after {len(answers)} of {len(files)} files.",
            code="direct_computation_failed",
        )
    return [_figures(answer) for answer in answers]


def compare(
    files: Sequence[FrozenFile],
    direct: Sequence[Row | None],
    written: Written,
    outputs: Mapping[str, FileOut],
    *,
    tasks: int,
    seconds: float,
) -> Report:
    """Judge everything. ``outputs`` are those of the delivered tasks, by path."""
    missing = wrong = changed = undelivered = 0
    for file, expected in zip(files, direct, strict=True):
        if expected is None:
            changed += 1
            continue
        path = encode_path(file.path)
        rows = written.rows.get(path, [])
        output = outputs.get(path)
        if output is None:
            undelivered += 1
        if not rows:
            missing += 1
        elif set(rows) != {expected} or (output is not None and _row_of(output) != expected):
            wrong += 1
    known = {encode_path(file.path) for file in files}
    wrong += sum(1 for path in written.rows if path not in known)
    return Report(
        files=len(files),
        tasks=tasks,
        delivered=len(outputs),
        missing=missing,
        wrong=wrong,
        changed=changed,
        effects_twice=written.effects_twice,
        seconds=round(seconds, 1),
        ok=(
            tasks == len(files)
            and missing == wrong == undelivered == written.effects_twice == 0
            and changed < len(files)
        ),
    )


def exit_of(report: Report) -> Exit:
    """How the demo ends."""
    return Exit.DONE if report.ok else Exit.REFUSED


def _figures(answer: Mapping[str, Any]) -> Row | None:
    if answer["changed"]:
        return None
    return Row(answer["sha256"], answer["size_bytes"], answer["lines"])


def _row_of(output: FileOut) -> Row:
    return Row(output.sha256, output.size_bytes, output.lines)
