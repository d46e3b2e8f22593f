"""The executors and consumers that people name as MODULE:NAME."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from types import FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.cli.exits import SetupError, UsageError
from tenure.contract.errors import TenureError

if TYPE_CHECKING:
    from tenure.executor import Executor
    from tenure.executor.consumer import EventConsumer

LoadedT = TypeVar("LoadedT")


def check_application(path: str) -> None:
    """See that ``module:name`` is one and the module is there, without running it.

    Raises UsageError.
    """
    module_name, _ = _parts(path)
    _look_in_working_directory()
    try:
        found = importlib.util.find_spec(module_name)
    except Exception as error:  # of a package above it: its own process says how
        if missing := _missing(module_name, error):
            raise _no_module(missing) from error
    else:
        if found is None:
            raise _no_module(module_name)


def load_consumer(path: str) -> "EventConsumer":
    """The consumer of events that ``module:name`` names. Raises as ``load_application``."""
    from tenure.executor.consumer import EventConsumer

    return _load(path, EventConsumer, "consumer = EventConsumer(…)")


def load_application(path: str) -> "Executor":
    """The executor that ``module:name`` names, imported from the working directory or the path.

    Raises UsageError when there is none, DeclarationError when it has no handlers, SetupError
    (``application_broken``) when the module itself fails; its traceback is printed. Errors of
    Tenure, like a wrong declaration, are raised as they are.
    """
    from tenure.executor import Executor

    found = _load(path, Executor, "app = Executor(…)")
    found.refuse_empty()
    return found


def load_function(path: str) -> Callable[..., Any]:
    """What ``module:name`` names, which can be called. Raises as ``load_application``."""
    return _load(path, FunctionType, "def …")


def _load(path: str, kind: type[LoadedT], written: str) -> LoadedT:
    module_name, name = _parts(path)
    _look_in_working_directory()
    try:
        module = importlib.import_module(module_name)
    except TenureError:
        raise
    except Exception as error:
        if missing := _missing(module_name, error):
            raise _no_module(missing) from error
        traceback.print_exception(type(error), error, _of_the_module(error.__traceback__))
        raise SetupError(
            f"importing {module_name} failed: {type(error).__name__}: {error}",
            code="application_broken",
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, kind):
        raise UsageError(
            f"{path!r} is no {kind.__name__}.", next_step=_which_are(module, kind, written)
        )
    return found


def _parts(path: str) -> tuple[str, str]:
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name.isidentifier():
        raise UsageError(
            f"{path!r} names no object of a module.", next_step="Give MODULE:NAME, like jobs:app."
        )
    if module_name.endswith(".py") or "/" in module_name:
        raise UsageError(
            f"{module_name!r} is a file.",
            next_step=f"Name its module: {os.path.basename(module_name).removesuffix('.py')}:{name}"
            " in its folder.",
        )
    return module_name, name


def _look_in_working_directory() -> None:
    here = os.getcwd()
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)


def _missing(module_name: str, error: Exception) -> str | None:
    """The module, or the package above it, that is not there; None when the error is another."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return name if name is not None and f"{module_name}.".startswith(f"{name}.") else None


def _no_module(name: str) -> UsageError:
    return UsageError(f"there is no module {name!r} in {os.getcwd()} or on Python's path.")


def _which_are(module: ModuleType, kind: type, written: str) -> str:
    found = [name for name, value in vars(module).items() if isinstance(value, kind)]
    if not found:
        return f"{module.__name__} holds none: write {written} there."
    return f"There is {', '.join(f'{module.__name__}:{name}' for name in found)}."


def _of_the_module(found: TracebackType | None) -> TracebackType | None:
    """The traceback without the way into the module: this file and Python's import system."""
    while found is not None and (
        found.tb_frame.f_code.co_filename == __file__
        or "importlib" in found.tb_frame.f_code.co_filename
    ):
        found = found.tb_next
    return found
