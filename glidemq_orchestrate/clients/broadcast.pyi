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
    """What can be done with a broadcast, each written once for both clients."""

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
            options: Attempts, own id, time to live, and so on.
            keywords: The same one by one, in place of those in ``options``. See ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: Nothing was published. Priority and LIFO are refused.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
        """

    def _publish(self, subject: str, data: JsonLike, options: JobOptions) -> Op[JobId]: ...
    def subscriptions(self) -> Op[list[SubscriptionInfo]]:
        """The subscriptions, by name, with how many messages wait for each and how many its workers hold."""

    def states(self, message_id: str) -> Op[dict[str, MessageState]]:
        """The state of a message in each subscription, by name. It has ended when all have ended it.

        Raises:
            JobNotFound: There is no such message, or no longer.
        """

    def unsubscribe(self, subscription: str) -> Op[bool]:
        """Remove a subscription, with its place in the stream; False if there was none. Safe to repeat.

        Messages that only this one had not handled have ended, and their retention counts. Stop its workers
        before: one that runs makes the subscription again.
        """

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
            options: Attempts, own id, time to live, and so on.
            keywords: The same one by one, in place of those in ``options``. See ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: Nothing was published. Priority and LIFO are refused.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
        """

    def subscriptions(self) -> list[SubscriptionInfo]:
        """The subscriptions, by name, with how many messages wait for each and how many its workers hold."""

    def states(self, message_id: str) -> dict[str, MessageState]:
        """The state of a message in each subscription, by name. It has ended when all have ended it.

        Raises:
            JobNotFound: There is no such message, or no longer.
        """

    def unsubscribe(self, subscription: str) -> bool:
        """Remove a subscription, with its place in the stream; False if there was none. Safe to repeat.

        Messages that only this one had not handled have ended, and their retention counts. Stop its workers
        before: one that runs makes the subscription again.
        """

class AsyncBroadcast(AsyncFacade):
    """Publishes messages to the subscriptions of a dedicated queue, with awaitable calls.

    Args:
        name: The queue.
        url: The server, by URL or ``ConnectionSettings``; from ``GLIDEMQ_URL`` when left out.
        max_messages: Keep only this many of the newest; older ones are removed by the next ``publish``, and
            slower subscriptions miss them. None: a message stays until it is cleaned, or all subscriptions
            have ended it and its own retention removes it.
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
            options: Attempts, own id, time to live, and so on.
            keywords: The same one by one, in place of those in ``options``. See ``JobOptions``.

        Raises:
            EncodeError, PayloadTooLarge, InvalidJob: Nothing was published. Priority and LIFO are refused.
            OutcomeUnknown: The connection broke after sending. Repeat only with an own id in the options.
        """

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """The subscriptions, by name, with how many messages wait for each and how many its workers hold."""

    async def states(self, message_id: str) -> dict[str, MessageState]:
        """The state of a message in each subscription, by name. It has ended when all have ended it.

        Raises:
            JobNotFound: There is no such message, or no longer.
        """

    async def unsubscribe(self, subscription: str) -> bool:
        """Remove a subscription, with its place in the stream; False if there was none. Safe to repeat.

        Messages that only this one had not handled have ended, and their retention counts. Stop its workers
        before: one that runs makes the subscription again.
        """
