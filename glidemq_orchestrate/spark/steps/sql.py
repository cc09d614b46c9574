"""``spark.sql`` jobs: a statement of Spark SQL as a step, with named parameters and tables, never formatted.

The payload is::

    {"file": "mypackage.queries:daily.sql",
     "args": {"day": "2026-01-01"},
     "tables": {"orders": {"node": "clean"}, "planes": "/lake/planes"},
     "publish": {"location": "/lake/daily", "partition_by": ["day"], "replace": "partitions"}}

``file`` is a file of a package that the worker may import from (``--allow-import``). Instead, ``"sql":
"select ..."`` is the statement itself. Such a text can call any Java method (``java_method``), so a worker
runs it only with ``GLIDEMQ_SPARK_ALLOW_SQL=1``. ``args`` are the parameters, such as ``:day`` in the
statement; ``inputs`` replaces some of them by results of dependencies, as for functions. ``tables`` are
published tables by their names in the statement: a location, or a node that has published one. With
``publish`` the rows become a version of a table (``publish``), or go to a table of Iceberg (``"location":
"iceberg:lake.sales.daily"``); else the first hundred are the result: ``{"columns": [...], "rows": [[...]],
"more": false}``. ``location``, ``conf``, ``session`` and ``lineage`` are those of any step.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from glidemq_orchestrate.spark.published.locations.iceberg.table import SCHEME, is_iceberg
from glidemq_orchestrate.spark.published.publish import publish, publish_iceberg
from glidemq_orchestrate.spark.published.reading import read_published
from glidemq_orchestrate.spark.setup.request import packaged_file
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import (
    InvalidCall,
    NamedCall,
    put_inputs,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL_JOB: Final = "spark.sql"
ALLOW_VARIABLE: Final = "GLIDEMQ_SPARK_ALLOW_SQL"
MAX_ROWS: Final = 100
_PUBLISH: Final = frozenset({"location", "format", "partition_by", "replace", "options"})
_OF_FILES: Final = frozenset({"format", "options"})
"""Its fields that do not apply to tables of Iceberg."""
_MIN: Final = -(2**63)
"""The minimum of Spark's largest integer type."""
_BITS: Final = 31
"""Bits of an ``int`` of Spark, without the sign; larger numbers are a ``bigint``."""
_FIELDS: Final = frozenset({"sql", "file", "args", "inputs", "tables", "publish"})


def statement_of(ctx: Context, fields: Sequence[str]) -> NamedCall:
    """The call for the payload of a job.

    Args:
        ctx: The job.
        fields: Further fields that the payload may have.

    Raises:
        InvalidCall: It is malformed, or may not run here.
    """
    data = ctx.data
    if not isinstance(data, dict):
        raise InvalidCall(f"a {SQL_JOB} job needs an object with file or sql as its data")
    if unknown := sorted(set(data) - _FIELDS - set(fields)):
        raise InvalidCall(f"a {SQL_JOB} job has no field {', '.join(unknown)}; parameters go under args")
    file, text = data.get("file"), data.get("sql")
    if isinstance(file, str) and text is None:
        title = f"statement {file}"
        text = _read(title, file, ctx.allow_import)
    elif isinstance(text, str) and file is None:
        title = "the statement"
        if os.environ.get(ALLOW_VARIABLE) != "1":
            raise InvalidCall(
                f"this worker runs statements from files only: a text can call any Java method; "
                f"{ALLOW_VARIABLE}=1 allows it"
            )
    else:
        raise InvalidCall(f"a {SQL_JOB} job needs either file or sql, a string")
    args = data.get("args")
    given: dict[str, Any] = {} if args is None else dict(args) if isinstance(args, dict) else {"": None}
    put_inputs(title, given, data.get("inputs"), ctx.inputs)
    if not all(name.isidentifier() and _is_plain(value) for name, value in given.items()):
        raise InvalidCall(f"{title}: args must be an object of plain values, or lists of them, by name")
    for name, value in given.items():
        _check(title, name, value)
    tables = data.get("tables")
    if tables is not None and not (isinstance(tables, dict) and all(name.isidentifier() for name in tables)):
        raise InvalidCall(f"{title}: tables must be an object of locations, or nodes, by name")
    target = data.get("publish")
    if target is not None and not (isinstance(target, dict) and _is_valid_target(target)):
        raise InvalidCall(f"{title}: publish must be an object of {', '.join(sorted(_PUBLISH))}")
    return NamedCall(title, _run, {"text": text, "args": given, "tables": tables or {}, "target": target})


