"""``tenure coordinator``, ``tenure relay``, ``tenure executor``: one process until SIGTERM."""

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tenure.cli.exits import SetupError, UsageError, needs
from tenure.cli.settings import Config, completed, given
from tenure.contract.errors import TenureError

if TYPE_CHECKING:
    from tenure.executor import Executor


def coordinator(*, config: Config = None) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C; settings come from TENURE_* in the environment or
    a configuration file.

    Any number of them may work over one database.
    """
    with needs("coordinator"):
        from tenure.coordinator.app import run
        from tenure.coordinator.config import load_settings

    _work(run(load_settings(**given(config=config))))


def relay(*, config: Config = None) -> None:
    """Run a relay until SIGTERM or Ctrl-C; settings come from TENURE_* in the environment or a
    configuration file.

    Any number of them may work over one database; they share the work.
    """
    with needs("relay"):
        from tenure.relay.app import run
        from tenure.relay.config import load_settings

    _work(run(load_settings(**given(config=config))))


def executor(
    application: Annotated[
        str, Parameter(name="MODULE:NAME", help="Where the executor is, like jobs:app.")
    ],
    /,
    *,
    slots: Annotated[
        int | None, Parameter(help="Tasks at once. [default: TENURE_SLOTS or one a core]")
    ] = None,
    node: Annotated[
        str | None, Parameter(help="Name of this node. [default: TENURE_NODE or a made-up one]")
    ] = None,
    config: Config = None,
) -> None:
    """Run an executor until SIGTERM or Ctrl-C; settings come from TENURE_* in the environment or a
    configuration file.

    Where none of TENURE_URL, TENURE_TOKEN and TENURE_BROKER_URL is set, it joins the local stack
    that runs in the working directory. The first signal drains: nothing new is taken, what runs
    goes on. A second one hurries.
    """
    with needs("executor"):
        from tenure.executor.config import load_settings
        from tenure.executor.runner import run

    found = load_application(application)
    values, _ = completed("executor", given(slots=slots, node=node, config=config))
    _work(run(found, load_settings(**values)))


def _work(process: Coroutine[Any, Any, None]) -> None:
    """Run a process on uvloop, which takes a fraction of the time of asyncio's own event loop; it
    does not exist for every platform."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(process)
    else:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(process)


def load_application(path: str) -> "Executor":
    """The executor that ``module:name`` names, imported from the working directory or the path.

    Raises UsageError when there is none, SetupError (``application_broken``) when the module itself
    fails; its traceback is printed. Errors of Tenure, like a wrong declaration, are raised as they
    are.
    """
    from tenure.executor import Executor

    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        raise UsageError(
            f"{path!r} names no executor.", next_step="Give MODULE:NAME, like jobs:app."
        )
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except TenureError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise UsageError(
                f"there is no module {missing!r} in {os.getcwd()} or on Python's path."
            ) from error
        traceback.print_exception(error)
        raise SetupError(
            f"importing {module_name} failed: {type(error).__name__}: {error}",
            code="application_broken",
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, Executor):
        raise UsageError(f"{path!r} is no Executor.", next_step="Name a variable that holds one.")
    return found
