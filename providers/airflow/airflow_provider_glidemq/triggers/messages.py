"""GlideMQMessageTrigger: jobs of a queue as asset events, each at least once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID
from airflow_provider_glidemq.parameters import (
    Converted,
    OptionalSeconds,
    Seconds,
    check_text,
    in_seconds,
)
from airflow_provider_glidemq.triggers.waiting import Serialized, module
from glidemq_orchestrate.runs import reconnect_pauses

if TYPE_CHECKING:
    from airflow.triggers.shared_stream import SharedStreamProducer

    from airflow_provider_glidemq.triggers.inbox import Inbox, MessageBatch
    from glidemq_orchestrate.runs import Duration

MAX_MESSAGES: Final = 500
SETTLED_SECONDS: Final = 15.0
MIN_UNTIL_RUN: Final = 10.0
SHOWN_IDS: Final = 10


class MessagesEvent(TriggerEvent):
    """An event with messages. Airflow logs each event, so its ``repr`` omits their data."""

    def __repr__(self) -> str:
        """For the log."""
        ids = [str(message["id"]) for message in self.payload["messages"]]
        return f"{len(ids)} messages of queue {self.payload['queue']}: jobs {', '.join(ids[:SHOWN_IDS])}" + (
            ", ..." if len(ids) > SHOWN_IDS else ""
        )

    __str__ = __repr__


def _until_run(name: str, value: Duration | None) -> float | None:
    return None if value is None else in_seconds(name, value, MIN_UNTIL_RUN)


@dataclass(kw_only=True, eq=False, repr=False)
class GlideMQMessageTrigger(Serialized, BaseEventTrigger):
    """Creates asset events from the jobs of a queue: for an ``AssetWatcher``, or ``MessageQueueTrigger``.

    The payload of an event is ``{"queue": ..., "messages": [{"id", "job", "data"}, ...]}``, oldest first;
    ``id`` is the id of the job, the same for each delivery of the message. With ``until_run`` the messages
    also have ``added_at``, which ``acknowledge`` needs. The trigger holds a job as a worker does, and
    completes it when Airflow has stored its event. If the triggerer dies first, the message is delivered
    again half a minute later: consumers must tolerate duplicates. Before Airflow 3.3, a trigger is not
    notified of what was stored: there a job is completed 15 seconds after its event was passed on.

    A job whose message Airflow cannot store fails, and the others continue: its data has more than 48 KiB, is
    nested deeper than 50 levels, has integers of more than 64 bits, or is not JSON; or storing it has failed
    five times. Jobs with other names are returned to the workers of the queue, after a pause: prefer a queue
    that has only messages.

    Args:
        queue_name: The name of the queue.
        jobs: The name, or a list of names, of the jobs that are messages.
        glidemq_conn_id: The connection.
        batch_size: The max number of messages per event, 1 to 500. An event holds 256 KiB at most.
        interval: The min time between events; messages that arrive in between are in the next event. Airflow
            starts one DAG run for events in quick succession, and may overlook the last of them until the
            next event. While ``max_active_runs`` runs of a DAG are active, it overlooks all but the first
            event in this way.
        until_run: A message is repeated in another event after this long, 10 seconds or more, unless a run
            has acknowledged it: see ``acknowledge``. So an overlooked message need not wait for the next one.
            Choose a time longer than a run and its wait; otherwise a run may get a message several times.
            None: a message is completed when its event is stored.

    Raises:
        ValueError, TypeError: A parameter is invalid.
    """

    queue_name: str
    jobs: str | Sequence[str]
    glidemq_conn_id: str = DEFAULT_CONN_ID
    batch_size: int = 500
    interval: Seconds = Converted(5.0, partial(in_seconds, least=0))
    until_run: OptionalSeconds = Converted(None, _until_run)

    def __post_init__(self) -> None:
        """Refuse invalid values. Watchers with equal arguments share a trigger and its events."""
        super().__init__()  # type: ignore[no-untyped-call]
        check_text("queue_name", self.queue_name)
        check_text("glidemq_conn_id", self.glidemq_conn_id)
        given, self.jobs = self.jobs, [self.jobs] if isinstance(self.jobs, str) else sorted(set(self.jobs))
        if not self.jobs or not all(isinstance(name, str) and name for name in self.jobs):
            raise ValueError(f"jobs must be the name of a job or a list of names, got {given!r}")
        size: object = self.batch_size
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"batch_size must be a whole number, got {size!r}")
        if not 1 <= size <= MAX_MESSAGES:
            raise ValueError(f"batch_size must be 1 to {MAX_MESSAGES}, got {size}")

    # -- Airflow 3.3: a stream with acknowledgements ---------------------------------------------------------

    def shared_stream_key(self) -> Hashable:
        """Triggers with equal arguments share one stream."""
        given = (self.batch_size, self.interval, self.until_run)
        return ("glidemq", self.glidemq_conn_id, self.queue_name, *self.jobs, *given)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """The producer of the stream, which takes the jobs and completes those that were stored."""
        from airflow_provider_glidemq.triggers.stream import MessageProducer  # noqa: PLC0415  Airflow 3.3

        return MessageProducer(cls(**kwargs).batches())

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """An event for each batch."""
        async for payload in shared_stream:
            yield MessagesEvent(payload=payload)

    # -- before Airflow 3.3: an event counts as stored after SETTLED_SECONDS ---------------------------------

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each batch, indefinitely."""
        loop = asyncio.get_running_loop()
        async with contextlib.aclosing(self.batches()) as batches:
            async for inbox, batch in batches:
                yield MessagesEvent(payload=batch.payload)
                loop.call_later(SETTLED_SECONDS, inbox.stored, batch)

    async def batches(self) -> AsyncGenerator[tuple[Inbox, MessageBatch]]:
        """Yield the messages, indefinitely; after an error, log it and continue after a pause."""
        consumer = await module("consumer")
        source = consumer.Source(self.glidemq_conn_id, self.queue_name)
        pauses = reconnect_pauses()
        while True:
            try:
                terms = consumer.Terms(self.batch_size, self.interval, self.until_run)
                async with consumer.consuming(source, self.jobs, terms) as inbox:
                    while True:
                        batch = await inbox.next()
                        pauses = reconnect_pauses()
                        yield inbox, batch
            except Exception as exc:  # noqa: BLE001  of any class: the watcher continues
                pause = next(pauses)
                self.log.warning(
                    "Queue %s cannot be read over connection %s, retrying in %.1f s: %s: %s",
                    self.queue_name, self.glidemq_conn_id, pause, type(exc).__name__, exc,
                )  # fmt: skip
            await asyncio.sleep(pause)
