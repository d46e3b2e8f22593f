"""What both payment guards share: gateways and records as they see them, and one payment's course.

A ``Course`` holds what is known of a payment and says what comes next (``core.paying`` decides it);
the guards carry it out, each in its own way of waiting.
"""

import hashlib
import json
import random
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import BaseModel

from tenure.executor.context import Context
from tenure.executor.core.paying import Asked, Known, Step, next_step
from tenure.executor.errors import (
    AuthorityOver,
    CommitUnknown,
    EffectConflict,
    ExecutorError,
    OutcomeUnknown,
)
from tenure.executor.side_effects import SideEffect

RequestT = TypeVar("RequestT", bound=BaseModel)
RequestT_contra = TypeVar("RequestT_contra", bound=BaseModel, contravariant=True)
ReceiptT = TypeVar("ReceiptT", bound=BaseModel)
ReceiptT_co = TypeVar("ReceiptT_co", bound=BaseModel, covariant=True)
_FIRST_WAIT_SECONDS: Final = 0.2
_LONGEST_WAIT_SECONDS: Final = 5.0
_NEXT_ATTEMPT: Final = "The next attempt asks before it sends."


class Declined(ExecutorError):
    """Raised by a gateway's ``act``: it has refused, and certainly done nothing. ``reason`` is a
    stable word of the application."""

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


class BlockingGateway(Protocol[RequestT_contra, ReceiptT_co]):
    """``Gateway`` for handlers in threads."""

    def query(self, payment_id: str) -> ReceiptT_co | None:
        """As that of ``Gateway``."""

    def act(self, payment_id: str, request: RequestT_contra) -> ReceiptT_co:
        """As that of ``Gateway``."""


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

    async def intend(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """Write the payment down unless it is there, under the id of the effect ``begun``; what was
        there before, NEW when nothing was. May raise StaleToken, AuthorityOver and OutOfScope."""

    async def settle(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """Write down how it ended. May raise StaleToken and AuthorityOver: then a later attempt
        asks the gateway."""


class BlockingPaymentRecord(Protocol):
    """``PaymentRecord`` for handlers in threads."""

    @property
    def shared(self) -> bool:
        """As that of ``PaymentRecord``."""

    def intend_now(self, context: Context[Any], begun: SideEffect, digest: str) -> Entry:
        """As ``intend``."""

    def settle_now(self, context: Context[Any], begun: SideEffect, entry: Entry) -> None:
        """As ``settle``."""


class Course(Generic[ReceiptT]):
    """One payment from its intention to its outcome."""

    def __init__(
        self,
        context: Context[Any],
        operation: str,
        payment_id: str,
        entry: Entry,
        *,
        receipt: type[ReceiptT],
        record_is_shared: bool,
        gateway_deduplicates: bool,
    ) -> None:
        """``entry`` is what the record had."""
        self._context = context
        self._operation = operation
        self._payment_id = payment_id
        self._entry = entry
        self._receipt = receipt
        self._record_is_shared = record_is_shared
        self._gateway_deduplicates = gateway_deduplicates
        self._known = entry.known
        self._asked = Asked.NOT_YET
        self._found: ReceiptT | None = None
        self._tries = 0

    def next(self) -> Step:
        """ACT, QUERY or RETURN. Raises Declined, OutcomeUnknown, AuthorityOver before the first
        question, CommitUnknown after one without answer."""
        step = next_step(
            self._known,
            self._asked,
            first=self._context.ordinal == 1,
            record_is_shared=self._record_is_shared,
            gateway_deduplicates=self._gateway_deduplicates,
        )
        match step:
            case Step.RETURN:
                return step
            case Step.REFUSE:
                raise Declined(self._entry.content, "declined before.")
            case Step.HOLD:
                raise OutcomeUnknown(
                    f"{self._operation!r} may have been sent as {self._payment_id}, and the gateway"
                    " does not know it: it may still be on its way.",
                    next_step="Let somebody look at the gateway before it is done again.",
                )
            case Step.ACT | Step.QUERY:
                self._check_authority()
        return step

    def sending(self) -> None:
        """From here on it may have been sent: whatever comes, it is asked for first."""
        self._known, self._asked = Known.INTENDED, Asked.NOT_YET

    def done(self, receipt: ReceiptT) -> None:
        """What the gateway has answered. Raises TypeError for what is no receipt: it may have been
        paid, and has to be asked for."""
        self._check_receipt(receipt)
        self.told(receipt)

    def told(self, found: ReceiptT | None) -> None:
        """What the gateway knows. Raises TypeError for what is no receipt."""
        if found is not None:
            self._check_receipt(found)
        self._found = found
        self._asked = Asked.NOTHING if found is None else Asked.FOUND

    def unanswered(self, error: Exception) -> float:
        """Seconds until the next question. Raises CommitUnknown when there is no time for one."""
        self._tries += 1
        longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2.0 ** min(self._tries, 10))
        wait = longest * random.uniform(0.5, 1.0)
        if wait >= self._context.remaining_authority_seconds():
            raise self.unknown(
                f"was not answered by the gateway: {str(error) or type(error).__name__}"
            ) from error
        return wait

    def unknown(self, why: str) -> CommitUnknown:
        """For who ends before the outcome is known."""
        return CommitUnknown(
            f"{self._operation!r} {why}. It may have been done.", next_step=_NEXT_ATTEMPT
        )

    @property
    def receipt(self) -> ReceiptT:
        """What was paid."""
        return self._found or self._receipt.model_validate_json(self._entry.content)

    @property
    def outcome(self) -> Entry | None:
        """What the record has to learn; None where it knows."""
        if self._entry.known is Known.PAID or self._found is None:
            return None
        return Entry(Known.PAID, self._entry.digest, self._found.model_dump_json())

    def declined(self, reason: str) -> Entry:
        """The same for a refusal."""
        return Entry(Known.DECLINED, self._entry.digest, reason)

    def _check_receipt(self, found: object) -> None:
        if not isinstance(found, self._receipt):
            raise TypeError(
                f"the gateway gives {type(found).__name__} and not {self._receipt.__name__}"
            )

    def _check_authority(self) -> None:
        try:
            self._context.check_authority()
        except AuthorityOver as over:
            if self._tries == 0:
                raise
            raise self.unknown("was not answered before the authority ended") from over


def check_same(context: Context[Any], operation: str, entry: Entry, digest: str) -> None:
    """Raises EffectConflict where the record has another request under this operation."""
    if entry.digest != digest:
        raise EffectConflict(
            f"{operation!r} of task {context.task_id} was another request before.",
            next_step="Give another payment another operation name.",
        )


def digest_of(request: BaseModel) -> str:
    """Of a request, the same whenever it asks for the same."""
    text = json.dumps(request.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
