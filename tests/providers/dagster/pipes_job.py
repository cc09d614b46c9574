"""A Dagster job that runs by Pipes what ``GLIDEMQ_URL`` serves; also run in a process that is killed."""

import os
from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster_glidemq import PipesGlideMQClient

from glidemq_orchestrate import FlowNode, FlowSpec

FLOW = FlowSpec(
    "etl",
    [
        FlowNode("a", queue="etl", job="step", data={"asset": "a"}),
        FlowNode("b", queue="etl", job="step", data={"asset": "b"}, after=["a"]),
        FlowNode("c", queue="etl", job="step", data={"asset": "c"}, after=["a"]),
    ],
)


@dg.multi_asset(
    specs=[
        dg.AssetSpec("a", skippable=True),
        dg.AssetSpec("b", deps=["a"], skippable=True),
        dg.AssetSpec("c", deps=["a"], skippable=True),
    ],
    can_subset=True,
)
def etl(context: dg.AssetExecutionContext, pipes: PipesGlideMQClient) -> Iterator[Any]:
    """Stream the results of the flow."""
    yield from pipes.stream(context=context, flow=FLOW, extras={"limit": int(os.environ.get("LIMIT", "3"))})


@dg.asset
def cleaned(context: dg.AssetExecutionContext, pipes: PipesGlideMQClient) -> Any:
    """Run one job."""
    return pipes.run(context=context, job="clean", queue="etl").get_materialize_result()


defs = dg.Definitions(
    assets=[etl, cleaned],
    jobs=[
        dg.define_asset_job("flow_job", selection=["a", "b", "c"], executor_def=dg.in_process_executor),
        dg.define_asset_job("clean_job", selection=["cleaned"], executor_def=dg.in_process_executor),
    ],
    resources={
        "pipes": PipesGlideMQClient(url=dg.EnvVar("GLIDEMQ_URL"), require_workers=False, poll_interval=0.1)
    },
)


def flow_job() -> dg.JobDefinition:
    """The job with the flow."""
    return defs.resolve_job_def("flow_job")


def clean_job() -> dg.JobDefinition:
    """For ``reconstructable``."""
    return defs.resolve_job_def("clean_job")


def main() -> None:
    """Run the job in this process."""
    with dg.DagsterInstance.get() as instance:
        dg.execute_job(dg.reconstructable(clean_job), instance)


if __name__ == "__main__":
    main()
