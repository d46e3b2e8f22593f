"""Where processes of handlers run, and as whom."""

import pwd
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Account:
    """Whom processes run as."""

    name: str
    uid: int
    gid: int

    @classmethod
    def named(cls, name: str) -> "Account":
        """Raises KeyError for an account that does not exist."""
        found = pwd.getpwnam(name)
        return cls(name, found.pw_uid, found.pw_gid)


@dataclass(frozen=True, slots=True)
class Place:
    """Where processes run. ``scratch``: in which folder each gets its own; None: the system's.
    ``cgroup``: a folder of control groups that was delegated to the executor."""

    account: Account | None = None
    scratch: Path | None = None
    cgroup: Path | None = None
