"""What people read of the limits that an output was made under."""

from tenure.contract.isolation import Enforcement


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
