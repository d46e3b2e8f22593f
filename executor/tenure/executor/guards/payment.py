"""Payments, and whatever else must not happen twice at a gateway that is not ours (LEASE-10).

The order is the protection: our identifier first, written down durably; then the gateway; and
before anything is sent a second time, the question what became of it. The identifier is that of the
effect, the same in every attempt of the task.

    payments = PaymentGuard(gateway, record, receipt=Charge)
    charge = await payments.pay(context, operation="charge", request=order)

A gateway is two functions, ``query`` and ``act``. A record is where identifiers are written down:
``SqlitePayments`` on one machine, ``PostgresPayments`` (``guards.payment_postgres``) for all.
"""

import asyncio
import hashlib
import json
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import BaseModel

from tenure.executor.context import Context
from tenure.executor.core.paying import Asked, Known, Step, next_step
from tenure.executor.errors import (
    AuthorityOver,
    CommitUnknown,
    EffectConflict,
    ExecutorError,
    GuardUnavailable,
    OutcomeUnknown,
)

RequestT = TypeVar("RequestT", bound=BaseModel)
RequestT_contra = TypeVar("RequestT_contra", bound=BaseModel, contravariant=True)
ReceiptT = TypeVar("ReceiptT", bound=BaseModel)
ReceiptT_co = TypeVar("ReceiptT_co", bound=BaseModel, covariant=True)
_FIRST_WAIT_SECONDS: Final = 0.2
_LONGEST_WAIT_SECONDS: Final = 5.0


