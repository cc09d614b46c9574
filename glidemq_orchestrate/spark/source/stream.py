"""Events as they occur: the reader of a stream, whose position in each queue Spark stores."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import datasource as api  # noqa: TID253  the importers of this module have it

from glidemq_orchestrate.errors import ConfigurationError, EventsLost
from glidemq_orchestrate.events import entry_order
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.shards import split_shard
from glidemq_orchestrate.spark.source.events import START, Mark, between, marks, pages, row
from glidemq_orchestrate.spark.source.jobs import queues_of
from glidemq_orchestrate.spark.source.options import Options, RetryingClient
from glidemq_orchestrate.spark.source.part import grouped
from glidemq_orchestrate.spark.source.scan import MAX_ROWS, ROWS
from glidemq_orchestrate.spark.source.tables import record_batch
from glidemq_orchestrate.wire.keys import QueueKeys, check_queue_name

logger = logging.getLogger(__name__)

KNOWN: Final = ("table", "queue", "startingOffsets", "failOnDataLoss", "rows_per_partition", "path")
STREAM: Final = frozenset({"startingoffsets", "failondataloss"})
DISCOVERY_SECONDS: Final = 30.0
"""The interval at which a stream of all queues finds new ones, by a scan of the keys."""
PAUSE_SECONDS: Final = 0.1


@dataclass(frozen=True)
class _Reading:
    """The options of a stream. ``queues``: None for all."""

    queues: tuple[str, ...] | None
    from_now: bool
    may_lose: bool
    rows: int


@dataclass(frozen=True)
class _Part:
    """Events of a queue between two positions. ``is_new``: the checkpoint had no position in the queue."""

    queue: str
    low: Mark
    high: Mark
    is_new: bool = False

    @property
    def count(self) -> int:
        """The number of events; negative if the queue was obliterated in between."""
        return self.high.count - self.low.count

    @property
    def begin(self) -> Mark:
        """The position before the events; the start of a queue that began again with its clock set back."""
        return START if entry_order(self.high.id) < entry_order(self.low.id) else self.low

    def loss(self, read: int) -> tuple[str, str] | None:
        """What is missing after so many events were read, and the fix; None if nothing is missing."""
        remedy = "set the option failOnDataLoss to false to continue with the existing events"
        lost = f"{self.count - read:,} " if self.count > read else ""
        if read > max(self.count, 0):
            text = (
                f"queue {self.queue} has begun again since it was last read: it was obliterated, or the "
                "server was emptied. Its earlier unread events are gone"
            )
        elif read == self.count:
            return None
        elif self.is_new:
            text = f"{lost}older events of queue {self.queue}, which is new to this checkpoint, are gone"
        else:
            text = (
                f"{lost}events of queue {self.queue} were trimmed, or removed with it, before they were read"
            )
            remedy = "read more often, or set the option failOnDataLoss to false to continue without them"
        return text, remedy


class EventStreamReader(api.DataSourceStreamReader):
    """Reads the events of queues from batch to batch; see ``GlideMQDataSource``.

    For each queue, an offset has the id of the last event and the number of events that the queue has had
    until then: ``{"etl": "1795633606849-2 22"}``. So a task can count the missing events of its part. A
    queue that was obliterated counts from zero: then there are more events than its part had.
    """

    def __init__(self, settings: ConnectionSettings, reading: _Reading) -> None:
        self._settings, self._reading = settings, reading
        self._client: RetryingClient | None = None
        self._queues: Sequence[str] = reading.queues or ()
        self._discovered_at = self._asked_at = -math.inf

    @classmethod
    def of(cls, given: Mapping[str, str]) -> EventStreamReader:
        """Read the options of a stream.

        Raises:
            ConfigurationError: An option is unknown or invalid.
        """
        options = Options(given, KNOWN, "a stream of glidemq")
        if options.text("table") not in (None, "events"):
            raise ConfigurationError("only the table events can be read as a stream; read the others again")
        start = options.choices("startingOffsets", ("latest", "earliest")) or ("latest",)
        return cls(
            options.settings(),
            _Reading(
                options.names("queue", check_queue_name),
                from_now=start[0] == "latest",
                may_lose=not options.boolean("failOnDataLoss", default=True),
                rows=options.whole("rows_per_partition", ROWS, 1, MAX_ROWS),
            ),
        )

    def initialOffset(self) -> dict[str, str]:  # noqa: N802  Spark's
        """The offset at which a new stream starts."""
        return self._marks(oldest=not self._reading.from_now)

    def latestOffset(self) -> dict[str, str]:  # type: ignore[override]  # noqa: N802  as in PySpark 4.0
        """The offset of the newest events. Spark repeats the call while there are no new ones."""
        time.sleep(max(0.0, self._asked_at + PAUSE_SECONDS - time.monotonic()))
        self._asked_at = time.monotonic()
        return self._marks()

    def stop(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _marks(self, *, oldest: bool = False) -> dict[str, str]:
        client = self._client = self._client or RetryingClient(self._settings)
        now = time.monotonic()
        if now > self._discovered_at + DISCOVERY_SECONDS:
            self._discovered_at, self._queues = now, queues_of(client, self._reading.queues)
        found = client.ask(lambda: marks(client.prefix, self._queues, oldest=oldest))
        return {queue: _text(mark) for queue, mark in found.items()}

    def __getstate__(self) -> dict[str, Any]:
        """The state without the connection, for the tasks."""
        return {**self.__dict__, "_client": None}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[api.InputPartition]:
        """The parts of a batch. A queue that is not in the offset is new: all its events are.

        Raises:
            ConfigurationError: The option ``queue`` omits a queue that was read so far. Its position would be
                lost, and its events would be read again once the queue is added again.
        """
        self._check_queues(start)
        parts = [
            _Part(queue, _mark(start.get(queue)), _mark(high), queue not in start)
            for queue, high in end.items()
        ]
        parts = [part for part in parts if part.low != part.high]
        groups = grouped(parts, [max(part.count, 0) for part in parts], self._reading.rows)
        return [api.InputPartition(group) for group in groups]

    def _check_queues(self, start: Mapping[str, str]) -> None:
        """Refuse to lose the position in a queue.

        When a query restarts, Spark requests the parts of an empty batch at the last offset, before it
        records a new one: so the checkpoint stays unchanged.
        """
        named = self._reading.queues
        left = (
            []
            if named is None
            else [one for one in sorted(start) if not {one, split_shard(one)[0]} & {*named}]
        )
        if left:
            more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
            raise ConfigurationError(
                f"the checkpoint of this stream reads queue {left[0]}{more}, which the option queue leaves "
                "out: name it again, or begin a new checkpoint"
            )

    def read(self, partition: api.InputPartition) -> Iterator[Any]:
        """The events of some queues, as record batches.

        Raises:
            EventsLost: Events are missing, and ``failOnDataLoss`` is on.
        """
        with RetryingClient(self._settings) as client:
            for part in partition.value:
                read = 0
                span = between(QueueKeys(client.prefix, part.queue), part.begin, part.high)
                for events in pages(client, span):
                    read += len(events)
                    yield record_batch("events", [row(part.queue, event) for event in events])
                self._check(part, read)

    def _check(self, part: _Part, read: int) -> None:
        """Warn about missing events, or fail."""
        if (loss := part.loss(read)) is None:
            return
        text, remedy = loss
        if not self._reading.may_lose:
            raise EventsLost(f"{text}: {remedy}")
        logger.warning("%s", text, extra={"action": "events_lost", "queue": part.queue})


def _text(mark: Mark) -> str:
    return f"{mark.id} {mark.count}"


def _mark(text: str | None) -> Mark:
    if text is None:
        return START
    entry_id, _, count = text.partition(" ")
    return Mark(entry_id, int(count))
