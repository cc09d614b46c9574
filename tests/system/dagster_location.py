"""The code location of the system tests, with the example ``orders``.

The tag ``test/place`` of a run names a folder of its test.
"""

from __future__ import annotations

from typing import Any

import dagster as dg
from dagster_glidemq import (
    build_glidemq_event_sensor,
    build_glidemq_flow_sensor,
    build_glidemq_queue_depth_sensor,
    glidemq_flow_assets,
)

from dags.dagster import orders
from glidemq_orchestrate import FlowNode, FlowSpec

PLACE_TAG = "test/place"
PARTITIONS = dg.StaticPartitionsDefinition(["a", "b", "c"])
AFTER: dict[str, list[str]] = {
    "extract": [],
    "left": ["extract"],
    "right": ["extract"],
    "report": ["left", "right"],
}


def flow(name: str, place: str = "", suffix: str = "") -> FlowSpec:
    """extract, then left and right, then report."""
    data: Any = {"place": place, "suffix": suffix}
    nodes = [FlowNode(node, queue="etl", job="step", data=data, after=to) for node, to in AFTER.items()]
    return FlowSpec(name, nodes=nodes)


def of_run(context: dg.AssetExecutionContext) -> FlowSpec:
    """The flow of a run."""
    return flow("etl", context.run.tags.get(PLACE_TAG, ""))


def of_partition(context: dg.AssetExecutionContext) -> FlowSpec:
    """The flow of a partition."""
    return flow("daily", context.run.tags.get(PLACE_TAG, ""), f"-{context.partition_key}")


etl = glidemq_flow_assets(flow=flow("etl"), build=of_run, nodes=AFTER, key_prefix=["etl"])
daily = glidemq_flow_assets(
    flow=flow("daily"), build=of_partition, nodes=AFTER, key_prefix=["daily"], partitions_def=PARTITIONS
)

FLOWS = dg.DynamicPartitionsDefinition(name="flows")


@dg.asset(partitions_def=FLOWS)
def taken() -> None:
    """A partition for each flow that has ended."""


@dg.op
def nothing() -> None:
    """Ends at once."""


@dg.job
def seen() -> None:
    """What the sensor of events asks for."""
    nothing()


take = dg.define_asset_job("take", selection=[taken])
sensors = [
    build_glidemq_event_sensor(name="events_seen", queue="events", job=seen, minimum_interval_seconds=1),
    build_glidemq_flow_sensor(
        name="flows_taken", queues=["watched"], job=take, partitions=FLOWS, minimum_interval_seconds=1
    ),
    build_glidemq_queue_depth_sensor(
        name="queue_deep", queue="deep", at_least=3, job=seen, minimum_interval_seconds=1
    ),
]
defs = dg.Definitions.merge(
    orders.defs,
    dg.Definitions(
        assets=[etl, daily, taken],
        jobs=[dg.define_asset_job("etl_job", selection=dg.AssetSelection.assets(etl)), seen, take],
        sensors=sensors,
        executor=dg.in_process_executor,
    ),
)
