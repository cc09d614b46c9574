"""GlideMQDataSource, by which Spark reads and writes. A separate module: it imports PySpark."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from pyspark.sql import datasource as api  # noqa: TID253
from pyspark.sql.types import StructType  # noqa: TID253

from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.spark.source.options import Options
from glidemq_orchestrate.spark.source.reader import TableReader
from glidemq_orchestrate.spark.source.rows import WRITE, RowJobs, write_id_of
from glidemq_orchestrate.spark.source.scan import scan_of
from glidemq_orchestrate.spark.source.stream import STREAM, EventStreamReader
from glidemq_orchestrate.spark.source.tables import NAME, TABLES, ddl
from glidemq_orchestrate.spark.source.writer import StreamWriter, TableWriter


class GlideMQDataSource(api.DataSource):
    """The data source ``glidemq`` of Spark 4: jobs, flows, nodes and so on as tables, and rows as jobs.

    Spark steps have it registered; elsewhere call ``spark.dataSource.register(GlideMQDataSource)``. Executors
    connect by themselves, so they must be able to reach the server, and need this package. An option for one
    or more names is a text, or a JSON array of texts: ``'["etl", "bi"]'``.

    **Connection**: ``url``, ``prefix`` and the other fields of ``ConnectionSettings`` (``ssl_keyfile`` for
    ``key``). The default of ``url`` is ``GLIDEMQ_URL`` in the environment in which the driver's JVM was
    started.

    **Reading**: ``spark.read.format("glidemq").option("table", ...).load()`` with a table of
    ``tables.TABLES`` (the schema has a comment for each column). Each task reads about ``rows_per_partition``
    rows (10,000), page by page. These options select rows; with ``spark.sql.python.filterPushdown.enabled``
    (Spark 4.1), filters on the same columns do the same:

    * ``jobs``: ``queue``, ``state``, ``since`` and ``until`` (of ``finished_at``). ``payload`` false leaves
      out data and result.
    * ``flows``: ``queue`` (their home), ``state``, ``flow_id``, ``since`` and ``until`` (of ``finished_at``),
      ``created_since`` and ``created_until``; ``generations`` ``all`` for the superseded ones too.
    * ``nodes``: those of ``flows`` choose the flows, with ``flow_state`` for their state, and ``state`` that
      of the nodes. Only current generations have nodes.
    * ``elements``: the results of the completed elements of an array: ``flow_id`` and ``node`` (both needed).
    * ``events``: ``queue``, ``since`` and ``until`` (of ``at``).

    Times are ISO 8601 with a zone; ``until`` is excluded. Jobs that are ``completed``, ``failed``,
    ``delayed``, ``waiting`` or ``active`` have indexes. For jobs that wait for others or for their ordering
    key, or were taken from a priority list, all keys of the server are scanned, so select states if possible.
    Flows have an index by state and ``created_at``; for ``since`` and ``until``, one field of each ended flow
    is read.

    A read is not a snapshot. Rows that do not change during the read are read once; a job that changes its
    state may be missing, or appear twice, with two states. A flow or node is in its state at the time of its
    read.

    **Streaming**: ``spark.readStream`` with the table ``events``, and ``queue``, ``startingOffsets``
    (``latest`` or ``earliest``) and ``failOnDataLoss``. Each event is read once, even after a restart from
    the checkpoint. The server keeps about 1,000 events of a queue: if events are trimmed before they are
    read, the query fails with ``EventsLost``, unless ``failOnDataLoss`` is false. A queue that is new to the
    checkpoint is read from its first event. A queue in the checkpoint must not be omitted from the option
    ``queue``.

    **Writing**: ``frame.write.format("glidemq").option("queue", ...).option("name",
    ...).mode("append").save()`` adds a job for each row, for the handler ``name``.

    * ``key``: the columns that identify a row, never null. Without it all do, and equal rows are one job.
    * ``write_id``: the id of the write, a new one by default. Id and key make the id of the job, so a task
      that Spark repeats adds nothing twice, nor does the write when it is repeated with its id, also when the
      jobs have ended and were removed.
    * ``remember``: for how long the rows are known, seconds or ISO 8601, ``P7D`` by default. Each takes about
      150 bytes on the server until then.
    * ``data``: the column that is the payload; a string is taken as JSON. Without it the whole row is, as an
      object: see ``values`` for the forms of types.
    * ``attempts``; ``priority`` and ``delay`` (seconds), each a number or a column; ``ordering_key``, a
      column; and ``options``, a JSON object with any field of ``JobOptions``, as in a flow file.

    A write is not atomic: workers start with the first rows. With ``writeStream`` (PySpark 4.1), the query
    and the number of the batch are the id of a write.

    Errors of options and columns are raised on the driver, before anything is read or added.
    """

    @classmethod
    def name(cls) -> str:
        """``glidemq``."""
        return NAME

    def schema(self) -> str:
        """The columns of the table."""
        if STREAM & {name.lower() for name in self.options}:
            EventStreamReader.of(self.options)
            return ddl("events")
        return ddl(scan_of(self.options)[0].table)

    def reader(self, schema: StructType) -> TableReader:
        """Read a table."""
        scan, options = scan_of(self.options)
        _check_schema(schema, scan.table)
        return TableReader(options.settings(), scan)

    def streamReader(self, schema: StructType) -> EventStreamReader | RefusedStream:  # noqa: N802  Spark's
        """Read events as they occur; see ``RefusedStream`` for invalid options."""
        try:
            reader = EventStreamReader.of(self.options)
            _check_schema(schema, "events")
        except ConfigurationError as exc:
            return RefusedStream(exc)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:  # noqa: FBT001  Spark's
        """Add rows as jobs."""
        options = self._writing(WRITE, overwrite=overwrite)
        write_id = write_id_of(options, uuid4().hex)
        return TableWriter(options.settings(), RowJobs.read(options, schema), write_id)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Add the rows of a stream as jobs."""
        options = self._writing([*WRITE, "checkpointLocation", "path"], overwrite=overwrite)
        if options.text("write_id") is not None:
            raise ConfigurationError(
                "a stream has no option write_id: query and number of each batch are the id of a write"
            )
        return StreamWriter(options.settings(), RowJobs.read(options, schema))

    def _writing(self, known: object, *, overwrite: bool) -> Options:
        if overwrite:
            raise ConfigurationError('jobs can only be added: write to glidemq with .mode("append")')
        return Options(self.options, known, "a write to glidemq")  # type: ignore[arg-type]


def _check_schema(schema: StructType, table: str) -> None:
    if schema.names != [column.name for column in TABLES[table]]:
        raise ConfigurationError(
            f"the columns of the glidemq table {table} are its own: leave out .schema(...)"
        )


class RefusedStream(api.DataSourceStreamReader):
    """A stream with invalid options, which raises the error at its first use.

    When ``streamReader`` itself raises, PySpark ends with another error, which hides the reason. Spark first
    calls ``initialOffset`` for a new stream, ``latestOffset`` for one that continues, and ``partitions`` if a
    batch was planned before.
    """

    def __init__(self, error: ConfigurationError) -> None:
        self._error = error

    def _refuse(self, *_: Any) -> Any:
        raise self._error

    initialOffset = latestOffset = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815  Spark's
