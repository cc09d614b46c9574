"""A step reads at least what the steps before it have published."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.spark import NotPublished, publish, read_published
from glidemq_orchestrate.spark.published import acceptance
from glidemq_orchestrate.spark.published import reading as before
from glidemq_orchestrate.spark.published.reading import after_dependencies
from glidemq_orchestrate.worker.handlers.handler import Handlers
from tests.spark.published.writing import context, versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import RunWorker


def test_a_step_reads_at_least_what_the_steps_before_it_have_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A step begins when the result before it is accepted, a moment before its version is made."""
    location = str(tmp_path / "table")
    old = publish(context(1_000), location, spark.range(2))
    read_published(spark, old)
    new = publish(context(2_000), location, spark.range(5))
    other = publish(context(3_000), str(tmp_path / "other"), spark.range(7))
    with after_dependencies({"clean": {"tables": [new, other]}, "more": {"rows": 1}}, spark):
        assert read_published(spark, location).count() == 5
    assert read_published(spark, location).count() == 5, "it counts from now on"
    assert read_published(spark, str(tmp_path / "other")).count() == 7


def test_more_than_are_made_before_a_step_are_made_when_they_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before, "MAX_VERSIONS_MADE", 0)
    new = publish(context(2_000), str(tmp_path), spark.range(5))
    with after_dependencies({"clean": new}, spark):
        with pytest.raises(NotPublished):
            read_published(spark, str(tmp_path / "other"))
        assert not versions(tmp_path)
        assert read_published(spark, str(tmp_path)).count() == 5


def test_a_step_of_a_worker_knows_what_came_before_it(
    url: str, tmp_path: Path, warm_handlers: Handlers, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance.accepted, "make", lambda *_: None)  # the versions are late
    folder = str(tmp_path / "table")
    data: Any = {"callable": "published_steps:table", "arguments": {"rows": 9, "folder": folder}}
    reads: Any = {"callable": "published_steps:newest", "arguments": {"folder": folder}}
    nodes = [FlowNode("t", queue="spark", job="spark.python", data=data)]
    looks_away: Any = {"callable": "published_steps:looks_away"}
    nodes += [FlowNode("m", queue="spark", job="spark.python", data=looks_away, after=["t"])]
    nodes += [FlowNode("n", queue="spark", job="spark.python", data=reads, after=["m"])]
    run_worker(["spark"], warm_handlers, url=url, allow_import=["published_steps"])
    with FlowProducer(url) as flows:
        results: Any = flows.submit(FlowSpec("p", nodes)).result(timeout=timedelta(seconds=120))
    assert results["n"] == 9
