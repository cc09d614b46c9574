"""A sensor that cancels leftover flows of canceled runs: their step died, or did not reach the server."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Final

import dagster as dg

from dagster_glidemq.flow_run import ROOT_LABEL, live_owners, run_of
from dagster_glidemq.resource import GlideMQResource
from glidemq_orchestrate import Flow, FlowProducer
from glidemq_orchestrate.errors import FlowNotFound, Superseded
from glidemq_orchestrate.runs import Patience

PATIENCE: Final = 30.0
PAGE: Final = 100


def build_glidemq_cancellation_sensor(
    *,
    name: str = "glidemq_cancellation",
    resource_key: str = "glidemq",
    minimum_interval_seconds: int | None = None,
    monitor_all_code_locations: bool | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.RunStatusSensorDefinition:
    """Build a sensor that cancels the flows of a canceled run that are still running.

    A terminated step cancels its flow itself. If it cannot, because its process was killed or the server was
    unreachable for longer than ``cancel_patience``, this sensor cancels the flow once the run is canceled.
    Without the sensor, the flow ends when the lease of the step expires (``lease``). A flow with another
    owner, such as a later run, continues. Evaluations are repeatable.

    Args:
        name: Name of the sensor.
        resource_key: Key of the ``GlideMQResource``.
        minimum_interval_seconds: As for every sensor; the daemon evaluates sensors every 5 seconds at most.
        monitor_all_code_locations: Whether the runs of all code locations count; by default only those of the
            sensor's own.
        default_status: Whether the sensor runs without being started in the UI.

    Example:
        .. code-block:: python

            defs = dg.Definitions(
                assets=[assets],
                sensors=[build_glidemq_cancellation_sensor()],
                resources={"glidemq": GlideMQResource(url=dg.EnvVar("GLIDEMQ_URL"))},
            )
    """

    def cancel(context: dg.RunStatusSensorContext, **given: GlideMQResource) -> None:
        glidemq = given.get(resource_key) or getattr(context.resources, resource_key)
        run = context.dagster_run
        with glidemq.get_client() as producer:
            for flow in _flows_of(producer, run.root_run_id or run.run_id):
                if cancel_left_flow(flow, run.run_id, context.instance):
                    context.log.info("flow %s of run %s has been cancelled", flow.id, run.run_id)

    takes = inspect.Parameter.POSITIONAL_OR_KEYWORD  # Dagster gives resources to parameters by their names
    parameters = [
        inspect.Parameter("context", takes),
        inspect.Parameter(resource_key, takes, annotation=GlideMQResource),
    ]
    cancel.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return dg.RunStatusSensorDefinition(
        name=name,
        run_status=dg.DagsterRunStatus.CANCELED,
        run_status_sensor_fn=cancel,
        minimum_interval_seconds=minimum_interval_seconds,
        monitor_all_code_locations=monitor_all_code_locations,
        default_status=default_status,
        description="Cancels the flows of canceled runs that still run.",
    )


def cancel_left_flow(flow: Flow, run_id: str, instance: dg.DagsterInstance) -> bool:
    """Cancel a flow if a step of this run owns it and no other owner is left. Repeatable."""
    patience = Patience(PATIENCE)
    try:
        owners = patience(flow.owners)
        mine = [one for one in owners if run_of(one) == run_id]
        others = [one for one in owners if run_of(one) != run_id]
        if not mine or live_owners(others, instance):
            return False
        patience(lambda: flow.cancel(f"Dagster run {run_id} was canceled", generation=flow.generation))
    except (FlowNotFound, Superseded):
        return False
    return True


def _flows_of(producer: FlowProducer, root_run_id: str) -> Iterator[Flow]:
    """The running flows of a chain of runs."""
    patience, before = Patience(PATIENCE), None
    while True:
        page = patience(
            lambda before=before: producer.list(  # type: ignore[misc]
                state="running", label=(ROOT_LABEL, root_run_id), before=before, limit=PAGE
            )
        )
        for status in page:
            try:
                yield patience(lambda status=status: producer.get(status.id))  # type: ignore[misc]
            except FlowNotFound:
                continue
        if len(page) < PAGE:
            return
        before = page[-1]