def _run(  # noqa: PLR0913, PLR0917  as a step is called
    spark: SparkSession,
    ctx: Context,
    text: str,
    args: dict[str, Any],
    tables: Mapping[str, Json],
    target: Mapping[str, Any] | None,
) -> Json:
    for name, source in tables.items():
        read_published(spark, _source(ctx, name, source)).createOrReplaceTempView(name)
    values = {name: _parameter(value) for name, value in args.items()}
    frame = spark.sql(text, args=values) if values else spark.sql(text)
    if target is not None:
        more = dict(target)
        location = more.pop("location")
        if is_iceberg(location):
            return publish_iceberg(ctx, location.removeprefix(SCHEME), frame, **more)
        return publish(ctx, location, frame, **more)
    rows = frame.limit(MAX_ROWS + 1).collect()
    return {
        "columns": list(frame.columns),
        "rows": [[_json(value) for value in row] for row in rows[:MAX_ROWS]],
        "more": len(rows) > MAX_ROWS,
    }


def _read(title: str, file: str, allowed: Sequence[str]) -> str:
    form = "package:path/of/file.sql"
    if not file.endswith(".sql"):
        raise InvalidCall(f"{title}: a file must be written {form}")
    found = packaged_file(title, file, allowed, form)
    try:
        return found.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as exc:
        raise InvalidCall(f"{title} cannot be read: {type(exc).__name__}") from exc


def _source(ctx: Context, name: str, source: Json) -> str | Json:
    if isinstance(source, str):
        return source
    node = source.get("node") if isinstance(source, dict) else None
    if not isinstance(node, str) or node not in ctx.inputs:
        raise InvalidCall(
            f'table {name} must be a location, or {{"node": ...}} with a node that this one depends on'
        )
    result: Json = ctx.inputs[node]
    return result


def _is_valid_target(target: Mapping[str, Json]) -> bool:
    location = target.get("location")
    columns, options = target.get("partition_by", []), target.get("options", {})
    return (
        isinstance(location, str)
        and set(target) <= (_PUBLISH - _OF_FILES if is_iceberg(location) else _PUBLISH)
        and isinstance(columns, list)
        and all(isinstance(one, str) for one in columns)
        and isinstance(options, dict)
        and all(isinstance(one, str) for one in options.values())
        and all(isinstance(target.get(name, ""), str) for name in ("format", "replace"))
    )


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(not isinstance(one, list) and _is_plain(one) for one in value)
    return value is None or isinstance(value, str | int | float)


def _check(title: str, name: str, value: Json) -> None:
    """Refuse values without a literal in Spark."""
    from pyspark import __version__

    if isinstance(value, list) and __version__.startswith("3."):
        raise InvalidCall(
            f"{title}: the list {name} of args needs Spark 4; pass the values one by one, and write "
            "array(:a, :b) in the statement"
        )
    parts = value if isinstance(value, list) else [value]
    kinds = {"null" if one is None else type(one).__name__ for one in parts}
    if len(kinds) > 1 and kinds != {"int", "float"}:
        raise InvalidCall(
            f"{title}: the list {name} of args has {' and '.join(sorted(kinds))}: Spark takes lists of "
            "one type, without null; pass the values one by one, and write array(:a, :b) in the statement"
        )
    if any(isinstance(one, int) and not _MIN <= one < -_MIN for one in parts):
        raise InvalidCall(
            f"{title}: {name} of args has a number of more than 64 bits: pass it as a string, and cast it "
            "in the statement"
        )


def _parameter(value: Any) -> Any:
    """A value for Spark: the numbers of a list get one type, because Spark casts no part of a list."""
    if not isinstance(value, list):
        return value
    if any(isinstance(one, float) for one in value):
        return [float(one) for one in value]
    if any(isinstance(one, int) and one.bit_length() > _BITS for one in value):
        from pyspark.sql import functions

        return functions.array(*(functions.expr(f"{one:d}L") for one in value))
    return value


def _json(value: Any) -> Json:
    """A value of a row as JSON: times in ISO format, and types that JSON lacks as text."""
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(name): _json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):  # a row is a tuple
        fields = getattr(value, "__fields__", None)
        parts = [_json(one) for one in value]
        return dict(zip(fields, parts, strict=True)) if fields else parts
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)
