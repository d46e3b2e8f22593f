"""What people read of what attempts say of themselves: their limits, and how far they are."""

from tenure.cli.output import ago
from tenure.contract.isolation import Enforcement
from tenure.contract.progress import ProgressView


def held_to(enforced: Enforcement | None) -> str | None:
    """The limits of the process that made an output, on one line; None where it had none."""
    if enforced is None:
        return None
    said: list[str] = [enforced.runs_in]
    for name, unit in (
        ("memory_bytes", "B memory"),
        ("cpu_seconds", "s CPU"),
        ("wall_seconds", "s"),
        ("open_files", "open files"),
        ("file_bytes", "B a file"),
    ):
        value = getattr(enforced, name)
        if value is not None:
            said.append(f"{value:g} {unit}" if isinstance(value, float) else f"{value} {unit}")
    if enforced.network == "none":
        said.append("no network")
    if enforced.user is not None:
        said.append(f"as {enforced.user}")
    if enforced.cgroup:
        said.append("cgroup")
    said += [f"not: {note}" for note in enforced.not_enforced]
    return ", ".join(said)


def progress_of(progress: ProgressView | None) -> str | None:
    """How far the work is, on one line; None where nobody has said."""
    if progress is None:
        return None
    said = []
    if progress.fraction is not None:
        said.append(f"{progress.fraction:.0%}")
    if progress.message:
        said.append(progress.message)
    if progress.checkpoint_at is not None:
        said.append(f"checkpoint {ago(progress.checkpoint_at)}")
    return f"{', '.join(said)}, said {ago(progress.at)}"
