"""The flow id of a step in a Dagster run."""

from __future__ import annotations

from typing import Final

import dagster as dg

from glidemq_orchestrate.runs import derived_id

ROOT_RUN_TAG: Final = "dagster/root_run_id"

Context = dg.OpExecutionContext | dg.AssetExecutionContext


def root_run_id(context: Context) -> str:
    """The first run of a chain of re-executions and run retries; for the first, the run itself."""
    run = context.run
    return run.root_run_id or run.tags.get(ROOT_RUN_TAG) or run.run_id


def is_retry(context: Context) -> bool:
    """Whether this step may have run before: in an earlier run of the chain or an earlier try."""
    return root_run_id(context) != context.run.run_id or context.op_execution_context.retry_number > 0


def flow_id_for(context: Context, flow_name: str) -> str:
    """The id of the flow of one step: 35 characters, the same in every re-execution and retry.

    One step may run several flows if their names differ.

    Args:
        context: The step.
        flow_name: Name of the flow's specification.
    """
    step = context.op_execution_context
    return derived_id(
        "dg", root_run_id(context), str(step.op_handle), step.get_mapping_key() or "", flow_name
    )
