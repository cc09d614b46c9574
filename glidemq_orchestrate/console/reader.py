"""Reads of queues for which there is no public method, as nothing but the page asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_orchestrate.clients.facade import AsyncFacade
from glidemq_orchestrate.queues import limits
from glidemq_orchestrate.queues.ordering import OrderingKeys, ordering_keys
from glidemq_orchestrate.wire.call import Op, ask_all
from glidemq_orchestrate.wire.keys import QueueKeys
from glidemq_orchestrate.wire.stored import number


class Reader(AsyncFacade):
    """Reads queues, with connections of its own."""

    async def ordering_keys(self, queue: str) -> OrderingKeys:
        """The ordering keys of a queue, in a few calls however many there are."""
        return await self._run(self._ordering_keys(queue))

    async def started(self, queue: str) -> int:
        """How many jobs have started in the present window of the rate limit of a queue."""
        return await self._run(self._started(queue))

    def _members(self, queue: str) -> Op[Sequence[QueueKeys]]:
        keys = QueueKeys(self._prefix, queue)
        shards = yield from self._known_shards().of_one(keys, self._clock)
        return [keys] if shards is None else shards.members()

    def _ordering_keys(self, queue: str) -> Op[OrderingKeys]:
        members = yield from self._members(queue)
        return (yield from ordering_keys(members, self._clock.now_ms()))

    def _started(self, queue: str) -> Op[int]:
        members = yield from self._members(queue)
        rows = yield from ask_all([limits.rate_window(keys) for keys in members])
        lengths = yield from ask_all([limits.meta(keys, "rateLimitDuration") for keys in members])
        now_ms = self._clock.now_ms()
        return sum(
            number(count)
            for (began, count), (length,) in zip(rows, lengths, strict=True)
            if now_ms - number(began) < number(length)
        )
