"""Which program this process runs, down to the bytes (OPS-02): what a profile that matches exactly
is compared by, and what an operator withdraws.

The digest covers the Python files of the packages that the handlers come from, so it is the same on
every machine and changes with every line. Who builds images passes the image's own digest instead
(``TENURE_BUILD_DIGEST``). What is installed beside the program has a digest of its own.
"""

import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from tenure.contract.reports import Executable
from tenure.executor.app import Executor


def executable_of_app(app: Executor, *, build_digest: str | None = None) -> Executable | None:
    """As ``executable_of``, of everything that ``app`` declares."""
    declared = app.handlers.values()
    return executable_of(
        app.name,
        app.version,
        [each.handler for each in declared if each.command is None],
        commands=[repr(each.command) for each in declared if each.command is not None],
        build_digest=build_digest,
    )


def executable_of(
    name: str,
    version: str,
    handlers: Iterable[Callable[..., Any]],
    *,
    commands: Iterable[str] = (),
    build_digest: str | None = None,
) -> Executable | None:
    """The program whose handlers and commands these are; None where no files are to be found (a
    session in a terminal): it is unknown then, and nothing that has to match exactly is given to
    it."""
    digest = build_digest or _digest_of_files(handlers, sorted(commands))
    if digest is None:
        return None
    return Executable(
        name=name, version=version, digest=digest, inventory_digest=inventory_digest()
    )


@cache
def inventory_digest() -> str:
    """SHA-256 over the Python version and the names and versions of all installed distributions."""
    installed = {
        f"{found.metadata['Name'].lower()}=={found.version}" for found in metadata.distributions()
    }
    lines = [f"python=={platform.python_version()}", *sorted(installed)]
    return sha256("\n".join(lines).encode()).hexdigest()


def _digest_of_files(handlers: Iterable[Callable[..., Any]], commands: Sequence[str]) -> str | None:
    files: dict[str, Path] = {}
    for handler in handlers:
        module = sys.modules.get(getattr(handler, "__module__", ""))
        found = {} if module is None else _files_of(module)
        if not found:
            return None
        files |= found
    digest = sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    for command in commands:
        digest.update(f"{command}\n".encode())
    return digest.hexdigest() if files or commands else None


def _files_of(module: ModuleType) -> dict[str, Path]:
    """The module's file, or all Python files of the outermost regular package that it is in, by
    names that are the same on every machine."""
    parts = module.__name__.split(".")
    for length in range(1, len(parts)):
        package = sys.modules.get(".".join(parts[:length]))
        if package is None or getattr(package, "__file__", None) is None:
            continue  # a namespace package: others have a share in it
        root = Path(str(package.__file__)).parent
        return {
            f"{package.__name__}/{path.relative_to(root).as_posix()}": path
            for path in root.rglob("*.py")
        }
    file = getattr(module, "__file__", None)
    return {} if file is None else {Path(file).name: Path(file)}


def place_of(app: Executor) -> str | None:
    """Where another process finds the executor, ``module:name``; None where no module that can be
    imported holds it."""
    for module_name, module in list(sys.modules.items()):
        if module_name == "__main__" or getattr(module, "__file__", None) is None:
            continue
        for name, value in list(vars(module).items()):
            if value is app:
                return f"{module_name}:{name}"
    return None
