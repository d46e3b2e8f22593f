"""Which events reach which queue, as operators say it."""

from collections.abc import Awaitable, Callable

import structlog

from tenure.contract.codes import Code
from tenure.contract.ids import DEFAULT_TENANT
from tenure.contract.subscriptions import (
    Audience,
    Subscribed,
    SubscriptionList,
    SubscriptionRequest,
    Unsubscribed,
    binding_keys,
)
from tenure.contract.topology import subscription_queue
from tenure.coordinator.api.endpoint import READERS, Answer, Call, Endpoint
from tenure.coordinator.api.gate import Gate
from tenure.coordinator.api.reading import read_model
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.identities import Identity, Role
from tenure.coordinator.store.subscriptions import Subscriptions

log = structlog.get_logger()

_OPERATORS = frozenset({Role.OPERATOR})


class SubscriptionControl:
    """Handlers of ``/v1/subscriptions``."""

    def __init__(
        self,
        subscriptions: Subscriptions,
        *,
        declare: Callable[[str], Awaitable[bool]],
        name_prefix: str,
    ) -> None:
        """``declare`` brings a subscription's queue about on the broker; whether it is there."""
        self._subscriptions = subscriptions
        self._declare = declare
        self._name_prefix = name_prefix

    async def subscriptions(self, call: Call) -> Answer:
        """Subscriptions of the tenant, or of all."""
        who = call.identity
        own = None if who.tenant == DEFAULT_TENANT else who.tenant
        return Answer(SubscriptionList(subscriptions=await self._subscriptions.views(own)))

    async def subscribe(self, call: Call) -> Answer:
        """Let events reach a queue from now on, or change which."""
        request = read_model(await call.body(), SubscriptionRequest)
        who = call.identity
        tenant = _audience(request, who)
        queue = subscription_queue(tenant, request.name, self._name_prefix)
        await self._subscriptions.subscribe(
            tenant,
            request.name,
            queue=queue,
            patterns=binding_keys(tenant, request.events),
            dedupe_retention_seconds=request.dedupe_retention_seconds,
            actor=who.name,
        )
        bound = await self._declare(queue)
        log.info("subscribed", by=who.name, queue=queue, bound=bound)
        for view in await self._subscriptions.views(None):
            if (view.tenant, view.name) == (tenant, request.name):
                return Answer(Subscribed(subscription=view, bound=bound))
        raise RequestRefused(
            Code.NOT_FOUND,
            f"The subscription {request.name!r} was removed by somebody else meanwhile.",
            next_step="Say it again, or leave it.",
        )

    async def unsubscribe(self, call: Call) -> Answer:
        """End a subscription, and delete its queue with what is in it."""
        request = read_model(await call.body(), Audience)
        who = call.identity
        tenant = _audience(request, who)
        removed = await self._subscriptions.unsubscribe(tenant, request.name, actor=who.name)
        if removed:
            queue = subscription_queue(tenant, request.name, self._name_prefix)
            await self._declare(queue)
            log.info("unsubscribed", by=who.name, queue=queue)
        return Answer(Unsubscribed(removed=removed))


def _audience(request: Audience, who: Identity) -> str | None:
    """The tenant whose events are meant; None: of all."""
    own = not request.all_tenants and request.tenant in (None, who.tenant)
    if not own and who.tenant != DEFAULT_TENANT:
        raise RequestRefused(
            Code.FORBIDDEN_ROLE,
            "Events of other tenants are subscribed to by operators of the tenant"
            f" {DEFAULT_TENANT!r}.",
            next_step="Name no tenant: your own is meant.",
        )
    if request.all_tenants:
        return None
    return who.tenant if request.tenant is None else request.tenant


def subscription_endpoints(control: SubscriptionControl, *, gate: Gate) -> tuple[Endpoint, ...]:
    """Endpoints of subscriptions. ``gate`` bounds what waits."""
    return (
        Endpoint(
            "GET",
            "/v1/subscriptions",
            "list_subscriptions",
            "List subscriptions to events",
            READERS,
            control.subscriptions,
            SubscriptionList,
        ),
        Endpoint(
            "POST",
            "/v1/subscriptions",
            "subscribe",
            "Let events reach a queue from now on, or change which",
            _OPERATORS,
            control.subscribe,
            Subscribed,
            body=SubscriptionRequest,
            gate=gate,
            codes=(Code.NOT_FOUND,),
        ),
        Endpoint(
            "POST",
            "/v1/subscriptions/remove",
            "unsubscribe",
            "End a subscription; its queue goes with what is in it",
            _OPERATORS,
            control.unsubscribe,
            Unsubscribed,
            body=Audience,
            gate=gate,
        ),
    )
