"""Jobs of steps that do nothing, for ``dagster_steps``: for each way and each number in ``STEPS``.

``glidemq worker --app benchmarks.dagster_jobs`` runs the nodes of those that are flows.
"""

import os
from typing import Final

import dagster as dg
from dagster_glidemq import GlideMQResource, glidemq_executor, glidemq_flow_assets

from glidemq_orchestrate import Context, FlowNode, FlowSpec, Handlers

AT_ONCE: Final = int(os.environ.get("AT_ONCE", "2"))
EXECUTORS: Final = {
    "glidemq": glidemq_executor,
    "in_process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor.configured({"max_concurrent": AT_ONCE}),
    "forkserver": dg.multiprocess_executor.configured(
        {"max_concurrent": AT_ONCE, "start_method": {"forkserver": {"preload_modules": [__name__]}}}
    ),
}
NODES: Final = "nothings"
handlers: Final = Handlers()


@handlers.handler("nothing")
def nothing_of_a_node(ctx: Context) -> None:
    """Do nothing."""


def flow_of(count: int) -> FlowSpec:
    """So many nodes that depend on nothing."""
    return FlowSpec(
        f"nothing {count}",
        [FlowNode(f"nothing_{number}", queue=NODES, job="nothing") for number in range(count)],
    )


@dg.op
def nothing() -> None:
    """Do nothing."""


def job_of(way: str, count: int) -> dg.JobDefinition:
    """So many steps that depend on nothing."""

    @dg.job(name=f"{way}_{count}", executor_def=EXECUTORS[way])
    def steps() -> None:
        for number in range(count):
            nothing.alias(f"nothing_{number}")()

    return steps


def job_of_one_op(count: int) -> dg.JobDefinition:
    """One step that runs so many nodes."""

    @dg.op
    def flow(context: dg.OpExecutionContext, glidemq: GlideMQResource) -> None:
        glidemq.run_flow(context, flow_of(count))

    @dg.job(name=f"one_op_{count}", executor_def=dg.in_process_executor)
    def steps() -> None:
        flow()

    return steps


def assets_of(count: int) -> dg.AssetsDefinition:
    """One step that runs so many nodes, each an asset."""
    return glidemq_flow_assets(flow=flow_of(count), name=f"nothings_{count}", key_prefix=[f"of_{count}"])


COUNTS: Final = [int(count) for count in os.environ.get("STEPS", "").split(",") if count]
ASSETS: Final = {count: assets_of(count) for count in COUNTS}

defs = dg.Definitions(
    assets=list(ASSETS.values()),
    jobs=[
        *(job_of(way, count) for way in EXECUTORS for count in COUNTS),
        *(job_of_one_op(count) for count in COUNTS),
        *(
            dg.define_asset_job(f"assets_{count}", [assets], executor_def=dg.in_process_executor)
            for count, assets in ASSETS.items()
        ),
    ],
    resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))},
)
