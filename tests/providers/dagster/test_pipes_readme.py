"""The example of the README, run as it stands there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from glidemq_orchestrate import FlowNode, FlowSpec

README = Path(__file__).parents[3] / "providers" / "dagster" / "README.md"


def blocks() -> list[str]:
    section = README.read_text(encoding="utf-8").partition("\n## Pipes\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_examples_run(
    url: str, instance: dg.DagsterInstance, run_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLIDEMQ_URL", url)
    asset, worker, flow = blocks()
    steps: dict[str, Any] = {}
    exec(worker, steps)
    run_worker(["etl"], steps["handlers"])
    nodes = [FlowNode("a", queue="etl", job="clean"), FlowNode("b", queue="etl", job="clean", after=["a"])]
    names: dict[str, Any] = {"spec": FlowSpec("nightly", nodes)}
    exec(asset, names)
    result = names["defs"].resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    (event,) = result.get_asset_materialization_events()
    assert event.materialization.metadata["rows"].value == 3
    exec(flow, names)
    assert set(names["etl"].keys) == {dg.AssetKey("a"), dg.AssetKey("b")}
