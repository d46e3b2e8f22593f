"""Under which account PostgreSQL runs: it refuses to run as root.

* Not root: as we are.
* Root, and user namespaces allowed: as root mapped to ``nobody`` in a namespace of its own. Files
  stay root's, so nothing has to be copied or handed over.
* Root otherwise (a container with the usual system call filter): as ``nobody``, who must own the
  data and be able to reach it and the binaries.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.cli.local.errors import LocalAccountUnavailableError


@dataclass(frozen=True)
class ServerAccount:
    """``prefix`` starts a command under the account; ``owner`` (uid, gid) must own its files."""

    prefix: tuple[str, ...]
    owner: tuple[int, int]

    @property
    def is_another(self) -> bool:
        """True when files have to be handed over to the account."""
        return self.owner[0] != os.geteuid()


def own_account() -> ServerAccount:
    """The account of this process."""
    return ServerAccount(prefix=(), owner=(os.geteuid(), os.getegid()))


def mapped_account() -> ServerAccount:
    """Root, seen as ``nobody`` inside a user namespace.

    The mapped uid must have a passwd entry, or PostgreSQL says "could not look up effective user".
    """
    nobody = pwd.getpwnam("nobody")
    return ServerAccount(
        prefix=(
            "unshare",
            "--user",
            f"--map-user={nobody.pw_uid}",
            f"--map-group={nobody.pw_gid}",
        ),
        owner=(os.geteuid(), os.getegid()),
    )


def nobody_account() -> ServerAccount:
    """The account ``nobody`` itself."""
    nobody = pwd.getpwnam("nobody")
    group = grp.getgrgid(nobody.pw_gid).gr_name
    return ServerAccount(
        prefix=("setpriv", "--reuid=nobody", f"--regid={group}", "--clear-groups"),
        owner=(nobody.pw_uid, nobody.pw_gid),
    )


def works(account: ServerAccount) -> bool:
    """True when this machine lets us start a command under the account."""
    try:
        probe = subprocess.run([*account.prefix, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return probe.returncode == 0


@functools.cache
def choose_account() -> ServerAccount:
    """The first of the three ways that works here.

    Raises LocalAccountUnavailableError when this process is root and no way works.
    """
    if os.geteuid() != 0:
        return own_account()
    for make in (mapped_account, nobody_account):
        try:
            account = make()
        except KeyError:
            continue  # no such account here
        if works(account):
            return account
    raise LocalAccountUnavailableError(
        "PostgreSQL does not run as root, and neither `unshare --user` nor `setpriv` works here.",
        advice="Install util-linux, or run this command under an ordinary account.",
    )


def hand_over(paths: Sequence[Path], account: ServerAccount) -> None:
    """Make the account the owner of these paths and of everything below them."""
    uid, gid = account.owner
    for top in paths:
        if top.lstat().st_uid == uid:
            continue
        os.chown(top, uid, gid, follow_symlinks=False)
        for folder, folders, files in os.walk(top):
            for name in (*folders, *files):
                os.chown(Path(folder, name), uid, gid, follow_symlinks=False)
