"""Which events have to reach a queue: those that a registered subscription asks for (RELAY-02)."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from tenure.contract.topology import matches

_KEYS_REMEMBERED: Final = 4096


class Routes:
    """``patterns``: the binding keys of all subscriptions."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        kept = tuple(sorted(set(patterns)))

        @lru_cache(maxsize=_KEYS_REMEMBERED)
        def asked_for(routing_key: str) -> bool:
            return any(matches(pattern, routing_key) for pattern in kept)

        self._asked_for = asked_for

    def required(self, exchange: str, routing_key: str) -> bool:
        """Whether a message to there counts as published only when it reached a queue. The default
        exchange has no subscriptions."""
        return exchange != "" and self._asked_for(routing_key)
