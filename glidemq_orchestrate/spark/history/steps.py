"""The Spark steps of the history pipeline. Each may run again, or be killed: see ``spark.published``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as fn  # noqa: TID253  loaded by Spark steps only

from glidemq_orchestrate.spark.history import report as reporting
from glidemq_orchestrate.spark.history import transforms
from glidemq_orchestrate.spark.published.locations.version import NotPublished
from glidemq_orchestrate.spark.published.publish import publish, publish_files
from glidemq_orchestrate.spark.published.reading import read_published
from glidemq_orchestrate.spark.setup.request import location_of
from glidemq_orchestrate.wire.codec import Json
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODES: Final = "nodes"
OVERLAP: Final = timedelta(hours=1)
"""The overlap with the last run, before the last known end of a flow: an end may be written late."""


def collect(spark: SparkSession, ctx: Context, *, days: int) -> dict[str, Json]:
    """Add the nodes of the flows that have ended since the last run to the table ``nodes``.

    Its columns are ``transforms.COLUMNS``, ``collected_at`` and ``day``, by which it is partitioned. A flow
    that was read before counts once a day, as it is now (``transforms.newest``); one of an earlier
    generation stays.

    Returns:
        The numbers of ``flows`` and ``nodes`` that were read, the time ``since`` which, and the table's
        version.
    """
    location, now = f"{location_of(ctx)}/{NODES}", datetime.now(UTC)
    known = _published(spark, location)
    since = (_last(known) or now - timedelta(days=days + 1)) - OVERLAP
    source = spark.read.format("glidemq").option("since", since.isoformat())
    flows = source.option("table", "flows").load().selectExpr(
        "flow_id", "generation", "created_at as flow_created_at", "finished_at as flow_finished_at"
    )  # fmt: skip
    nodes = source.option("table", "nodes").load().join(flows, ["flow_id", "generation"])
    new = (
        nodes.select(*transforms.COLUMNS)
        .withColumn("collected_at", fn.lit(now))
        .withColumn("day", fn.to_date("flow_finished_at"))
        .persist()  # the server is read once
    )
    touched = [row.day for row in new.select("day").distinct().collect()]
    rows = new
    if known is not None:
        rows = new.unionByName(known.where(fn.col("day").isin(touched)).select(*new.columns))
    output = publish(ctx, location, transforms.newest(rows), partition_by=["day"], replace="partitions")
    return {
        "flows": new.select("flow_id", "generation").distinct().count(),
        "nodes": new.count(),
        "since": since.isoformat(),
        **output,
    }


def tabulate(spark: SparkSession, ctx: Context, *, days: int, table: str) -> dict[str, Json]:
    """Build one of the tables of ``flow.TABLES`` from the last days; see ``transforms``.

    Raises:
        Unrecoverable: There is no such table.
    """
    make = {
        "durations": transforms.durations,
        "slowest": transforms.slowest,
        "retries": transforms.retries,
        "critical_paths": transforms.critical_paths,
    }.get(table)
    if make is None:
        raise Unrecoverable(f"the history has no table {table}")
    first = fn.date_sub(fn.current_date(), days)
    nodes = read_published(spark, f"{location_of(ctx)}/{NODES}").where(fn.col("day") >= first)
    rows = make(transforms.timed(transforms.newest(nodes)))
    output = publish(ctx, f"{location_of(ctx)}/{table}", rows.coalesce(1))
    return {"table": table, **output}


def report(spark: SparkSession, ctx: Context, *, days: int) -> dict[str, Json]:
    """Draw the tables: ``chart.png``, and a summary in a few numbers.

    Returns:
        ``chart`` (its path) and ``summary``; see ``report.summary``.
    """
    tables = {
        name: [row.asDict() for row in _table(spark, ctx, name).collect()]
        for name in ("durations", "slowest", "retries")
    }
    paths = _table(spark, ctx, "critical_paths")
    slow = paths.orderBy(fn.col("flow_s").desc(), "flow_id").limit(1).select("flow_id", "generation")
    longest = paths.join(slow, ["flow_id", "generation"]).orderBy("place").collect()
    tables["path"] = [row.asDict() for row in longest]

    def write(folder: Path) -> None:
        reporting.write_chart(tables, days, folder / "chart.png")

    output = publish_files(ctx, f"{location_of(ctx)}/report", write)
    published: Any = output["published"]
    return {**output, "chart": f"{published['path']}/chart.png", "summary": reporting.summary(tables)}


def _table(spark: SparkSession, ctx: Context, name: str) -> DataFrame:
    return read_published(spark, ctx.inputs[name])


def _published(spark: SparkSession, location: str) -> DataFrame | None:
    try:
        return read_published(spark, location)
    except NotPublished:
        return None


def _last(known: DataFrame | None) -> datetime | None:
    """The UTC time when the last known flow ended."""
    row = None if known is None else known.agg(fn.unix_micros(fn.max("flow_finished_at"))).first()
    if row is None or row[0] is None:
        return None
    return datetime.fromtimestamp(row[0] / 1_000_000, UTC)
