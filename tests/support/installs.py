"""Tenure as others install it: a wheel of this checkout, in an environment of its own."""

import subprocess
import sys
from pathlib import Path

from tests.support.repository import REPOSITORY

UV = Path(sys.executable).parent / "uv"


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built into ``folder`` by the locked build backend."""
    locked = ["--offline", "--no-build-isolation", "--python", sys.executable]
    _run(UV, "build", "--wheel", "--quiet", *locked, "--out-dir", folder, REPOSITORY)
    (wheel,) = folder.glob("*.whl")
    return wheel


def fresh_environment(folder: Path, wheel: Path, extra: str) -> Path:
    """A new environment with the wheel and one of its extras, in the locked versions; its Python.

    What this checkout was installed from is usually still in uv's cache; the rest is fetched.
    """
    python = folder / "bin" / "python"
    _run(UV, "venv", "--quiet", "--offline", "--python", sys.executable, folder)
    wanted = f"tenure[{extra}] @ {wheel.as_uri()}"
    locked = ["--constraint", str(REPOSITORY / "requirements" / "dev.txt")]
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", python, *locked]
    install.append(wanted)
    try:
        _run(*install, "--offline")
    except subprocess.CalledProcessError:
        _run(*install)
    return python


def distributions(python: Path) -> set[str]:
    """The names of what is installed there."""
    listed = _run(UV, "pip", "list", "--quiet", "--format", "freeze", "--python", python)
    return {line.partition("==")[0].partition(" @")[0] for line in listed.splitlines()}


def _run(*command: str | Path) -> str:
    """What the command prints. Raises CalledProcessError, with what it said in the notes."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        error.add_note(done.stderr)
        raise error
    return done.stdout
