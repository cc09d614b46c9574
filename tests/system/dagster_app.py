"""A Dagster job and the handlers of its worker, for ``test_dagster_job``. Payloads name a directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_glidemq import GlideMQResource, glidemq_flow_assets

from glidemq_orchestrate import Context, FlowNode, FlowSpec, Handlers

handlers = Handlers()


@handlers.handler("step")
def step(ctx: Context) -> Any:
    """Note the run; fail, or wait to be cancelled, where a file of the test asks for it."""
    place = Path(str(ctx.data["place"]) if isinstance(ctx.data, dict) else "")
    with (place / "runs").open("a") as runs:
        runs.write(f"{ctx.node}\n")
    if (place / f"fail-{ctx.node}").exists():
        raise ValueError(f"{ctx.node} is broken")
    if (place / f"hold-{ctx.node}").exists():
        ended = "cancelled" if ctx.cancelled.wait(30) else "waited in vain"
        (place / f"held-{ctx.node}").write_text(ended)
    return {"node": ctx.node, "inputs": sorted(ctx.inputs)}


def flow() -> FlowSpec:
    """extract, then left and right, then report."""
    data: dict[str, Any] = {"place": os.environ.get("TEST_PLACE", "")}
    after = {"extract": [], "left": ["extract"], "right": ["extract"], "report": ["left", "right"]}
    return FlowSpec(
        "etl",
        nodes=[FlowNode(name, queue="etl", job="step", data=data, after=to) for name, to in after.items()],
    )


etl = glidemq_flow_assets(flow=flow(), build=lambda _: flow(), nodes=["extract", "left", "right"])
defs = dg.Definitions(
    assets=[etl],
    jobs=[dg.define_asset_job("etl_job")],
    resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))},
)


def etl_job() -> dg.JobDefinition:
    """The job, for ``reconstructable``."""
    return defs.resolve_job_def("etl_job")
