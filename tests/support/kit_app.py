"""The executor that the testing kit is tried with, and a receiver that compares fencing tokens."""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tenure.contract.ids import TaskId
from tenure.executor import Context, Executor, Fail, Requirements, Retry, StaleToken, TaskType


class Order(BaseModel):
    """Input of every type: ``fate`` says what becomes of it, ``folder`` is where handlers in
    processes of their own put their parcels: a file, named by the token."""

    number: int
    fate: str = ""
    folder: str = ""


class Shipped(BaseModel):
    """Output of every type: which attempt it comes from."""

    number: int
    token: int


@dataclass
class Warehouse:
    """A receiver in the test's own process. ``parcels``: token of each write that it let through,
    ``read_by``: of each attempt that has read. It is also a guard: a fence of a later attempt
    refuses an earlier one."""

    parcels: list[int] = field(default_factory=list)
    read_by: list[int] = field(default_factory=list)
    _fences: dict[TaskId, int] = field(default_factory=dict)

    async def raise_fence(self, context: Context[Any]) -> None:
        """Implements Guard."""
        self._check(context)
        self._fences[context.task_id] = context.fencing_token

    def send(self, context: Context[Any]) -> None:
        """Write, where the token is good."""
        context.check_authority()
        self._check(context)
        self.parcels.append(context.fencing_token)

    def send_unseen(self, context: Context[Any]) -> None:
        """Write, whatever the token is."""
        self.parcels.append(context.fencing_token)

    def _check(self, context: Context[Any]) -> None:
        seen = self._fences.get(context.task_id, 0)
        if context.fencing_token < seen:
            raise StaleToken(f"token {seen} was seen", seen_token=seen)


SHIP = TaskType("ship", input=Order, output=Shipped)
SHIP_IN_A_THREAD = TaskType("ship-in-a-thread", input=Order, output=Shipped)
SHIP_UNGUARDED = TaskType("ship-unguarded", input=Order, output=Shipped)
SHIP_APART = TaskType("ship-apart", input=Order, output=Shipped)
SHIP_BY_PROGRAM = TaskType("ship-by-program", input=Order, output=Shipped)
app = Executor("shipper", version="1")
PATIENCE_SECONDS = 120.0
"""For what runs in processes of its own: a busy machine starts them slowly."""


def _outcome(input: Order, context: Context[Any]) -> Shipped:
    if input.fate == "fails":
        raise Fail("no-such-order", "there is none")
    if input.fate == "comes back" and context.ordinal == 1:
        raise Retry("the ramp is taken", after=600)
    if input.fate == "breaks":
        raise ValueError("broken")
    return Shipped(number=input.number, token=context.fencing_token)


@app.task(
    SHIP,
    effects="guarded",
    guards=lambda warehouse: [warehouse],
    requirements=Requirements(locations=("harbour",), networks=("rail",), labels={"crane": "yes"}),
)
async def ship(input: Order, context: Context[Warehouse]) -> Shipped:
    """Awaited, through a guard."""
    context.resources.read_by.append(context.fencing_token)
    async with context.side_effect("parcel"):
        context.resources.send(context)
    return _outcome(input, context)


@app.task(SHIP_IN_A_THREAD, effects="guarded", guards=lambda warehouse: [warehouse])
def ship_in_a_thread(input: Order, context: Context[Warehouse]) -> Shipped:
    """The same in a thread."""
    with context.side_effect("parcel"):
        context.resources.send(context)
    return _outcome(input, context)


@app.task(SHIP_UNGUARDED, effects="idempotent", max_attempts=2)
async def ship_unguarded(input: Order, context: Context[Warehouse]) -> Shipped:
    """A handler whose receiver checks nothing."""
    context.resources.send_unseen(context)
    return _outcome(input, context)


@app.task(SHIP_APART, effects="none", runs_in="process", max_attempts=2)
def ship_apart(input: Order, context: Context[None]) -> Shipped:
    """In a process of its own, to a folder that refuses a token which is behind."""
    if input.folder:
        parcels = parcels_in(Path(input.folder))
        if parcels and parcels[-1] > context.fencing_token:
            raise StaleToken(f"token {parcels[-1]} was seen", seen_token=parcels[-1])
        Path(input.folder, str(context.fencing_token)).touch()
    return _outcome(input, context)


def parcels_in(folder: Path) -> list[int]:
    """Token of each write into a folder."""
    return sorted(int(file.name) for file in folder.iterdir())


_PROGRAM = """
read -r order
folder=$(printf %s "$order" | sed 's/.*"folder":"\\([^"]*\\)".*/\\1/')
touch "$folder/$TENURE_FENCING_TOKEN"
printf '{"number":17,"token":%s}' "$TENURE_FENCING_TOKEN"
"""
_SHELL = Path("/bin/sh")
app.command(
    SHIP_BY_PROGRAM,
    str(_SHELL),
    "-c",
    _PROGRAM,
    digest=sha256(_SHELL.read_bytes()).hexdigest(),
    effects="idempotent",
)
