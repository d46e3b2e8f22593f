"""Which shards this relay has: its share of all, taken, kept, and handed over.

A claim is trusted from before the request that gave it, for the time asked for: a relay that was
paused stops publishing a shard no later than another may take it.
"""

from collections.abc import Callable, Iterable, Mapping

from tenure.relay.core.shares import fair_share
from tenure.relay.core.window import Window
from tenure.relay.log import RelayLog
from tenure.relay.metrics import RelayMetrics
from tenure.relay.pace import Pace


class Claims:
    """Of one relay, over its log and its window. ``shards``: how many there are; ``usable``:
    whether the broker can be published to now. Every coroutine raises LogUnavailable."""

    def __init__(
        self,
        log: RelayLog,
        window: Window,
        metrics: RelayMetrics,
        *,
        shards: int,
        pace: Pace,
        usable: Callable[[], bool],
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._log = log
        self._window = window
        self._metrics = metrics
        self._shards = shards
        self._pace = pace
        self._usable = usable
        self._clock = clock
        self._chance = chance
        self._trusted_until: dict[int, float] = {}
        self._unknown: dict[int, int] = {}  # claims to be given up, token by shard
        self._share = 0
        self._renew_at = 0.0
        self._claim_at = 0.0
        self._attend_at = 0.0
        self._unusable_since: float | None = None

    async def keep(self) -> None:
        """Whatever is due: prolong, learn the own share, take or begin to hand over."""
        now = self._clock()
        if self._usable():
            self._unusable_since = None
        elif self._unusable_since is None:
            self._unusable_since = now
        elif now - self._unusable_since > 2 * self._pace.claim_seconds and self._trusted_until:
            # Another relay may reach a broker that this one does not.
            await self._log.leave()
            await self._log.release(self._window.claims)
            for shard in list(self._trusted_until):
                self._drop(shard)
        if self._unknown:
            await self._log.release(self._unknown)
            self._unknown.clear()
        await self.renew()
        if now >= self._attend_at:
            await self._attend()
        if len(self._trusted_until) < self._share and now >= self._claim_at:
            await self._claim()
        self._metrics.claims.set(len(self._trusted_until))
        self._metrics.share.set(self._share)

    async def renew(self) -> None:
        """Prolong, when it is time."""
        now = self._clock()
        claims = self._window.claims
        if now < self._renew_at or not claims:
            return
        self._kept(claims, await self._log.renew(claims), now)
        self._renew_at = now + self._pace.claim_seconds / 3

    async def ask_again(self, claims: Mapping[int, int]) -> None:
        """Find out whether these are lost, by prolonging them."""
        asked_at = self._clock()
        self._kept(claims, await self._log.renew(claims), asked_at)

    async def hand_over(self) -> None:
        """Give back what is settled of the shards that leave."""
        left = self._window.left(self._microseconds())
        if not left:
            return
        await self._log.release(left)
        for shard in left:
            self._drop(shard)
        self._metrics.handed_over.inc(len(left))

    def trust(self, shard: int, until: float) -> None:
        """The shard is this relay's until then."""
        self._trusted_until[shard] = until

    def drop_untrusted(self) -> None:
        """Publish nothing more of shards that another relay may have by now."""
        now = self._clock()
        self.lose([shard for shard, until in self._trusted_until.items() if until <= now])

    def lose(self, shards: Iterable[int]) -> None:
        """Others have these."""
        for shard in shards:
            self._drop(shard)
            self._metrics.claims_lost.inc()

    def forget(self, claims: Mapping[int, int]) -> None:
        """What a call for these claims did to parked rows is not known, and may still be done: give
        them up. The next claim's token keeps that call from doing any more, and tells what it did.
        """
        for shard, claim_token in claims.items():
            if shard in self._trusted_until:
                self._unknown[shard] = claim_token
                self._drop(shard)

    async def _attend(self) -> None:
        """Learn the own share, and begin to hand over what is more than that."""
        now = self._clock()
        self._attend_at = now + self._pace.attend_seconds * (0.5 + self._chance())
        if not self._usable():
            self._share = 0  # takes nothing more, and keeps for a while what it has
            await self._log.check()
            return
        relays, earlier = await self._log.attend()
        self._share = fair_share(self._shards, relays, earlier)
        self._window.share(self._share)
        leaving = self._window.leaving()
        surplus = len(self._trusted_until) - len(leaving) - self._share
        if surplus <= 0:
            return
        # Any of them: so busy and idle ones go in proportion.
        staying = sorted(self._trusted_until.keys() - leaving, key=lambda _: self._chance())
        by = self._microseconds() + int(self._pace.hand_over_seconds * 1_000_000)
        for shard in staying[:surplus]:
            self._window.leave(shard, by)

    async def _claim(self) -> None:
        now = self._clock()
        self._claim_at = now + self._pace.claim_poll_seconds * (0.5 + self._chance())
        claims = await self._log.claim(self._share)
        aside = [claim.shard for claim in claims if claim.parked]
        held = await self._log.held(aside) if aside else {}
        for claim in claims:
            self._window.open(
                claim.shard,
                claim.claim_token,
                claim.position,
                parked=claim.parked,
                held=held.get(claim.shard, ()),
            )
            self.trust(claim.shard, now + self._pace.claim_seconds)
        self._renew_at = min(self._renew_at, now + self._pace.claim_seconds / 3)

    def _kept(self, claims: Iterable[int], held: set[int], asked_at: float) -> None:
        """Of ``claims`` the ones in ``held`` were prolonged by a request sent at ``asked_at``."""
        for shard in claims:
            if shard in held:
                self.trust(shard, asked_at + self._pace.claim_seconds)
            else:
                self.lose([shard])

    def _drop(self, shard: int) -> None:
        self._window.close(shard)
        self._trusted_until.pop(shard, None)

    def _microseconds(self) -> int:
        return int(self._clock() * 1_000_000)
