"""Payments, and whatever else must not happen twice at a gateway that is not ours (LEASE-10).

The order is the protection: our identifier first, written down durably; then the gateway; and
before anything is sent a second time, the question what became of it. The identifier is that of the
effect, the same in every attempt of the task.

    payments = PaymentGuard(gateway, record, receipt=Charge, gateway_deduplicates=True)
    charge = await payments.pay(context, operation="charge", request=order)

A gateway is two functions, ``query`` and ``act``. A record is where identifiers are written down:
``SqlitePayments`` on one machine, ``PostgresPayments`` (``guards.payment_postgres``) for all.
``BlockingPaymentGuard`` is for handlers in threads.
"""

import asyncio
from typing import Any, Generic

from tenure.executor.context import Context
from tenure.executor.core.paying import Step
from tenure.executor.guards.payment_course import (
    BlockingGateway,
    BlockingPaymentRecord,
    Course,
    Declined,
    Entry,
    Gateway,
    PaymentRecord,
    ReceiptT,
    RequestT,
    check_same,
    digest_of,
)
from tenure.executor.guards.payment_sqlite import SqlitePayments

__all__ = [
    "BlockingGateway",
    "BlockingPaymentGuard",
    "BlockingPaymentRecord",
    "Declined",
    "Entry",
    "Gateway",
    "PaymentGuard",
    "PaymentRecord",
    "SqlitePayments",
]


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
        async with context.side_effect(operation, key=key) as effect:
            digest = digest_of(request)
            entry = await self._record.intend(context, effect, digest)
            check_same(context, operation, entry, digest)
            course = Course(
                context,
                operation,
                effect.id,
                entry,
                receipt=self._receipt,
                record_is_shared=self._record.shared,
                gateway_deduplicates=self._gateway_deduplicates,
            )
            while (step := course.next()) is not Step.RETURN:
                try:
                    if step is Step.QUERY:
                        course.told(await self._gateway.query(effect.id))
                    else:
                        course.sending()
                        course.done(await self._gateway.act(effect.id, request))
                except Exception as error:
                    if step is Step.ACT and isinstance(error, Declined):
                        outcome = course.declined(error.reason)
                        await self._record.settle(context, effect, outcome)
                        raise
                    await asyncio.sleep(course.unanswered(error))  # whatever it is, no answer
            if course.outcome is not None:
                await self._record.settle(context, effect, course.outcome)
            return course.receipt


class BlockingPaymentGuard(Generic[RequestT, ReceiptT]):
    """For handlers in threads, over a gateway and a record that block. Otherwise as
    ``PaymentGuard``."""

    def __init__(
        self,
        gateway: BlockingGateway[RequestT, ReceiptT],
        record: BlockingPaymentRecord,
        *,
        receipt: type[ReceiptT],
        gateway_deduplicates: bool,
    ) -> None:
        self._gateway = gateway
        self._record = record
        self._receipt = receipt
        self._gateway_deduplicates = gateway_deduplicates

    def pay(
        self, context: Context[Any], *, operation: str, request: RequestT, key: str = ""
    ) -> ReceiptT:
        """As that of ``PaymentGuard``; CommitUnknown also when the handler was asked to end while
        the gateway did not answer."""
        with context.side_effect(operation, key=key) as effect:
            digest = digest_of(request)
            entry = self._record.intend_now(context, effect, digest)
            check_same(context, operation, entry, digest)
            course = Course(
                context,
                operation,
                effect.id,
                entry,
                receipt=self._receipt,
                record_is_shared=self._record.shared,
                gateway_deduplicates=self._gateway_deduplicates,
            )
            while (step := course.next()) is not Step.RETURN:
                try:
                    if step is Step.QUERY:
                        course.told(self._gateway.query(effect.id))
                    else:
                        course.sending()
                        course.done(self._gateway.act(effect.id, request))
                except Exception as error:
                    if step is Step.ACT and isinstance(error, Declined):
                        outcome = course.declined(error.reason)
                        self._record.settle_now(context, effect, outcome)
                        raise
                    if context.wait_cancelled(course.unanswered(error)):
                        raise course.unknown("was not answered before it was to end") from error
            if course.outcome is not None:
                self._record.settle_now(context, effect, course.outcome)
            return course.receipt
