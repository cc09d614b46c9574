# Made by `make generated` from the operations. Do not edit.
from typing import Unpack

from glidemq_orchestrate.broadcasts.subscriptions import MessageState, SubscriptionInfo
from glidemq_orchestrate.clients.facade import AsyncFacade, SyncFacade
from glidemq_orchestrate.foundation.clock import Clock
from glidemq_orchestrate.jobs.job import JobId
from glidemq_orchestrate.jobs.options import DEFAULT_OPTIONS, JobOptions, OptionKeywords
from glidemq_orchestrate.settings import Address
from glidemq_orchestrate.wire.call import Op
from glidemq_orchestrate.wire.codec import JsonLike
from glidemq_orchestrate.wire.keys import DEFAULT_PREFIX, QueueKeys

__all__ = ["AsyncBroadcast", "Broadcast"]

class BroadcastOperations:
    """The operations on a broadcast, written once for both clients."""

    def __init__(self, keys: QueueKeys, clock: Clock, max_messages: int | None) -> None: ...
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

    def _publish(self, subject: str, data: JsonLike, options: JobOptions) -> Op[JobId]: ...
    def subscriptions(self) -> Op[list[SubscriptionInfo]]:
        """List the subscriptions by name, each with its numbers of waiting and active messages."""

    def states(self, message_id: str) -> Op[dict[str, MessageState]]:
        """Read the state of a message in each subscription. The message has ended when all states are final.

        Raises:
            JobNotFound: The message does not exist, or was removed.
        """

    def unsubscribe(self, subscription: str) -> Op[bool]:
        """Remove a subscription and its position in the stream; False if there was none. Safe to repeat.

        Messages that waited only for this subscription end, and their retention applies. Stop its workers
        first: a running worker creates the subscription again.
        """

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

    _keys: QueueKeys
    _operations: BroadcastOperations

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        max_messages: int | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None: ...
    def publish(
        self,
        subject: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> JobId:
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

    def subscriptions(self) -> list[SubscriptionInfo]:
        """List the subscriptions by name, each with its numbers of waiting and active messages."""

    def states(self, message_id: str) -> dict[str, MessageState]:
        """Read the state of a message in each subscription. The message has ended when all states are final.

        Raises:
            JobNotFound: The message does not exist, or was removed.
        """

    def unsubscribe(self, subscription: str) -> bool:
        """Remove a subscription and its position in the stream; False if there was none. Safe to repeat.

        Messages that waited only for this subscription end, and their retention applies. Stop its workers
        first: a running worker creates the subscription again.
        """

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

    _keys: QueueKeys
    _operations: BroadcastOperations

    def __init__(
        self,
        name: str,
        url: Address = None,
        *,
        max_messages: int | None = None,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
    ) -> None: ...
    async def publish(
        self,
        subject: str,
        data: JsonLike = None,
        *,
        options: JobOptions = DEFAULT_OPTIONS,
        **keywords: Unpack[OptionKeywords],
    ) -> JobId:
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

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """List the subscriptions by name, each with its numbers of waiting and active messages."""

    async def states(self, message_id: str) -> dict[str, MessageState]:
        """Read the state of a message in each subscription. The message has ended when all states are final.

        Raises:
            JobNotFound: The message does not exist, or was removed.
        """

    async def unsubscribe(self, subscription: str) -> bool:
        """Remove a subscription and its position in the stream; False if there was none. Safe to repeat.

        Messages that waited only for this subscription end, and their retention applies. Stop its workers
        first: a running worker creates the subscription again.
        """