class Declined(ExecutorError):
    """Raised by ``Gateway.act``: the gateway has refused, and certainly done nothing. ``reason`` is
    a stable word of the application."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason, code="declined")
        self.reason = reason


class Gateway(Protocol[RequestT_contra, ReceiptT_co]):
    """The other side, as an application writes it down."""

    async def query(self, payment_id: str) -> ReceiptT_co | None:
        """What became of our identifier; None when the gateway has never seen it. Anything that it
        raises counts as no answer."""

    async def act(self, payment_id: str, request: RequestT_contra) -> ReceiptT_co:
        """Do it, under our identifier. Raises Declined when it was certainly not done; anything
        else that it raises leaves the outcome unknown, and ``query`` is asked."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a record has of a payment. ``digest`` is of the request, ``content`` the receipt as JSON
    or the reason it was declined for."""

    known: Known
    digest: str
    content: str = ""


class PaymentRecord(Protocol):
    """Where identifiers are written down. Each method is durable when it returns, and raises
    GuardUnavailable where nothing was done.

    ``shared``: all executors of the task type write to it, so what is not in it was never intended.
    """

    @property
    def shared(self) -> bool:
        """See above."""

    async def intend(
        self, context: Context[Any], operation: str, payment_id: str, digest: str
    ) -> Entry:
        """Write the payment down unless it is there; what was there before, NEW when nothing was.
        May raise StaleToken and AuthorityOver."""

    async def settle(
        self, context: Context[Any], operation: str, payment_id: str, entry: Entry
    ) -> None:
        """Write down how it ended. May raise StaleToken and AuthorityOver: then a later attempt
        asks the gateway."""


class PaymentGuard(Generic[RequestT, ReceiptT]):
    """Over a gateway and a record. ``receipt`` is the model of what the gateway answers.

    ``gateway_deduplicates``: whether the gateway takes an identifier once, however often it is
    sent. Where it does not, a payment that it has "never seen" may still be on its way, and is left
    to a person (OutcomeUnknown).
    """

    def __init__(
        self,
        gateway: Gateway[RequestT, ReceiptT],
        record: PaymentRecord,
        *,
        receipt: type[ReceiptT],
        gateway_deduplicates: bool,
    ) -> None:
        self._gateway = gateway
        self._record = record
        self._receipt = receipt
        self._gateway_deduplicates = gateway_deduplicates

    async def pay(
        self, context: Context[Any], *, operation: str, request: RequestT, key: str = ""
    ) -> ReceiptT:
        """Pay once. ``operation`` names the payment within the task, ``key`` what it is for where
        there are several, or where the lease's scope names objects.

        Raises Declined; OutcomeUnknown when only a person can tell; CommitUnknown when the gateway
        did not answer while there was authority (the next attempt asks it); EffectConflict when the
        operation was another request before; OutOfScope; AuthorityOver; StaleToken;
        GuardUnavailable.
        """
        with context.side_effect(operation, key=key) as effect:
            digest = _digest(request)
            entry = await self._record.intend(context, operation, effect.id, digest)
            if entry.digest != digest:
                raise EffectConflict(
                    f"{operation!r} of task {context.task_id} was another request before.",
                    next_step="Give another payment another operation name.",
                )
            found = await self._carried_out(context, operation, effect.id, request, entry)
            if entry.known is not Known.PAID:
                content = found.model_dump_json()
                await self._record.settle(
                    context, operation, effect.id, Entry(Known.PAID, digest, content)
                )
            return found

    async def _carried_out(
        self,
        context: Context[Any],
        operation: str,
        payment_id: str,
        request: RequestT,
        entry: Entry,
    ) -> ReceiptT:
        known, asked, tries = entry.known, Asked.NOT_YET, 0
        found: ReceiptT | None = None
        while True:
            step = next_step(
                known,
                asked,
                first=context.ordinal == 1,
                record_is_shared=self._record.shared,
                gateway_deduplicates=self._gateway_deduplicates,
            )
            match step:
                case Step.RETURN:
                    return found or self._receipt.model_validate_json(entry.content)
                case Step.REFUSE:
                    raise Declined(entry.content, "declined before.")
                case Step.HOLD:
                    raise OutcomeUnknown(
                        f"{operation!r} may have been sent as {payment_id}, and the gateway does"
                        " not know it: it may still be on its way.",
                        next_step="Let somebody look at the gateway before it is done again.",
                    )
                case _:
                    pass
            _check_authority(context, operation, tries)
            try:
                if step is Step.QUERY:
                    found = await self._gateway.query(payment_id)
                    asked = Asked.NOTHING if found is None else Asked.FOUND
                else:
                    # From here on it may have been sent: whatever comes, it is asked for first.
                    known, asked = Known.INTENDED, Asked.NOT_YET
                    found = await self._gateway.act(payment_id, request)
                    asked = Asked.FOUND
            except Declined as declined:
                await self._record.settle(
                    context,
                    operation,
                    payment_id,
                    Entry(Known.DECLINED, entry.digest, declined.reason),
                )
                raise
            except Exception as error:  # noqa: BLE001 - the gateway's: whatever it is, no answer
                tries += 1
                await _pause(context, operation, tries, error)


def _check_authority(context: Context[Any], operation: str, tries: int) -> None:
    """Raises AuthorityOver before the first question, CommitUnknown after one without answer."""
    try:
        context.check_authority()
    except AuthorityOver as over:
        if tries == 0:
            raise
        raise CommitUnknown(
            f"the authority ended before the gateway had answered {operation!r}. It may have been"
            " done.",
            next_step="The next attempt asks before it sends.",
        ) from over


async def _pause(context: Context[Any], operation: str, tries: int, error: Exception) -> None:
    """Before the next question. Raises CommitUnknown when there is no time for one."""
    longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(tries, 10))
    wait = longest * random.uniform(0.5, 1.0)
    if wait >= context.remaining_authority_seconds():
        raise CommitUnknown(
            f"{operation!r} was not answered by the gateway: {str(error) or type(error).__name__}."
            " It may have been done.",
            next_step="The next attempt asks before it sends.",
        ) from error
    await asyncio.sleep(wait)


class SqlitePayments:
    """A record in a file, for the executors of one machine."""

    def __init__(self, path: Path | str, *, shared: bool = False) -> None:
        """``shared``: no executor of the task type runs anywhere else."""
        self.shared = shared
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            path, timeout=10.0, isolation_level=None, check_same_thread=False
        )
        self._connection.executescript(
            """
            pragma journal_mode = wal;
            pragma synchronous = full;
            create table if not exists tenure_payment (
                payment_id text primary key,
                task_id text not null,
                operation text not null,
                digest text not null,
                known text not null,
                content text not null,
                fencing_token integer not null
            ) without rowid;
            """
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    async def intend(
        self, context: Context[Any], operation: str, payment_id: str, digest: str
    ) -> Entry:
        """As PaymentRecord says."""

        def work(cursor: sqlite3.Cursor) -> Entry:
            row = cursor.execute(
                "select known, digest, content from tenure_payment where payment_id = ?",
                (payment_id,),
            ).fetchone()
            if row is not None:
                return Entry(Known(row[0]), row[1], row[2])
            cursor.execute(
                "insert into tenure_payment values (?, ?, ?, ?, 'intended', '', ?)",
                (payment_id, context.task_id, operation, digest, context.fencing_token),
            )
            return Entry(Known.NEW, digest)

        return await asyncio.to_thread(self._transaction, work)

    async def settle(
        self, context: Context[Any], operation: str, payment_id: str, entry: Entry
    ) -> None:
        """As PaymentRecord says."""

        def work(cursor: sqlite3.Cursor) -> Entry:
            cursor.execute(
                "update tenure_payment set known = ?, content = ?, fencing_token = ?"
                " where payment_id = ? and known = 'intended'",
                (entry.known, entry.content, context.fencing_token, payment_id),
            )
            return entry

        await asyncio.to_thread(self._transaction, work)

    def _transaction(self, work: Callable[[sqlite3.Cursor], Entry]) -> Entry:
        try:
            with self._lock, closing(self._connection.cursor()) as cursor:
                cursor.execute("begin immediate")
                try:
                    result = work(cursor)
                    cursor.execute("commit")
                except BaseException:
                    if self._connection.in_transaction:
                        cursor.execute("rollback")
                    raise
                return result
        except sqlite3.Error as error:
            raise GuardUnavailable(f"the record of payments cannot be used: {error}.") from error


def _digest(request: BaseModel) -> str:
    text = json.dumps(request.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
