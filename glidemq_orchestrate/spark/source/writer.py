"""Writers: each task adds its rows as jobs, in batches; a repeat of a task, or of the write, adds none."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext  # noqa: TID253  the importers of this module have it
from pyspark.sql import datasource as api  # noqa: TID253

from glidemq_orchestrate.clients.queue import Queue
from glidemq_orchestrate.errors import ConfigurationError, GlideMQError
from glidemq_orchestrate.settings import ConnectionSettings
from glidemq_orchestrate.spark.source.events import marks
from glidemq_orchestrate.spark.source.options import RetryingClient, patience
from glidemq_orchestrate.spark.source.rows import RowJobs, forget_old
from glidemq_orchestrate.wire.keys import QueueKeys

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

MAX_ROWS: Final = 500
BATCH_BYTES: Final = 4_000_000
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class Added(api.WriterCommitMessage):
    """What a task has done: how many rows it had, and how many of these were new."""

    rows: int
    added: int


class _Adding:
    """Adds rows, for both kinds of writers."""

    def __init__(self, settings: ConnectionSettings, rows: RowJobs) -> None:
        self._settings, self._rows = settings, rows
        with RetryingClient(settings) as client:  # an unreachable server is reported before any task begins
            client.ask(lambda: marks(client.prefix, [rows.queue]))

    def add(self, write_id: str, batches: Iterator[pa.RecordBatch]) -> Added:
        """Add the rows of a task."""
        done = Added(0, 0)
        patiently = patience()
        with Queue(self._rows.queue, self._settings) as queue:
            for rows in _slices(batches):
                jobs = list(self._rows.jobs(write_id, rows))
                ids = patiently(lambda: queue.add_many(jobs))  # noqa: B023  called at once
                done.rows += len(ids)
                done.added += sum(one is not None for one in ids)
        return done

    def tidy(self) -> None:
        """Remove the expired rows from the deduplication. If that fails, the write is still valid."""
        try:
            with RetryingClient(self._settings) as client:
                queue = QueueKeys(client.prefix, self._rows.queue)
                now_ms = client.now_ms()
                client.ask(lambda: forget_old(queue, now_ms))
        except GlideMQError as exc:
            logger.warning("the expired rows of queue %s cannot be removed yet: %s", self._rows.queue, exc)


class TableWriter(api.DataSourceArrowWriter):
    """Adds the rows of a table; see ``GlideMQDataSource``."""

    def __init__(self, settings: ConnectionSettings, rows: RowJobs, write_id: str) -> None:
        self._adding, self._write_id = _Adding(settings, rows), write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Added:
        """Add the rows of a task."""
        return self._adding.add(self._write_id, iterator)

    def commit(self, messages: list[api.WriterCommitMessage | None]) -> None:
        """All rows were added."""
        del messages
        self._adding.tidy()

    def abort(self, messages: list[api.WriterCommitMessage | None]) -> None:
        """Rows that were added stay: workers may have begun them. A repeat with the same id continues."""


_StreamWriter: Any = getattr(api, "DataSourceStreamArrowWriter", object)


class StreamWriter(_StreamWriter):  # type: ignore[misc]  # a class of PySpark 4.1
    """Adds the rows of each batch of a stream; query and number of the batch are the id of the write."""

    def __init__(self, settings: ConnectionSettings, rows: RowJobs) -> None:
        if _StreamWriter is object:
            raise ConfigurationError("writeStream to glidemq needs PySpark 4.1: write in foreachBatch")
        self._adding = _Adding(settings, rows)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Added:
        """Add the rows of a task of a batch."""
        task = TaskContext.get()
        query, batch = (task and task.getLocalProperty(name) for name in (_QUERY, _BATCH))
        if not query or not batch:
            raise ConfigurationError("this version of Spark does not report which batch is written")
        return self._adding.add(f"{query}/{batch}", iterator)

    def commit(self, messages: list[api.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All rows of a batch were added."""
        del messages
        if batchId % 100 == 0:
            self._adding.tidy()

    def abort(self, messages: list[api.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Rows that were added stay; Spark runs the batch again, which adds the others."""


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[Sequence[Sequence[Any]]]:
    """The rows, so many at a time that they have about ``BATCH_BYTES``."""
    for batch in batches:
        if not batch.num_rows:
            continue
        mean = max(1, math.ceil(batch.nbytes / batch.num_rows))
        count = max(1, min(MAX_ROWS, BATCH_BYTES // mean))
        for first in range(0, batch.num_rows, count):
            part = batch.slice(first, count)
            yield list(zip(*(column.to_pylist() for column in part.columns), strict=True))
