"""The flights pipeline as Dagster assets: one step runs 20 Spark steps as one flow.

It needs workers for the job ``spark.python`` on the queue ``spark``. ``GLIDEMQ_URL`` names the server, and
``GLIDEMQ_FLIGHTS_DATA`` (or ``location`` in the step's config) the directory that all workers can write;
every run gets a subdirectory. ``GLIDEMQ_FLIGHTS_FLOW_ID`` may set the id of the flow, and
``GLIDEMQ_FLIGHTS_MONTHS`` the months of 2013, such as ``1,2``.
"""

from __future__ import annotations

import os

import dagster as dg
from dagster_glidemq import GlideMQResource, glidemq_flow_assets, root_run_id

from glidemq_orchestrate import FlowSpec
from glidemq_orchestrate.spark.flights.flow import SECTIONS, build, chosen_months

QUEUE = "spark"
MONTHS = chosen_months()


def build_for_run(context: dg.AssetExecutionContext) -> FlowSpec:
    """The flow of one run; a re-execution uses the files of the earlier run."""
    location = context.op_execution_context.op_config["location"]
    return build(f"{location}/{root_run_id(context)}", queue=QUEUE, months=MONTHS)


flights = glidemq_flow_assets(
    flow=build("", queue=QUEUE, months=MONTHS),
    build=build_for_run,
    flow_id=lambda _: os.environ.get("GLIDEMQ_FLIGHTS_FLOW_ID"),
    nodes=["join", *(f"delay-by-{section}" for section in SECTIONS)],
    quality="quality",
    key_prefix=["flights"],
    group_name="flights",
    config_schema={
        "location": dg.Field(
            dg.StringSource,
            default_value={"env": "GLIDEMQ_FLIGHTS_DATA"},
            description="Directory that all workers can write.",
        )
    },
)

flights_job = dg.define_asset_job("flights_job", selection=dg.AssetSelection.assets(flights))

defs = dg.Definitions(
    assets=[flights],
    jobs=[flights_job],
    resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))},
)
