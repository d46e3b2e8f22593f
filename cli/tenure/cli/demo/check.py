"""Compares what is downstream with a direct computation in another process."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenure.cli.demo.declarations import FileOut, encode_path
from tenure.cli.demo.downstream import Row, Written
from tenure.cli.demo.files import FrozenFile
from tenure.cli.demo.suffered import Suffered
from tenure.cli.exits import CommandError, Exit


@dataclass(frozen=True)
class Report:
    """The last line of the demo.

    ``missing``: files without a row. ``wrong``: files whose row, or whose task's output, is not
    what the direct computation says. ``changed``: files that changed or went since the list was
    made; they are counted nowhere else. ``effects_twice``: tasks whose row was written more than
    once, by the audit table of the downstream. What follows was done to the stack meanwhile
    (``tenure.cli.demo.faults``): ``stale_writes_refused`` counts only refusals by the downstream's
    own code for a stale token, ``late_receipts`` deliveries that the coordinator recorded and did
    not admit, ``duplicates_published`` what an independent consumer saw more than once,
    ``duplicates_ignored`` assignments that executors knew already. ``invariants_broken``: what
    ``tenure verify`` found in the stack's database at the end.
    """

    files: int
    tasks: int
    delivered: int
    missing: int
    wrong: int
    changed: int
    effects_twice: int
    stale_writes_refused: int
    late_receipts: int
    relay_kills: int
    in_flight_at_kill: Sequence[int]
    coordinator_kills: int
    duplicates_published: int
    duplicates_ignored: int
    invariants_broken: Sequence[str]
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
    found_changed: Set[str] = frozenset(),
    suffered: Suffered | None = None,
    invariants_broken: Sequence[str] = (),
) -> Report:
    """Judge everything. ``outputs`` are those of the delivered tasks, by path; ``found_changed``
    the paths whose tasks failed for that reason; ``suffered`` is None where no faults were asked
    for; ``invariants_broken`` are names."""
    missing = wrong = changed = undelivered = 0
    for file, expected in zip(files, direct, strict=True):
        path = encode_path(file.path)
        if expected is None or path in found_changed:
            changed += 1
            continue
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
    endured = suffered or Suffered()
    return Report(
        files=len(files),
        tasks=tasks,
        delivered=len(outputs),
        missing=missing,
        wrong=wrong,
        changed=changed,
        effects_twice=written.effects_twice,
        stale_writes_refused=endured.stale_writes_refused,
        late_receipts=endured.late_receipts,
        relay_kills=endured.relay_kills,
        in_flight_at_kill=tuple(endured.in_flight_at_kill),
        coordinator_kills=endured.coordinator_kills,
        duplicates_published=endured.duplicates_published,
        duplicates_ignored=endured.duplicates_ignored,
        invariants_broken=tuple(invariants_broken),
        seconds=round(seconds, 1),
        ok=(
            tasks == len(files)
            and missing == wrong == undelivered == written.effects_twice == 0
            and changed < len(files)
            and not invariants_broken
            and (suffered is None or suffered.as_planned)
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
