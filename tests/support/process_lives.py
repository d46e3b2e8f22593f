"""Whether a process that is not ours to wait for still runs."""

from pathlib import Path


def lives(pid: int) -> bool:
    """A process that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or while read
        return False
