"""Where this repository lies, its source roots, and what git tracks in it."""

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
"""The top folder of the checkout."""

ROOTS = ("contract", "settings", "coordinator", "relay", "executor", "client", "cli")
"""The source roots: each holds one package of the namespace `tenure`, of the same name."""


def package(root: str) -> Path:
    """The folder of the top package of one source root."""
    return REPOSITORY / root / "tenure" / root


def tracked_files() -> list[Path]:
    """All files that git tracks and that are present, as absolute paths."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    paths = (REPOSITORY / name for name in listing.split("\0") if name)
    return [path for path in paths if path.is_file()]
