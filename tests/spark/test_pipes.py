"""A Spark step reports to Dagster: real Dagster, Valkey and Spark."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_glidemq import PipesGlideMQClient

from glidemq_orchestrate.spark import handlers

pytestmark = pytest.mark.long

STEP = """
from glidemq_orchestrate.pipes import open_pipes

def count(spark, ctx, *, rows):
    with open_pipes(ctx) as pipes:
        counted = spark.range(rows).count()
        pipes.log.info("counted %s", counted)
        pipes.report_asset_materialization(metadata={"rows": counted})
    return {"rows": counted}
"""


@pytest.mark.usefixtures("_spark_environment")
def test_a_spark_step_reports(
    url: str, run_worker: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
    (tmp_path / "pipes_step.py").write_text(STEP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pipes_step", raising=False)
    run_worker(["spark"], handlers, allow_import=["pipes_step"])

    @dg.asset
    def counted(context: dg.AssetExecutionContext, pipes: PipesGlideMQClient) -> Any:
        data: dict[str, Any] = {"callable": "pipes_step:count", "arguments": {"rows": 1000}}
        return pipes.run(
            context=context, job="spark.python", queue="spark", data=data
        ).get_materialize_result()

    result = dg.materialize([counted], resources={"pipes": PipesGlideMQClient(url=url)})
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["rows"].value == 1000
