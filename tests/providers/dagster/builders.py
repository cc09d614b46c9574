"""What several tests of the Dagster package need: flows, jobs that run, and what they have logged."""

from collections.abc import Callable
from typing import Any

import dagster as dg
from dagster_glidemq import GlideMQResource

from glidemq_orchestrate import FlowNode, FlowSpec

ONE = FlowSpec("one", nodes=[FlowNode("only", queue="etl", job="step", data=7)])


def run_op(
    glidemq: GlideMQResource, instance: dg.DagsterInstance, body: Callable[..., Any], **kw: Any
) -> dg.ExecuteInProcessResult:
    @dg.op(required_resource_keys={"glidemq"})
    def step(context: dg.OpExecutionContext) -> Any:
        return body(context, context.resources.glidemq)

    @dg.job(resource_defs={"glidemq": glidemq})
    def job() -> None:
        step()

    return job.execute_in_process(instance=instance, raise_on_error=False, **kw)


def failure_of(result: dg.ExecuteInProcessResult) -> Any:
    (event,) = result.get_step_failure_events()
    failure = event.step_failure_data.user_failure_data
    assert failure is not None, event.step_failure_data.error
    return failure


def messages(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    return [entry.user_message for entry in instance.all_logs(run_id) if not entry.is_dagster_event]
