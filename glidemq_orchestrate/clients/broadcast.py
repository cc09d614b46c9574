"""Broadcast and AsyncBroadcast: messages that every subscription handles."""

from __future__ import annotations

from glidemq_orchestrate.broadcasts import ops
from glidemq_orchestrate.broadcasts import subscriptions as listing
from glidemq_orchestrate.broadcasts.subscriptions import MessageState, SubscriptionInfo
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.names import described
from glidemq_orchestrate.jobs.bounds import LOOK_AT
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name, check_subscription

__all__ = ["AsyncBroadcast", "Broadcast"]


class Broadcast(SyncFacade):
    """Publishes messages to the subscriptions of a dedicated queue.

    Args:
        name: The queue.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        max_messages: Keep only this many of the newest; older ones are removed by the next ``publish``, and
            slower subscriptions miss them. None: a message stays until it is cleaned, or all subscriptions
            have ended it and its own retention removes it.
        prefix: First part of every key.
        clock: For tests.
    """

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        max_messages: int | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys, self._most = QueueKeys(self._prefix, check_queue_name(name)), _checked(max_messages)

    def publish(self, subject: str, data: JsonLike = None, *, options: JobOptions = DEFAULT_OPTIONS) -> JobId:
        """Publish one message; ``subject`` is dot-separated and names the handler.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: Nothing was published. Priority and LIFO are refused.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
        """
        now_ms = self._now()
        return self._run(ops.publish(self._keys, subject, data, options, now_ms, self._most))

    def subscriptions(self) -> list[SubscriptionInfo]:
        """The subscriptions, by name, with how many messages wait for each and how many its workers hold."""
        return self._run(listing.subscriptions(self._keys, LOOK_AT))

    def states(self, message_id: str) -> dict[str, MessageState]:
        """The state of a message in each subscription, by name. It has ended when all have ended it.

        Raises:
            JobNotFound: There is no such message, or no longer.
        """
        return self._run(listing.message_states(self._keys, message_id, self._clock))

    def unsubscribe(self, subscription: str) -> bool:
        """Remove a subscription, with its place in the stream; False if there was none. Safe to repeat.

        Messages that only this one had not handled have ended, and their retention counts. Stop its workers
        before: one that runs makes the subscription again.
        """
        return self._run(ops.unsubscribe(self._keys, check_subscription(subscription), self._clock))


class AsyncBroadcast(AsyncFacade):
    """``Broadcast`` with awaitable calls; same arguments, same errors."""

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        max_messages: int | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock)
        self._keys, self._most = QueueKeys(self._prefix, check_queue_name(name)), _checked(max_messages)

    async def publish(
        self, subject: str, data: JsonLike = None, *, options: JobOptions = DEFAULT_OPTIONS
    ) -> JobId:
        """See ``Broadcast.publish``."""
        now_ms = await self._now()
        return await self._run(ops.publish(self._keys, subject, data, options, now_ms, self._most))

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """See ``Broadcast.subscriptions``."""
        return await self._run(listing.subscriptions(self._keys, LOOK_AT))

    async def states(self, message_id: str) -> dict[str, MessageState]:
        """See ``Broadcast.states``."""
        return await self._run(listing.message_states(self._keys, message_id, self._clock))

    async def unsubscribe(self, subscription: str) -> bool:
        """See ``Broadcast.unsubscribe``."""
        return await self._run(ops.unsubscribe(self._keys, check_subscription(subscription), self._clock))


def _checked(most: int | None) -> int | None:
    if most is not None and (isinstance(most, bool) or most < 1):
        raise ConfigurationError(f"max_messages must be at least 1, got {described(most)}")
    return most
