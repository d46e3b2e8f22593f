"""The folder of one private server: a lock, a password, and what the next start must find."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path

from tenure.cli.local.errors import LocalStateInUseError, LocalStateUnusableError


class StateDirectory:
    """A folder that one process at a time uses.

    Layout: ``lock`` (flock, holds the pid of the user), ``server.json`` (remembered ports),
    and files named by ``secret``. Nothing in it is readable by other accounts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    def acquire(self) -> None:
        """Make the folder where needed and lock it. Does nothing when this object holds the lock.

        Raises LocalStateInUseError and LocalStateUnusableError.
        """
        if self._lock is not None:
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LocalStateUnusableError(
                f"The state directory {self.path} cannot be used: {error.strerror}.",
                advice="Name a folder that this account may write to.",
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            raise LocalStateInUseError(
                f"The state directory {self.path} is in use by process {holder or '(unknown)'}.",
                advice="Stop that process, or name another state directory.",
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def release(self) -> None:
        """Unlock the folder. Releasing twice is harmless."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def secret(self, name: str) -> str:
        """A random password, made at the first call and kept in a file only its owner may read."""
        path = self.path / name
        if not path.exists():
            self.write(path, secrets.token_urlsafe(24))
        return path.read_text().strip()

    def remembered_ports(self) -> dict[str, int]:
        """The ports of the last start by name; empty when there was none."""
        try:
            stored = json.loads((self.path / "server.json").read_text())
        except (OSError, ValueError):
            return {}  # a convenience only: without it other ports are chosen
        ports = stored.get("ports") if isinstance(stored, dict) else None
        if not isinstance(ports, dict):
            return {}
        return {str(name): port for name, port in ports.items() if isinstance(port, int)}

    def remember_ports(self, ports: dict[str, int]) -> None:
        """Keep the ports for the next start."""
        self.write(self.path / "server.json", json.dumps({"ports": ports}))

    def write(self, path: Path, text: str) -> None:
        """Replace a file in one step, mode 0600: a killed writer leaves the old or the new one."""
        fresh = path.with_name(path.name + ".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        os.replace(fresh, path)
