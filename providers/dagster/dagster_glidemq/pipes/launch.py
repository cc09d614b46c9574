"""Notes in the event log which flow a step runs, as the clients of Dagster do it from 1.13 on."""

from __future__ import annotations

import dagster as dg

from dagster_glidemq.identity import Context
from dagster_glidemq.private import reattach_module

CLIENT_NAME = "PipesGlideMQClient"


def record_launch(context: Context, flow_id: str, url: str, *, goes_on: bool) -> None:
    """Note it, before the flow is submitted. Repeatable.

    Its id is known by then, and a kill in between leaves the note of a flow that does not exist, which may be
    begun; not a flow that no event names.

    Args:
        context: The step.
        flow_id: The flow.
        url: Where a dashboard shows it; may be empty.
        goes_on: An earlier run has begun it.
    """
    reattach = reattach_module()
    if reattach is None:
        return
    step: dg.OpExecutionContext = context.op_execution_context
    handle = reattach.find_latest_launch_handle(step, client_name=CLIENT_NAME) if goes_on else None
    if handle is not None and handle.external_run_id == flow_id:
        reattach.record_external_reattach(step, handle)
    else:
        reattach.record_external_launch(
            step, client_name=CLIENT_NAME, external_run_id=flow_id, external_run_url=url or None
        )
