"""Spark steps for the system test of lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def clean(spark: Any, ctx: Any) -> dict[str, Any]:
    """Read the raw numbers, and write the even ones; tell where."""
    place = Path(ctx.data["location"])
    raw = spark.read.csv(str(place / "raw"), schema="n int")
    raw.where("n % 2 = 0").write.mode("overwrite").parquet(str(place / "clean"))
    return {"rows": raw.count(), "lineage": {"outputs": [str(place / "clean")]}}
