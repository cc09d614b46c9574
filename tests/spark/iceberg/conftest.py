"""A catalog of Iceberg in a file, and the steps that publish to its tables."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from glidemq_orchestrate.spark.published.locations.iceberg.table import loaded

STEPS = """
    from glidemq_orchestrate.spark import publish_iceberg, read_published

    def orders(spark, ctx, *, day, rows):
        frame = spark.range(rows).selectExpr("id", f"date'{day}' as day")
        return publish_iceberg(ctx, "lake.sales.orders", frame, replace="partitions", partition_by=["day"])

    def total(spark, ctx):
        mine = sum(read_published(spark, result).count() for result in ctx.inputs.values())
        return [mine, read_published(spark, "iceberg:lake.sales.orders").count()]
"""


@pytest.fixture(autouse=True)
def _catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog in a file, as its users configure it."""
    (tmp_path / "lake").mkdir()
    for name, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path / 'catalog.db'}",
        "WAREHOUSE": (tmp_path / "lake").as_uri(),
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "iceberg_steps.py").write_text(textwrap.dedent(STEPS))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.setattr(
        pyiceberg.catalog, "_ENV_CONFIG", Config()
    )  # it reads its settings when it is imported
    loaded.cache_clear()
    load_catalog("lake")  # which makes the tables of the catalog
