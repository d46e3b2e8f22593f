"""``tenure coordinator``, ``tenure relay``, ``tenure executor``: one process until SIGTERM."""

import asyncio
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tenure.cli.applications import load_application
from tenure.cli.exits import UsageError, needs
from tenure.cli.process_exit import Leaving
from tenure.cli.settings import Config, completed, given

if TYPE_CHECKING:
    from tenure.executor import Executor
    from tenure.executor.config import ExecutorSettings


def coordinator(*, config: Config = None) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C; settings come from TENURE_* in the environment or
    a configuration file.

    Any number of them may work over one database.
    """
    with needs("coordinator"):
        from tenure.coordinator.app import run
        from tenure.coordinator.config import load_settings

    work(run(load_settings(**given(config=config))))


def relay(*, config: Config = None) -> None:
    """Run a relay until SIGTERM or Ctrl-C; settings come from TENURE_* in the environment or a
    configuration file.

    Any number of them may work over one database; they share the work.
    """
    with needs("relay"):
        from tenure.relay.app import run
        from tenure.relay.config import load_settings

    work(run(load_settings(**given(config=config))))


def executor(
    application: Annotated[
        str, Parameter(name="MODULE:NAME", help="Where the executor is, like jobs:app.")
    ],
    /,
    *,
    slots: Annotated[
        int | Literal["auto"] | None,
        Parameter(help="Tasks at once; auto: one a core. [default: TENURE_SLOTS or auto]"),
    ] = None,
    node: Annotated[
        str | None, Parameter(help="Name of this node. [default: TENURE_NODE or a made-up one]")
    ] = None,
    concurrency: Annotated[
        tuple[str, ...],
        Parameter(help="So many tasks of a type at once (TYPE=N); may be given several times."),
    ] = (),
    no_broker: Annotated[
        bool, Parameter(negative="", help="Ask the coordinator for work; no broker is needed.")
    ] = False,
    reload: Annotated[
        bool,
        Parameter(negative="", help="Begin anew whenever a source has changed, while developing."),
    ] = False,
    config: Config = None,
) -> None:
    """Run an executor until SIGTERM or Ctrl-C; settings come from TENURE_* in the environment or a
    configuration file.

    Where none of TENURE_URL, TENURE_TOKEN and TENURE_BROKER_URL is set, it joins the local stack
    that runs in the working directory. The first signal drains: nothing new is taken, what runs
    goes on. A second one hurries.
    """
    if isinstance(slots, int) and slots < 1:
        raise UsageError("--slots: at least 1.")
    if reload:
        words = _words(slots, node, concurrency, no_broker, config)
        with needs("reload"):
            from tenure.cli.reload import Reloading
        asyncio.run(Reloading(application, words).run())
        return
    with needs("executor"):
        from tenure.executor.errors import LifespanFailed
        from tenure.executor.runner import run

    found, settings = prepared(
        application,
        given(
            slots=slots,
            node=node,
            concurrency=",".join(concurrency) or None,
            no_broker=no_broker or None,
            config=config,
        ),
    )
    try:
        work_of_others(run(found, settings))
    except LifespanFailed as error:
        traceback.print_exception(error.__cause__)  # the way to the line that failed
        raise


def prepared(application: str, values: dict[str, Any]) -> "tuple[Executor, ExecutorSettings]":
    """The executor that ``MODULE:NAME`` names and its settings, fit for each other: everything that
    a start needs before it needs a server. ``values``: settings that were given as options.

    Raises UsageError, SetupError, MissingExtra, SettingsInvalid, DeclarationError.
    """
    with needs("executor"):
        from tenure.executor.config import load_settings
        from tenure.executor.runner import check

    found = load_application(application)
    values, _ = completed("executor", values)
    settings = load_settings(**values)
    check(found, settings)
    return found, settings


def _words(
    slots: int | str | None,
    node: str | None,
    concurrency: tuple[str, ...],
    no_broker: bool,
    config: Path | None,
) -> list[str]:
    """The options of ``tenure executor`` as the words that they were."""
    given_options = [
        ("--slots", slots), ("--node", node), ("--config", config),
        *(("--concurrency", one) for one in concurrency),
    ]  # fmt: skip
    words = [
        str(word) for name, value in given_options if value is not None for word in (name, value)
    ]
    return [*words, "--no-broker"] if no_broker else words


def work(process: Coroutine[Any, Any, None]) -> None:
    """Run a process on uvloop, which takes a fraction of the time of asyncio's own event loop; it
    does not exist for every platform."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(process)
    else:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(process)


def work_of_others(process: Coroutine[Any, Any, None]) -> None:
    """As ``work``, for a process that runs handlers: what they leave running ends with it."""
    leaving = Leaving()
    try:
        work(leaving.process(process))
    finally:
        leaving.loop_closed()
