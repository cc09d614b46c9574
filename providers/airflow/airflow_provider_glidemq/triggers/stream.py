"""The shared stream of messages, with acknowledgement: Airflow 3.3 and later."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from airflow_provider_glidemq.triggers.shared.events import start

if TYPE_CHECKING:
    from airflow_provider_glidemq.triggers.inbox import Inbox, MessageBatch

logger = logging.getLogger(__name__)


class MessageProducer(SharedStreamProducer):
    """Takes the messages of a trigger, and completes the jobs of the messages that Airflow has stored."""

    def __init__(self, batches: AsyncGenerator[tuple[Inbox, MessageBatch]]) -> None:
        self._batches = batches
        self._reading: asyncio.Task[tuple[Inbox, MessageBatch]] | None = None

    async def open_stream(self) -> AsyncGenerator[tuple[dict[str, Any], tuple[Inbox, MessageBatch]]]:
        """Yield each batch, with its inbox.

        Airflow cancels this before it reports the last stored events, so cancelling must not end the worker.
        """
        while True:
            self._reading = start(self._batches.__anext__())
            inbox, batch = await asyncio.shield(self._reading)
            yield batch.payload, (inbox, batch)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Complete the jobs of stored batches; the others are delivered again."""
        for item in batch:
            inbox, messages = item.broker_payload
            if item.outcome.is_clean:
                inbox.stored(messages)
            else:
                logger.warning("Airflow did not store an event of queue %s: it comes again", messages.queue)
                inbox.not_stored(messages)

    def get_advance_lane(self, broker_payload: tuple[Inbox, MessageBatch]) -> Hashable:
        """A separate lane for each batch: no batch waits for another."""
        return broker_payload[1]

    async def aclose(self) -> None:
        """Return the messages that were not stored."""
        if self._reading is not None:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        await self._batches.aclose()
