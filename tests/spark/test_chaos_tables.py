"""Chaos sees what is wrong in the tables of Spark steps: each kind is put where all is well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context
from glidemq_orchestrate.spark import publish
from glidemq_orchestrate.spark.published.locations.store import LocalStore
from glidemq_orchestrate.spark.published.locations.target import Folder
from glidemq_orchestrate.spark.published.locations.version import name_of
from glidemq_orchestrate.worker.handlers.context import Reporter
from tests.chaos.spark_steps import ROWS
from tests.chaos.spark_tables import wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Owner(Reporter):
    """A worker that still owns the job."""

    def check_owner(self) -> None:
        """It does."""


def accepted(spark: SparkSession, folder: Path, place: str, run: str, *, epoch: int, rows: int = ROWS) -> Any:
    """The result of a run that has published and was accepted."""
    ctx = Context("jvm", place, "spark.python", 1, {}, {}, None, None, Owner(), epoch=epoch, token=run)
    frame = spark.range(rows).selectExpr("id", f"'{run}' as run", f"'{place}' as place")
    own = publish(ctx, str(folder / place), frame)
    shared = publish(ctx, str(folder / "all"), frame, partition_by=["place"], replace="partitions")
    for location in (folder / place, folder / "all"):
        Folder(LocalStore(location)).make(name_of(ctx))
    return {"place": place, "run": run, "own": own, "shared": shared}


@pytest.mark.long
def test_chaos_sees_what_is_published_wrongly(spark: SparkSession, tmp_path: Path) -> None:
    one = accepted(spark, tmp_path, "f~a", "1:a", epoch=1_000)
    other = accepted(spark, tmp_path, "f~b", "1:b", epoch=1_001)
    before = accepted(spark, tmp_path, "f~c", "1:c", epoch=1_002)  # of a node that has ended otherwise since
    runs = [found["run"] for found in (one, other, before)]
    assert list(wrong(spark, [one, other], runs)) == []
    assert list(wrong(spark, [one, other], runs[:2])) == [
        f"the shared table shows {{'1:c': {ROWS}}} of f~c, which was not accepted"
    ]
    gone = {**one, "place": "f~d", "run": "1:d"}
    found = list(wrong(spark, [other, gone], runs))
    assert any(text.startswith("f~d was published by 1:d, and its result shows") for text in found)
    assert "f~d is published, and is not in the shared table" in found
    accepted(spark, tmp_path, "f~a", "2:a", epoch=2_000)
    found = list(wrong(spark, [one, other], [*runs, "2:a"]))
    assert len(found) == 2, "what was accepted is not what is read"
    assert found[0].startswith("f~a was published by 1:a, and its location shows")
    assert found[1].startswith("f~a was published by 1:a, and the shared table shows")
    half = accepted(spark, tmp_path, "f~b", "3:b", epoch=3_000, rows=7)
    assert "shows {'f~b': {'3:b': 7}}" in next(wrong(spark, [half], [*runs, "2:a", "3:b"]))
