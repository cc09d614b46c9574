"""Columns, rows, partitions and paths of Iceberg as Spark has them, and the reverse, by way of Arrow.

A file of Iceberg belongs to one partition, so files are written into folders such as
``glidemq_day=v2026-01-01``; the columns themselves stay in the files. ``v`` begins a value, ``n`` is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession
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


def fit_rows(frame: DataFrame, table: Table) -> DataFrame:
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


PREFIX: Final = "glidemq_"
_PLAIN: Final = frozenset({"boolean", "int", "long", "string", "date", "decimal"})
_TIMES: Final = frozenset({"timestamp", "timestamptz"})
_UTC: Final = frozenset({"UTC", "Etc/UTC", "Z", "GMT"})
_SPARK: Final = {"year": "yyyy", "month": "yyyy-MM", "day": "yyyy-MM-dd", "hour": "yyyy-MM-dd-HH"}
_PYTHON: Final = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}


@dataclass(frozen=True, slots=True)
class Part:
    """A field of the partitioning: an unchanged column (``unit`` is empty), or a time's year, month, ..."""

    column: str
    unit: str
    kind: str

    @property
    def folder(self) -> str:
        """The name of its folders."""
        return f"{PREFIX}{self.unit + '_' if self.unit else ''}{self.column}"


def parts_of(table: Table) -> list[Part]:
    """The partitioning of a table.

    Raises:
        Unrecoverable: Files for it cannot be written here.
    """
    schema, parts = table.schema(), list[Part]()
    for field in table.spec().fields:
        column, unit = schema.find_field(field.source_id), str(field.transform)
        kind = str(column.field_type).partition("(")[0]
        unit = "" if unit == "identity" else unit
        allowed = _PLAIN if not unit else (_TIMES | {"date"} if unit in _SPARK else frozenset())
        if kind not in allowed or "." in (schema.find_column_name(field.source_id) or ""):
            raise Unrecoverable(
                f"the table is partitioned by {unit or 'identity'} of {column.name} ({column.field_type}); "
                f"it must be by columns as they are ({', '.join(sorted(_PLAIN))}), or by the year, month, "
                "day or hour of a time"
            )
        parts.append(Part(column.name, unit, kind))
    return parts


def split(frame: DataFrame, parts: Iterable[Part]) -> DataFrame:
    """The frame with a column for each folder name.

    Raises:
        Unrecoverable: The session's time zone is not that of Iceberg.
    """
    from pyspark.sql.functions import col, concat, date_format, lit, when

    found: dict[str, Column] = {}
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    for part in parts:
        if part.unit and zone not in _UTC:
            raise Unrecoverable(
                f"the table is partitioned by {part.unit} of {part.column}, in UTC: "
                "set spark.sql.session.timeZone to UTC"
            )
        value = col(f"`{part.column.replace('`', '``')}`")
        text = date_format(value, _SPARK[part.unit]) if part.unit else value.cast("string")
        found[part.folder] = when(value.isNull(), lit("n")).otherwise(concat(lit("v"), text))
    return frame.withColumns(found) if found else frame


def rows_of(folders: Iterable[str], parts: Iterable[Part]) -> BooleanExpression:
    """The filter that finds the rows of partitions, by their folders: ``glidemq_day=v1/glidemq_hour=v2``."""
    from pyiceberg import expressions

    known = {part.folder: part for part in parts}
    found = [_joined(expressions.And, _terms(folder, known)) for folder in folders]
    return _joined(expressions.Or, found)


def _joined(by: Any, terms: list[BooleanExpression]) -> BooleanExpression:
    joined: BooleanExpression = terms[0] if len(terms) == 1 else by(*terms)
    return joined


def _terms(folder: str, known: Mapping[str, Part]) -> list[BooleanExpression]:
    from pyiceberg import expressions

    of: Any = expressions
    terms: list[BooleanExpression] = []
    for level in folder.split("/"):
        name, _, text = level.partition("=")
        part, value = known[unquote(name)], unquote(text)
        if value == "n":
            terms.append(of.IsNull(part.column))
        elif part.unit:
            begin, end = _span(part, value[1:])
            terms += [of.GreaterThanOrEqual(part.column, begin), of.LessThan(part.column, end)]
        else:
            terms.append(of.EqualTo(part.column, value[1:]))
    return terms


def _span(part: Part, text: str) -> tuple[str, str]:
    """The first moment of a year, month, ..., and that of the next one."""
    begin = datetime.strptime(text, _PYTHON[part.unit])  # noqa: DTZ007  the zone is added below
    days = {"hour": timedelta(hours=1), "day": timedelta(days=1)}.get(part.unit)
    if days is not None:
        end = begin + days
    elif part.unit == "month":
        end = (begin + timedelta(days=32)).replace(day=1)
    else:
        end = begin.replace(year=begin.year + 1)
    if part.kind == "date":
        return begin.date().isoformat(), end.date().isoformat()
    zone = "+00:00" if part.kind == "timestamptz" else ""
    return f"{begin.isoformat()}{zone}", f"{end.isoformat()}{zone}"
