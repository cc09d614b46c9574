"""A day of orders: assets from a flow of functions, with partitions, checks, a schedule and two sensors.

    export PYTHONPATH=dags/dagster GLIDEMQ_URL=valkey://localhost:6379
    glidemq worker --app glidemq_orchestrate.python --queue orders --queue shop --allow-import orders_steps
    dagster dev -f dags/dagster/orders.py

Each day is one flow of ten jobs behind one step; a backfill runs many days. The schedule materializes each
day after its end. When a service has corrected the orders of a day, with a job on the queue ``shop``, a
sensor materializes that day again. Another sensor records the failure of a flow on the missing asset.
"""

from typing import Any

import dagster as dg
from dagster_glidemq import (
    GlideMQResource,
    build_glidemq_event_sensor,
    build_glidemq_flow_sensor,
    build_glidemq_workers_check,
    glidemq_flow_assets,
)

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions
from glidemq_orchestrate.events import Event
from glidemq_orchestrate.flows import FlowStatus

QUEUE, SHOP = "orders", "shop"
REGIONS = ["north", "east", "south", "west"]
SINCE = "2026-01-01"
DAYS = dg.DailyPartitionsDefinition(SINCE)
REPORT = dg.AssetKey(["orders", "report"])


def call(name: str, function: str, *after: str, inputs: Any = (), **arguments: Any) -> FlowNode:
    """A node that calls a function of ``orders_steps``."""
    data: Any = {"callable": f"orders_steps:{function}", "arguments": arguments, "inputs": list(inputs)}
    return FlowNode(name, queue=QUEUE, job="python", data=data, after=after, options=JobOptions(attempts=3))


def build(day: str) -> FlowSpec:
    """The flow of a day: the regions in parallel, then a check, then the report."""
    sums = [f"sum-{region}" for region in REGIONS]
    of_regions = [{"node": f"sum-{region}", "to": ["regions", region]} for region in REGIONS]
    nodes = [call(f"load-{region}", "load", day=day, region=region) for region in REGIONS]
    nodes += [
        call(
            f"sum-{region}",
            "summed",
            f"load-{region}",
            inputs=[{"node": f"load-{region}", "to": ["amounts"]}],
        )
        for region in REGIONS
    ]
    nodes += [
        call("check", "check", *sums, inputs=of_regions, regions={}),
        call("report", "report", "check", *sums, inputs=of_regions, regions={}),
    ]
    return FlowSpec("orders", nodes, labels={"day": day})


orders = glidemq_flow_assets(
    flow=build(SINCE),
    build_partition=lambda _context, day: build(day),
    asset_keys={f"sum-{region}": ["orders", region] for region in REGIONS},
    key_prefix=["orders"],
    group_name="orders",
    quality="check",
    partitions_def=DAYS,
)

served = build_glidemq_workers_check(asset=REPORT, flows=[build(SINCE)])

orders_job = dg.define_asset_job("orders_job", selection=dg.AssetSelection.assets(orders))

nightly = dg.build_schedule_from_partitioned_job(orders_job, name="nightly")


def corrected(event: Event) -> dg.RunRequest:
    """A run for the day that a job on ``shop`` has corrected."""
    return dg.RunRequest(partition_key=event.result["day"])


orders_corrected = build_glidemq_event_sensor(
    name="orders_corrected", queue=SHOP, kinds=["completed"], request=corrected, job=orders_job
)


def failed(flow: FlowStatus) -> dg.AssetObservation:
    """The reason why a day has no report, recorded on its asset."""
    return dg.AssetObservation(REPORT, partition=flow.labels["day"], metadata={"reason": flow.reason})


orders_failed = build_glidemq_flow_sensor(
    name="orders_failed", queues=[QUEUE], flow_name="orders", states=["failed"], request=failed
)

defs = dg.Definitions(
    assets=[orders],
    asset_checks=[served],
    jobs=[orders_job],
    schedules=[nightly],
    sensors=[orders_corrected, orders_failed],
    resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))},
)
