"""Columns of Iceberg as Spark knows them, and the other way round; Arrow stands between the two."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def spark_schema(table: Table) -> StructType:
    """The columns of a table.

    Raises:
        Unrecoverable: Spark has no such type.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True)
    except PySparkException as exc:
        raise Unrecoverable(f"Spark has no type for a column of the table: {exc}") from exc


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a frame, for a table that is to be made; each may be null there.

    Raises:
        Unrecoverable: Arrow has no such type.
    """
    import pyarrow as pa  # noqa: PLC0415  of an extra
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        takes_zone = "timezone" in signature(to_arrow_schema).parameters  # else UTC is what it takes
        zone: dict[str, Any] = {"timezone": "UTC"} if takes_zone else {}
        found = to_arrow_schema(frame.schema, **zone)
    except (PySparkException, TypeError) as exc:
        raise Unrecoverable(f"Iceberg has no type for a column of the frame: {exc}") from exc
    return pa.schema([field.with_nullable(True) for field in found])


def fitted(frame: DataFrame, table: Table) -> DataFrame:
    """The frame with the columns of a table, in their order and with their types.

    Raises:
        Unrecoverable: It has others, or lacks one that must have a value.
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
