"""Spark steps for the system test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from glidemq_orchestrate import Context


def count(spark: SparkSession, ctx: Context, *, rows: int, of: str) -> dict[str, Any]:
    assert isinstance(ctx.data, dict)

    def slowly(part: Iterable[Any]) -> Iterable[Any]:
        time.sleep(2)
        return part

    found = spark.sparkContext.parallelize(range(rows), 4).mapPartitions(slowly).count()
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
    return {"rows": found, "partitions": partitions, "of": of, "location": ctx.data["location"]}


def never_ends(spark: SparkSession, ctx: Context) -> int:
    def sleeping(part: Iterable[Any]) -> Iterable[Any]:
        time.sleep(0.5)
        return part

    return spark.sparkContext.parallelize(range(10_000), 10_000).mapPartitions(sleeping).count()
