"""How many processor cores this process may use: what it is bound to, and what its control group
grants. A container that is given two cores of sixty-four has two slots, and not sixty-four."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def available_cores(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Whole cores, at least one; a part of a core counts as one."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [quota for quota in (_second(cgroups, own), _first(cgroups)) if quota is not None]
    return max(1, min([bound or 1, *quotas]))


def _second(cgroups: Path, own: Path) -> int | None:
    """The least quota of the process's group and those above it (version 2)."""
    quotas = []
    with suppress(OSError, ValueError, StopIteration):
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        folder = cgroups / path.strip("/")
        while True:
            with suppress(OSError, ValueError):
                quota, period = (folder / "cpu.max").read_text().split()
                quotas.append(-(-int(quota) // int(period)))  # ``max`` is no number
            if folder == cgroups:
                break
            folder = folder.parent
    return min(quotas, default=None)


def _first(cgroups: Path) -> int | None:
    """The quota that version 1 shows in a container."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota = int((cgroups / "cpu" / "cpu.cfs_quota_us").read_text())
        period = int((cgroups / "cpu" / "cpu.cfs_period_us").read_text())
        if quota > 0:
            return -(-quota // period)
    return None
