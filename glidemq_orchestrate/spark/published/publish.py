"""``publish``, ``publish_files`` and ``publish_iceberg``: output that is safe to repeat, kill or delay.

Each attempt writes to its own folder. Once the server has accepted its result, the version counts; see
``acceptance``. So readers never see half-written data, nor data of an attempt whose result was not accepted.
What a kill leaves behind, and who repairs it:

- while the attempt writes: a folder without a version, which ``tidy`` removes after a grace period;
- after it has written, before its result is accepted: the same; the next attempt writes another folder;
- after its result is accepted, before the version exists: the server has noted the publication with the
  acceptance, in the queue, whether or not the job still exists (``Reporter.note_published``). A Spark worker
  of the queue makes the version within a minute or when it starts, and so does any reader of the result.

A process that was stopped and continues after another attempt has published writes to its own folder only,
and its result is refused. (A plain ``df.write.mode("overwrite").save(path)`` guarantees none of this: Spark
removes the old files before it writes the new ones, and nothing stops a process that resumes in between.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from glidemq_orchestrate.spark.published.acceptance import accepted
from glidemq_orchestrate.spark.published.locations.iceberg.conversion import (
    arrow_schema,
    fit_rows,
    parts_of,
    split,
)
from glidemq_orchestrate.spark.published.locations.iceberg.table import (
    SCHEME,
    IcebergTable,
    TableChange,
    catalog_of,
)
from glidemq_orchestrate.spark.published.locations.store import Store, store_of
from glidemq_orchestrate.spark.published.locations.target import fit_to_table
from glidemq_orchestrate.spark.published.locations.version import (
    ATTEMPTS,
    FILES,
    MANIFEST,
    NotPublished,
    Publication,
    Version,
    name_of,
)
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIME_ZONE: Final = "timeZone"
"""An option of Spark's readers and writers."""
FORMATS: Final = frozenset({"avro", "csv", "json", "orc", "parquet"})
"""The formats that write files, and nothing outside the given path."""


def publish(  # noqa: PLR0913  what Spark's writer takes
    ctx: Context,
    location: str,
    frame: DataFrame,
    *,
    format: str = "parquet",  # noqa: A002  Spark's word
    partition_by: Sequence[str] = (),
    replace: str = "all",
    options: Mapping[str, str] | None = None,
) -> dict[str, Json]:
    """Write a table as a new version of a location, which ``read_published`` reads once this job is done.

    Existing data are not changed: readers of an earlier version continue. Call this once per location and
    attempt, and return its result, alone or as part of the step's result: others use it to make the version
    if this worker dies first, and later steps use it to read exactly this version.

    Args:
        ctx: The context of the step.
        location: A directory or URI for this table only. It is created. All workers must reach it.
        frame: The rows.
        format: A file format of Spark: ``parquet``, ``orc``, ``json``, ``csv``, ``avro``.
        partition_by: Columns to partition by.
        replace: ``all``: the whole table. ``partitions``: only the partitions of which the frame has rows;
            the others stay (dynamic overwrite), including those that other jobs publish at the same time.
        options: Options of the format's writer, such as ``header``. They are stored with the data, and the
            reader gets them too.

    Returns:
        ``{"published": {"location", "name", "path", "rows", "columns", "schema_digest"}}``: ``path`` is the
        folder of this version, ``columns`` are the column names, and the digest (SHA-256) changes with any
        name, type or nullability.

    Raises:
        LeaseLost: The attempt lost its job while it wrote; nothing counts.
        Unrecoverable: An argument is invalid, or the table is partitioned differently.
        NotPublished: The context is not that of a job in a worker.
        Exception: What Spark raises.
    """
    columns = list(partition_by)
    if format not in FORMATS:
        raise Unrecoverable(f"format must be one of {', '.join(sorted(FORMATS))}")
    if replace not in {"all", "partitions"} or (replace == "partitions" and not columns):
        raise Unrecoverable('replace must be "all", or "partitions" with partition_by')
    store = store_of(location, frame.sparkSession)
    if replace == "partitions":
        frame, columns = fit_to_table(frame, columns, store)
    publication = Publication(store.location, name_of(ctx))
    given = dict(options or {})
    if columns and TIME_ZONE.casefold() not in {name.casefold() for name in given}:
        given[TIME_ZONE] = "UTC"  # of the names of partitions, for readers in any zone
    rows = write_counted(frame, publication.path, format, columns, given)
    version = Version(
        publication.name,
        format,
        frame.schema.jsonValue(),
        partitions(store, f"{ATTEMPTS}/{publication.name}", len(columns)) if columns else None,
        replace == "all",
        given,
        partition_by=tuple(columns),
    )
    seal(ctx, store, version, publication)
    return publication.result(rows=rows, columns=list(frame.columns), schema_digest=digest_of(frame))


