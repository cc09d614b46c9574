"""Broadcast and AsyncBroadcast: messages that every subscription handles."""

from __future__ import annotations

from typing import Unpack

from glidemq_orchestrate.broadcasts import messages
from glidemq_orchestrate.broadcasts import subscriptions as listing
from glidemq_orchestrate.broadcasts.subscriptions import MessageState, SubscriptionInfo
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.clients.twins import awaited, blocking
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.foundation.texts import described
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions, OptionKeywords, with_keywords
from glidemq_orchestrate.queues.listing import MAX_EXAMINED
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys, check_queue_name, check_subscription

__all__ = ["AsyncBroadcast", "Broadcast"]


class BroadcastOperations:
    """The operations on a broadcast, written once for both clients."""

    def __init__(self, keys: QueueKeys, clock: Clock, max_messages: int | None) -> None:
        self._keys, self._clock, self._max = keys, clock, max_messages

    def publish(
        self,
        subject: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> Op[JobId]:
        """Publish one message; ``subject`` is dot-separated and names the handler.

        Args:
            subject: Such as ``orders.new``.
            data: JSON, at most 1 MiB encoded.
            options: Attempts, ``job_id``, time to live, and so on.
            keywords: Single options that override those in ``options``; see ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: A value is not valid, or priority or LIFO is set.
                Nothing was published.
            OutcomeUnknown: The connection broke after sending. Safe to repeat only with a ``job_id``.
        """
        return self._publish(subject, data, with_keywords(options, keywords))

    def _publish(self, subject: str, data: JsonLike, options: JobOptions) -> Op[JobId]:
        now_ms = self._clock.now_ms()
        return (yield from messages.publish(self._keys, subject, data, options, now_ms, self._max))

    def subscriptions(self) -> Op[list[SubscriptionInfo]]:
        """List the subscriptions by name, each with its numbers of waiting and active messages."""
        return listing.subscriptions(self._keys, MAX_EXAMINED)

    def states(self, message_id: str) -> Op[dict[str, MessageState]]:
        """Read the state of a message in each subscription. The message has ended when all states are final.

        Raises:
            JobNotFound: The message does not exist, or was removed.
        """
        return listing.message_states(self._keys, message_id, self._clock)

    def unsubscribe(self, subscription: str) -> Op[bool]:
        """Remove a subscription and its position in the stream; False if there was none. Safe to repeat.

        Messages that waited only for this subscription end, and their retention applies. Stop its workers
        first: a running worker creates the subscription again.
        """
        return messages.unsubscribe(self._keys, check_subscription(subscription), self._clock)


class Broadcast(SyncFacade):
    """Publishes messages to the subscriptions of a dedicated queue.

    Args:
        name: The queue.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        max_messages: Keep only the newest messages, at most this many. The next ``publish`` removes older
            ones, and slow subscriptions miss them. None: a message remains until it is cleaned, or until it
            has ended in all subscriptions and its retention removes it.
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
        self._keys = QueueKeys(self._prefix, check_queue_name(name))
        self._operations = BroadcastOperations(self._keys, self._clock, _checked(max_messages))

    publish = blocking(BroadcastOperations.publish)
    subscriptions = blocking(BroadcastOperations.subscriptions)
    states = blocking(BroadcastOperations.states)
    unsubscribe = blocking(BroadcastOperations.unsubscribe)


class AsyncBroadcast(AsyncFacade):
    """Publishes messages to the subscriptions of a dedicated queue, with awaitable calls.

    Args:
        name: The queue.
        url: The server, by URL or ``ConnectionSettings``; by default from ``GLIDEMQ_URL``.
        max_messages: Keep only the newest messages, at most this many. The next ``publish`` removes older
            ones, and slow subscriptions miss them. None: a message remains until it is cleaned, or until it
            has ended in all subscriptions and its retention removes it.
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
        self._keys = QueueKeys(self._prefix, check_queue_name(name))
        self._operations = BroadcastOperations(self._keys, self._clock, _checked(max_messages))

    publish = awaited(BroadcastOperations.publish)
    subscriptions = awaited(BroadcastOperations.subscriptions)
    states = awaited(BroadcastOperations.states)
    unsubscribe = awaited(BroadcastOperations.unsubscribe)


def _checked(most: int | None) -> int | None:
    if most is not None and (isinstance(most, bool) or most < 1):
        raise ConfigurationError(f"max_messages must be at least 1, got {described(most)}")
    return most
