"""``publish_iceberg``: rows for a table of Iceberg, which come to it once, when the result was accepted."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.iceberg.change import Change
from glidemq_orchestrate.spark.published.iceberg.partitions import parts_of, split
from glidemq_orchestrate.spark.published.iceberg.schemas import arrow_schema, fitted
from glidemq_orchestrate.spark.published.iceberg.table import SCHEME, IcebergTable, catalog_of
from glidemq_orchestrate.spark.published.publish import digest_of, partitions, seal, write_counted
from glidemq_orchestrate.spark.published.version import ATTEMPTS, NotPublished, Publication, Version, name_of
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPLACES: Final = ("all", "partitions", "nothing")
PARQUET: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""How Iceberg has times: in microseconds, by one calendar also before 1582."""
MAKING_PAUSES: Final = (0.1, 0.5, 2.0, 2.0)
"""Seconds, at most, between tries to make a table."""


def publish_iceberg(
    ctx: Context,
    table: str,
    frame: DataFrame,
    *,
    replace: str = "all",
    partition_by: Sequence[str] = (),
) -> dict[str, Json]:
    """Write rows for a table of Apache Iceberg: one commit of it, once the server has accepted the result.

    Spark writes the files, below the location of the table, and pyiceberg commits them, so Spark need not
    know of Iceberg. Other engines may read and write the table meanwhile. An attempt that is killed, late or
    not accepted changes nothing in the table. Call it once for each table of an attempt, and return what it
    returns, by itself or as a part of the step's result: by that others commit if this worker dies before it
    has, and steps that follow read it.

    Args:
        ctx: The context of the step.
        table: ``catalog.namespace.table``; the catalog is one of pyiceberg's configuration
            (``PYICEBERG_CATALOG__<NAME>__URI``, ``.pyiceberg.yaml``), which all Spark workers must have. A
            table that is not there is made, with the columns of the frame.
        frame: The rows: columns of the table by name, cast to its types where no value is lost; those that
            are missing are null.
        replace: ``all``: the rows of the table. ``partitions``: those of the partitions that the frame has
            rows of. ``nothing``: the rows are added; then a job that runs again when it had completed (a task
            that was cleared, a new generation of a flow) adds them again.
        partition_by: The columns by which a table that is made is partitioned, as they are.

    Returns:
        ``{"published": {"location", "name", "path", "rows", "columns", "schema_digest"}}``, as ``publish``
        does; ``location`` is ``iceberg:`` and the name of the table.

    Raises:
        LeaseLost: The attempt has lost its job while it wrote; nothing counts.
        Unrecoverable: An argument is not usable, or the frame does not fit the table.
        ConfigurationError: pyiceberg is missing, or knows no such catalog.
        TableChanged: The columns or partitions of the table were changed while the frame was written, so it
            may not fit any more: the job is to run again.
        NotPublished: The context is not that of a job in a worker.
        Exception: Whatever Spark or the catalog raises.
    """
    location, name = f"{SCHEME}{table}", name_of(ctx)
    if replace not in REPLACES:
        raise Unrecoverable(f"replace must be one of {', '.join(REPLACES)}")
    target = _opened(location, frame, partition_by)
    parts = parts_of(target.table)
    if partition_by and [part.column for part in parts] != list(partition_by):
        has = ", ".join(part.column for part in parts) or "nothing"
        raise Unrecoverable(f"table {table} is partitioned by {has}, not by {', '.join(partition_by)}")
    if replace == "partitions" and not parts:
        raise Unrecoverable(f'table {table} has no partitions: replace must be "all" or "nothing"')
    fitting = fitted(frame, target.table)
    below = f"{ATTEMPTS}/{name}"
    path, folders = f"{target.store.location}/{below}", [part.folder for part in parts]
    for setting, value in PARQUET.items():
        frame.sparkSession.conf.set(setting, value)  # for this step alone
    rows = write_counted(split(fitting, parts), path, "parquet", folders, {})
    version = Version(
        name,
        "parquet",
        fitting.schema.jsonValue(),
        partitions(target.store, below, len(folders)) if folders else None,
        replace == "all",
        adds=replace == "nothing",
        table=target.id,
    )
    version = dataclasses.replace(version, files=len(target.files(Change.of(version))))
    target.check_unchanged()
    place = Publication(location, name)
    seal(ctx, target.store, version, place)
    return place.result(path=path, rows=rows, columns=list(fitting.columns), schema_digest=digest_of(fitting))


def _opened(location: str, frame: DataFrame, partition_by: Sequence[str]) -> IcebergTable:
    """The table; made if it is not there, also when several steps make it at once."""
    for pause in MAKING_PAUSES:
        try:
            return IcebergTable.opened(location, frame.sparkSession)
        except NotPublished:
            try:
                _make(location, frame, partition_by)
            except Unrecoverable:
                raise
            except Exception:  # noqa: BLE001  of another kind with each catalog, where another step was faster
                time.sleep(random.uniform(0, pause))  # noqa: S311  so that two do not meet again
    _make(location, frame, partition_by)
    return IcebergTable.opened(location, frame.sparkSession)


def _make(location: str, frame: DataFrame, partition_by: Sequence[str]) -> None:
    """Make the table, with its namespace.

    Raises:
        Unrecoverable: The frame has no such columns, or one that Iceberg has no type for.
        Exception: Whatever the catalog raises.
    """
    if unknown := sorted(set(partition_by) - set(frame.columns)):
        raise Unrecoverable(f"partition_by: the frame has no column {', '.join(unknown)}")
    catalog, name = catalog_of(location)
    catalog.create_namespace_if_not_exists(name[:-1])
    making = catalog.create_table_transaction(name, arrow_schema(frame))
    with making as made, made.update_spec() as spec:
        for column in partition_by:
            spec.add_identity(column)