def publish_files(ctx: Context, location: str, write: Callable[[Path], object]) -> dict[str, Json]:
    """Publish a folder of any files: ``published_path`` returns it once this job is done.

    See ``publish``; this always replaces everything.

    Args:
        ctx: The context of the step.
        location: A local or mounted directory.
        write: Called with an empty folder to write to.

    Returns:
        ``{"published": {"location", "name", "path"}}``.

    Raises:
        LeaseLost, Unrecoverable, NotPublished: See ``publish``.
        Exception: What ``write`` raises; then nothing is left behind.
    """
    store = store_of(location, None)
    publication = Publication(store.location, name_of(ctx))
    folder = Path(publication.path)
    folder.mkdir(parents=True)
    try:
        write(folder)
    except BaseException:
        store.remove(f"{ATTEMPTS}/{publication.name}")
        raise
    seal(ctx, store, Version(publication.name, FILES), publication)
    return publication.result()


def write_counted(
    frame: DataFrame, path: str, of: str, columns: Sequence[str], options: Mapping[str, str]
) -> int:
    """Write the rows to a folder, which must not exist, and return their number."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation()
    counted = frame.observe(seen, count(lit(1)).alias("rows"))
    writer = counted.write.format(of).options(**options)
    (writer.partitionBy(*columns) if columns else writer).save(path)
    rows: int = seen.get["rows"]
    return rows


def seal(ctx: Context, store: Store, version: Version, publication: Publication) -> None:
    """Record what the attempt has written, while it still owns the job.

    Raises:
        LeaseLost: It no longer owns the job.
    """
    store.create(f"{ATTEMPTS}/{version.name}/{MANIFEST}", version.text())
    ctx.check_owner()
    ctx.reporter.note_published([publication.line])
    accepted.expect((ctx.queue, ctx.job_id, ctx.epoch), [publication])


def digest_of(frame: DataFrame) -> str:
    """SHA-256 of the names, types and nullability of the columns."""
    return hashlib.sha256(frame.schema.json().encode()).hexdigest()


def partitions(store: Store, folder: str, levels: int) -> tuple[str, ...]:
    """The folders of the partitions in a folder, sorted, as ``day=1/hour=2``."""
    found = [""]
    for _ in range(levels):
        found = [
            f"{above}/{name}" if above else name
            for above in found
            for name in store.folders(f"{folder}/{above}" if above else folder)
            if "=" in name
        ]
    return tuple(sorted(found))


REPLACES: Final = ("all", "partitions", "nothing")
PARQUET: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
"""The times of Iceberg: in microseconds, with one calendar before 1582 too."""
MAKING_PAUSES: Final = (0.1, 0.5, 2.0, 2.0)
"""Maximum seconds between attempts to create a table."""


def publish_iceberg(
    ctx: Context,
    table: str,
    frame: DataFrame,
    *,
    replace: str = "all",
    partition_by: Sequence[str] = (),
) -> dict[str, Json]:
    """Write rows for a table of Apache Iceberg: one commit, once the server has accepted the result.

    Spark writes the files, below the location of the table, and pyiceberg commits them, so Spark needs no
    Iceberg library. Other engines may read and write the table at the same time. An attempt that is killed,
    late or not accepted changes nothing in the table. Call this once per table and attempt, and return its
    result, alone or as part of the step's result: others use it to commit if this worker dies first, and
    later steps use it to read.

    Args:
        ctx: The context of the step.
        table: ``catalog.namespace.table``; the catalog is one of pyiceberg's configuration
            (``PYICEBERG_CATALOG__<NAME>__URI``, ``.pyiceberg.yaml``), which all Spark workers must have. A
            missing table is created with the columns of the frame.
        frame: The rows, with columns of the table by name, cast to its types if no value is lost; missing
            columns are null.
        replace: ``all``: all rows of the table. ``partitions``: the partitions of which the frame has rows.
            ``nothing``: the rows are added; then a job that runs again after it had completed (a cleared
            task, a new generation of a flow) adds them again.
        partition_by: The columns that partition a table that is created, unchanged.

    Returns:
        ``{"published": {"location", "name", "path", "rows", "columns", "schema_digest"}}``, as ``publish``
        does; ``location`` is ``iceberg:`` and the name of the table.

    Raises:
        LeaseLost: The attempt lost its job while it wrote; nothing counts.
        Unrecoverable: An argument is invalid, or the frame does not fit the table.
        ConfigurationError: pyiceberg or the catalog is missing.
        TableChanged: The columns or partitions of the table changed while the frame was written, so it may no
            longer fit: run the job again.
        NotPublished: The context is not that of a job in a worker.
        Exception: What Spark or the catalog raises.
    """
    location, name = f"{SCHEME}{table}", name_of(ctx)
    if replace not in REPLACES:
        raise Unrecoverable(f"replace must be one of {', '.join(REPLACES)}")
    target = _open(location, frame, partition_by)
    parts = parts_of(target.table)
    if partition_by and [part.column for part in parts] != list(partition_by):
        has = ", ".join(part.column for part in parts) or "nothing"
        raise Unrecoverable(f"table {table} is partitioned by {has}, not by {', '.join(partition_by)}")
    if replace == "partitions" and not parts:
        raise Unrecoverable(f'table {table} has no partitions: replace must be "all" or "nothing"')
    fitting = fit_rows(frame, target.table)
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
    version = dataclasses.replace(version, files=len(target.files(TableChange.of(version))))
    target.check_unchanged()
    publication = Publication(location, name)
    seal(ctx, target.store, version, publication)
    return publication.result(
        path=path, rows=rows, columns=list(fitting.columns), schema_digest=digest_of(fitting)
    )


def _open(location: str, frame: DataFrame, partition_by: Sequence[str]) -> IcebergTable:
    """The table, which is created if it is missing, even if several steps do so at once."""
    for pause in MAKING_PAUSES:
        try:
            return IcebergTable.open(location, frame.sparkSession)
        except NotPublished:
            try:
                _make(location, frame, partition_by)
            except Unrecoverable:
                raise
            except Exception:  # noqa: BLE001  each catalog raises another class if another step was faster
                time.sleep(random.uniform(0, pause))  # noqa: S311  so that two steps do not collide again
    _make(location, frame, partition_by)
    return IcebergTable.open(location, frame.sparkSession)


def _make(location: str, frame: DataFrame, partition_by: Sequence[str]) -> None:
    """Create the table with its namespace.

    Raises:
        Unrecoverable: The frame lacks a column, or has one without a type in Iceberg.
        Exception: What the catalog raises.
    """
    if unknown := sorted(set(partition_by) - set(frame.columns)):
        raise Unrecoverable(f"partition_by: the frame has no column {', '.join(unknown)}")
    catalog, name = catalog_of(location)
    catalog.create_namespace_if_not_exists(name[:-1])
    making = catalog.create_table_transaction(name, arrow_schema(frame))
    with making as made, made.update_spec() as spec:
        for column in partition_by:
            spec.add_identity(column)
