"""Columns, rows and paths of Iceberg as Spark has them, and the reverse; Arrow stands between the two."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def spark_schema(table: Table) -> StructType:
    """The columns of a table.

    Raises:
        Unrecoverable: Spark has no type for a column.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)
    except PySparkException as exc:
        raise Unrecoverable(f"Spark has no type for a column of the table: {exc}") from exc


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a frame, for a new table; all of them are nullable.

    Raises:
        Unrecoverable: Arrow has no type for a column.
    """
    import pyarrow as pa  # noqa: PLC0415  of an extra
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        takes_zone = "timezone" in signature(to_arrow_schema).parameters  # otherwise it assumes UTC
        zone: dict[str, Any] = {"timezone": "UTC"} if takes_zone else {}
        found = to_arrow_schema(frame.schema, **zone)
    except (PySparkException, TypeError) as exc:
        raise Unrecoverable(f"Iceberg has no type for a column of the frame: {exc}") from exc
    return pa.schema([field.with_nullable(True) for field in found])


def fitted_rows(frame: DataFrame, table: Table) -> DataFrame:
    """The frame with the columns of a table, in their order and with their types.

    Raises:
        Unrecoverable: It has other columns, or lacks a required one.
    """
    from pyspark.errors import AnalysisException

    schema = spark_schema(table)
    if more := sorted(set(frame.columns) - set(schema.names)):
        raise Unrecoverable(
            f"the table has no column {', '.join(more)}: add it to the table, or drop it from the frame"
        )
    try:
        return frame.to(schema)
    except AnalysisException as exc:
        first = str(exc).strip().splitlines()[0]
        raise Unrecoverable(f"the frame does not fit the table: {first}") from exc


def current_rows(spark: SparkSession, table: Table) -> DataFrame:
    """The rows of the newest snapshot.

    Spark itself reads the Parquet files if they contain just rows. If other programs have deleted rows
    without rewriting the files, or changed columns, pyiceberg reads them, and all rows pass through this
    process.
    """
    from pyspark import __version__

    schema, scan = spark_schema(table), table.scan()
    tasks = list(scan.plan_files())
    is_plain = len(table.schemas()) == 1 and all(
        not task.delete_files and task.file.file_format == "PARQUET" for task in tasks
    )
    if is_plain and tasks:
        return spark.read.schema(schema).parquet(*(for_spark(task.file.file_path) for task in tasks))
    rows = scan.to_arrow()
    return spark.createDataFrame(
        [tuple(row.values()) for row in rows.to_pylist()] if __version__.startswith("3.") else rows, schema
    )


def for_spark(location: str) -> str:
    """A catalog's location in Spark's form: the scheme of Hadoop's file system for S3 is ``s3a``."""
    scheme, separator, rest = location.partition("://")
    return f"s3a://{rest}" if separator and scheme in {"s3", "s3n"} else location
