"""The machine: what it is, who uses its processors, and what processes hold in memory."""

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_MEBIBYTE: Final = 1024 * 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and of all below it, ended children of its own included.

    Raises psutil.NoSuchProcess when it has ended.
    """
    top = psutil.Process(pid)
    times = top.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in top.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # its time goes to its parent, for the next look
            times = child.cpu_times()
            total += times.user + times.system
    return float(total)


def all_cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """``cpu_seconds`` of each."""
    return {name: cpu_seconds(pid) for name, pid in pids.items()}


def own_cpu_seconds() -> float:
    """Processor time of this process alone: the sender."""
    times = psutil.Process().cpu_times()
    return times.user + times.system


def busy_seconds() -> float:
    """Processor time of the whole machine that was not idle."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def resident_mebibytes(pid: int) -> float:
    """What a process has resident now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / _MEBIBYTE


def most_resident_mebibytes(pid: int) -> float:
    """The most that a process has had resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def describe(servers: str) -> str:
    """One line: what this runs on, and how busy it was before."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Linux {platform.release()}, {servers},"
        f" Python {platform.python_version()}, everything durable; load average before: {load}"
    )
