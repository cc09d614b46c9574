"""The rows of a table of Iceberg as it is now, for a Spark that has no catalog of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glidemq_orchestrate.spark.published.iceberg.schemas import spark_schema
from glidemq_orchestrate.spark.published.iceberg.table import for_spark
from glidemq_orchestrate.spark.release import is_spark_3

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession


def current_rows(spark: SparkSession, table: Table) -> DataFrame:
    """The rows of the newest snapshot.

    Spark reads the Parquet files by itself where each is just rows; where others have deleted rows without
    rewriting their files, or changed columns, pyiceberg reads them, and all pass through this process.
    """
    schema, scan = spark_schema(table), table.scan()
    tasks = list(scan.plan_files())
    is_plain = len(table.schemas()) == 1 and all(
        not task.delete_files and task.file.file_format == "PARQUET" for task in tasks
    )
    if is_plain and tasks:
        return spark.read.schema(schema).parquet(*(for_spark(task.file.file_path) for task in tasks))
    rows = scan.to_arrow()
    return spark.createDataFrame(
        [tuple(row.values()) for row in rows.to_pylist()] if is_spark_3() else rows, schema
    )
