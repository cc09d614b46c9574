"""Identity of a step: the id of its flow, and whether it continues the flow of an earlier run.

A run continues its parent if it repeats what did not complete there: a re-execution from failure, and by
default a run retry. A re-execution of everything, or of selected steps that had completed, runs the whole
flow. Dagster's tags are not enough to decide: one of them is inherited, and ``execute_job`` sets none; so the
state of the parent run counts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import dagster as dg

from glidemq_orchestrate.flows import FlowStatus
from glidemq_orchestrate.runs import Decision, Origin, TaskAttempt, derived_id

PARENT_RUN_TAG: Final = "dagster/parent_run_id"
RESUME_TAG: Final = "dagster/is_resume_retry"
ASSET_RESUME_TAG: Final = "dagster/is_asset_resume_retry"
MAX_RUNS: Final = 100
_REQUEST: Final = "dagster:"


@dataclass(frozen=True, slots=True)
class Reexecution(TaskAttempt):
    """The position of a step of a run in the chain of re-executions.

    Attributes:
        step: The step, the same in all runs of the chain.
        runs: The run, and the earlier runs that it continues, newest first.
        flow_id: The derived id of the flow.
        is_retry: Whether the step may have run before.
        instance: The instance, for the creation times of runs.
    """

    step: str
    runs: tuple[str, ...]
    flow_id: str
    is_retry: bool
    instance: dg.DagsterInstance = field(repr=False, compare=False)

    @property
    def task(self) -> str:
        """The step."""
        return self.step

    @property
    def request(self) -> str:
        """The token of the step in this run: the same on each retry of the step."""
        return f"{_REQUEST}{self.step}/{self.runs[0]}"

    @property
    def own_request(self) -> str:
        """The same: a step begins at most one generation in a run."""
        return self.request

    @property
    def is_repeat(self) -> bool:
        """Whether the step may have run before."""
        return self.is_retry

    def origin(self, status: FlowStatus) -> Origin | None:
        """The step that started a generation; its detail is the run."""
        if not status.idempotency_key.startswith(_REQUEST):
            return None
        step, _, run = status.idempotency_key.removeprefix(_REQUEST).partition("/")
        return Origin(step, run)

    def is_overtaken_by(self, origin: Origin) -> bool:
        """Whether another run was created later, and is not one that this run continues."""
        if origin.detail in self.runs:
            return False
        ours, theirs = (self.instance.get_run_record_by_id(one) for one in (self.runs[0], origin.detail))
        return ours is not None and theirs is not None and theirs.create_timestamp > ours.create_timestamp

    def continues(self, origin: Origin, begun: FlowStatus, current: FlowStatus) -> bool:  # noqa: ARG002
        """Whether this run continues that run."""
        return origin.detail in self.runs

    def with_others(self, origin: Origin, current: FlowStatus) -> Decision:
        """Wait for a flow of another chain or step while it runs; restart it when it has ended."""
        is_new = current.state.is_terminal and origin.detail not in self.runs
        return Decision.RESTART if is_new else Decision.SHARE


def reexecution_of(context: StepContext, flow_name: str) -> Reexecution:
    """The place of the step of a context in its chain. Reads the earlier runs, if there are any."""
    runs, flow_id = tuple(_runs(context)), flow_id_for(context, flow_name)
    return Reexecution(flow_id_for(context, ""), runs, flow_id, is_retry(context), context.instance)


def _runs(context: StepContext) -> Iterator[str]:
    instance, run = context.instance, context.run
    seen: set[str] = set()
    while run.run_id not in seen and len(seen) < MAX_RUNS:
        seen.add(run.run_id)
        yield run.run_id
        parent = _parent(instance, run)
        if parent is None or not _continues(context, run, parent):
            return
        run = parent


def _parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun | None:
    parent_id = run.parent_run_id or run.tags.get(PARENT_RUN_TAG)
    return None if parent_id is None else instance.get_run_by_id(parent_id)


def _continues(context: StepContext, run: dg.DagsterRun, parent: dg.DagsterRun) -> bool:
    if run.tags.get(RESUME_TAG) == "true":
        return True
    if run.tags.get(ASSET_RESUME_TAG) == "true":
        # A re-execution of everything inherits the tag, and repeats assets that the parent has materialized;
        # a re-execution from failure repeats only those whose blocking check has failed.
        repeated = _assets(context, run) & _materialized(context.instance, parent)
        return repeated <= _refused(context.instance, parent)
    return _has_known_state(context.instance, run) and not _has_completed(context, parent)


def _has_known_state(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether a run reuses the state of its parent: from failure, or for selected steps."""
    if run.execution_plan_snapshot_id is None:
        return False
    known = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id).initial_known_state
    return known is not None and known.parent_state is not None


def _assets(context: StepContext, run: dg.DagsterRun) -> set[dg.AssetKey]:
    """The assets of the step that a run had to materialize."""
    if not context.has_assets_def:
        return set()
    if run.run_id == context.run.run_id:
        return set(context.selected_asset_keys)
    keys = set(context.assets_def.keys)
    return keys if run.asset_selection is None else keys & run.asset_selection


def _materialized(instance: dg.DagsterInstance, run: dg.DagsterRun) -> set[dg.AssetKey]:
    logs = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    events = (entry.dagster_event for entry in logs)
    return {event.asset_key for event in events if event is not None and event.asset_key is not None}


def _refused(instance: dg.DagsterInstance, run: dg.DagsterRun) -> set[dg.AssetKey]:
    """The assets with a failed blocking check in a run."""
    logs = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    events = (entry.dagster_event for entry in logs)
    checks = [event.asset_check_evaluation_data for event in events if event is not None]
    return {check.asset_key for check in checks if not check.passed and check.blocking}


def _has_completed(context: StepContext, run: dg.DagsterRun | None) -> bool:
    """Whether the last execution of the step completed, in a run or an earlier one."""
    step = context.op_execution_context.get_step_execution_context().step.key
    for _ in range(MAX_RUNS):
        if run is None:
            return False
        if run.step_keys_to_execute is None or step in run.step_keys_to_execute:
            stats = context.instance.get_run_step_stats(run.run_id, [step])
            return any(one.status is not None and one.status.value == "SUCCESS" for one in stats)
        run = _parent(context.instance, run)
    return False


ROOT_RUN_TAG: Final = "dagster/root_run_id"

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


def root_run_id(context: StepContext) -> str:
    """The id of the first run in a chain of re-executions and run retries; for the first, its own id."""
    run = context.run
    return run.root_run_id or run.tags.get(ROOT_RUN_TAG) or run.run_id


def is_retry(context: StepContext) -> bool:
    """Whether this step may have run before: in an earlier run of the chain or an earlier try."""
    return root_run_id(context) != context.run.run_id or context.op_execution_context.retry_number > 0


def flow_id_for(context: StepContext, flow_name: str) -> str:
    """Derive the id of the flow of one step: 35 characters, the same in every re-execution and retry.

    One step may run several flows if their names differ.

    Args:
        context: The step.
        flow_name: Name of the flow's specification.
    """
    step = context.op_execution_context
    return derived_id(
        "dg", root_run_id(context), str(step.op_handle), step.get_mapping_key() or "", flow_name
    )
