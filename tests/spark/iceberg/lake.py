"""What tests of tables of Iceberg share: writing one, committing it, and reading it as others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from glidemq_orchestrate import Context
from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.spark import publish_iceberg
from glidemq_orchestrate.spark.published.locations.target import target_of
from glidemq_orchestrate.spark.published.locations.version import publications_in
from glidemq_orchestrate.worker.handlers.context import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TABLE = "lake.sales.orders"


class Owner(Reporter):
    """A worker that still owns the job."""

    def check_owner(self) -> None:
        """It does."""


class Nobody(Reporter):
    """One that does not."""

    def check_owner(self) -> None:
        raise LeaseLost("this attempt no longer owns job j")


def context(epoch: int, reports: Reporter | None = None) -> Context:
    reports = reports or Owner()
    return Context("spark", "j", "spark.python", 1, {}, {}, None, None, reports, epoch=epoch, token="t")


def wrote(spark: SparkSession, epoch: int, sql: str, **options: Any) -> Any:
    """Publish the rows of a statement; nobody has accepted them yet."""
    return publish_iceberg(context(epoch), TABLE, spark.sql(sql), **options)


def made(spark: SparkSession, result: Any) -> bool:
    """What happens when its result is accepted."""
    (place,) = publications_in(result)
    return target_of(place.location, spark).make(place.name)


def published(spark: SparkSession, epoch: int, sql: str, **options: Any) -> Any:
    result = wrote(spark, epoch, sql, **options)
    assert made(spark, result)
    return result


def table() -> Any:
    return load_catalog("lake").load_table("sales.orders")


def rows() -> list[tuple[Any, ...]]:
    """What any other engine sees."""
    found = table().scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def others(number: int) -> None:
    """Somebody else adds a row."""
    one = table()
    one.append(pa.table({"n": [number]}, schema=one.schema().as_arrow()))


def expire() -> None:
    """Somebody lets all snapshots but the newest expire."""
    one = table()
    newest = one.current_snapshot().snapshot_id
    ids = [snapshot.snapshot_id for snapshot in one.snapshots() if snapshot.snapshot_id != newest]
    one.maintenance.expire_snapshots().by_ids(ids).commit()


def commits() -> int:
    return len(table().snapshots())
