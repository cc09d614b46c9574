"""Run flows of jobs on Valkey from Dagster: a resource for ops and assets, and assets built from a flow."""

from __future__ import annotations

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_glidemq.assets import glidemq_flow_assets
from dagster_glidemq.checks import GlideMQCheck, build_glidemq_workers_check
from dagster_glidemq.components import GlideMQFlowComponent
from dagster_glidemq.executor import glidemq_executor
from dagster_glidemq.launcher import GlideMQRunLauncher
from dagster_glidemq.pipes import PipesGlideMQClient
from dagster_glidemq.reexecution import flow_id_for, is_retry, root_run_id
from dagster_glidemq.resource import GlideMQResource
from dagster_glidemq.sensors import (
    build_glidemq_cancellation_sensor,
    build_glidemq_event_sensor,
    build_glidemq_flow_sensor,
    build_glidemq_queue_depth_sensor,
)
from glidemq_orchestrate.runs import Changes

__version__ = "0.1.0"

__all__ = [
    "Changes",
    "GlideMQCheck",
    "GlideMQFlowComponent",
    "GlideMQResource",
    "GlideMQRunLauncher",
    "PipesGlideMQClient",
    "__version__",
    "build_glidemq_cancellation_sensor",
    "build_glidemq_event_sensor",
    "build_glidemq_flow_sensor",
    "build_glidemq_queue_depth_sensor",
    "build_glidemq_workers_check",
    "flow_id_for",
    "glidemq_executor",
    "glidemq_flow_assets",
    "is_retry",
    "root_run_id",
]

DagsterLibraryRegistry.register("dagster-glidemq", __version__, is_dagster_package=False)
