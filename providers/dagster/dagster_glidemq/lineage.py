"""Whether a step goes on with the flow of an earlier run or begins it anew.

A run goes on with its parent where it repeats what did not complete there: a re-execution from failure, and
a run retry, as Dagster does it by default. A re-execution of everything, and of chosen steps that had
completed, begins anew. Dagster's tags do not prove it: one of them is inherited, and ``execute_job`` sets
none; so the state of the parent run counts too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import dagster as dg

from dagster_glidemq.identity import Context, flow_id_for, root_run_id
from glidemq_orchestrate import FlowStatus

if TYPE_CHECKING:
    from dagster._core.storage.dagster_run import DagsterRun

PARENT_RUN_TAG: Final = "dagster/parent_run_id"
RESUME_TAG: Final = "dagster/is_resume_retry"
ASSET_RESUME_TAG: Final = "dagster/is_asset_resume_retry"
MAX_RUNS: Final = 100
_REQUEST: Final = "dagster:"


class Decision(Enum):
    """What a step does with the flow of its id."""

    SUBMIT = auto()  # there is none
    REPAIR = auto()  # a run that this one goes on with has begun it: what did not complete runs
    RESTART = auto()  # another run of the chain has begun it: all of it runs
    SHARE = auto()  # another run, of another chain or another step of this one, has begun it: wait for it too
    JOIN = auto()  # somebody else than Dagster has begun it: wait for it, and leave it alone
    YIELD = auto()  # a later run of the chain has begun it: leave it alone


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a step of a run stands in the chain of re-executions.

    Attributes:
        step: The step, the same in all runs of the chain.
        runs: The run, and before it those that it goes on with, newest first.
        root: The first run of the chain.
        flow_id: The id that is derived for the flow.
    """

    step: str
    runs: tuple[str, ...]
    root: str
    flow_id: str

    @property
    def request(self) -> str:
        """The token of the step in this run: the same on each retry of the step."""
        return f"{_REQUEST}{self.step}/{self.runs[0]}"


def lineage_of(context: Context, flow_name: str) -> Lineage:
    """Where the step of a context stands. Reads the runs before, if there are any."""
    runs = tuple(_runs(context))
    return Lineage(flow_id_for(context, ""), runs, root_run_id(context), flow_id_for(context, flow_name))


def decide(lineage: Lineage, history: Sequence[FlowStatus], instance: dg.DagsterInstance) -> Decision:
    """What a step does with a flow, from the status of each of its generations, oldest first."""
    if not history:
        return Decision.SUBMIT
    step, run = _begun_by(history)
    if not step:
        return Decision.JOIN
    if step != lineage.step:
        is_new = history[-1].state.is_terminal and run not in lineage.runs
        return Decision.RESTART if is_new else Decision.SHARE
    if run in lineage.runs:
        return Decision.REPAIR
    ours, theirs = (instance.get_run_record_by_id(one) for one in (lineage.runs[0], run))
    is_later = ours is not None and theirs is not None and theirs.create_timestamp > ours.create_timestamp
    return Decision.YIELD if is_later else Decision.RESTART


def _begun_by(history: Sequence[FlowStatus]) -> tuple[str, str]:
    """The step and the run that began the newest generation, of those that runs began; empty if none did."""
    for status in reversed(history):
        if status.request.startswith(_REQUEST):
            step, _, run = status.request.removeprefix(_REQUEST).partition("/")
            return step, run
    return "", ""


def _runs(context: Context) -> Iterator[str]:
    instance, run = context.instance, context.run
    seen: set[str] = set()
    while run.run_id not in seen and len(seen) < MAX_RUNS:
        seen.add(run.run_id)
        yield run.run_id
        parent = _parent(instance, run)
        if parent is None or not _goes_on(context, run, parent):
            return
        run = parent


def _parent(instance: dg.DagsterInstance, run: DagsterRun) -> DagsterRun | None:
    parent_id = run.parent_run_id or run.tags.get(PARENT_RUN_TAG)
    return None if parent_id is None else instance.get_run_by_id(parent_id)


def _goes_on(context: Context, run: DagsterRun, parent: DagsterRun) -> bool:
    if run.tags.get(RESUME_TAG) == "true":
        return True
    if run.tags.get(ASSET_RESUME_TAG) == "true":
        # A re-execution of everything inherits the tag, and repeats assets that the parent has materialized;
        # one from failure repeats only those of them whose blocking check has failed.
        repeated = _assets(context, run) & _materialized(context.instance, parent)
        return repeated <= _refused(context.instance, parent)
    return _has_known_state(context.instance, run) and not _has_completed(context, parent)


def _has_known_state(instance: dg.DagsterInstance, run: DagsterRun) -> bool:
    """Whether a run takes over what its parent has done: from failure, or for chosen steps."""
    if run.execution_plan_snapshot_id is None:
        return False
    known = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id).initial_known_state
    return known is not None and known.parent_state is not None


def _assets(context: Context, run: DagsterRun) -> set[dg.AssetKey]:
    """The assets of the step that a run was to materialize."""
    if not context.has_assets_def:
        return set()
    if run.run_id == context.run.run_id:
        return set(context.selected_asset_keys)
    keys = set(context.assets_def.keys)
    return keys if run.asset_selection is None else keys & run.asset_selection


def _materialized(instance: dg.DagsterInstance, run: DagsterRun) -> set[dg.AssetKey]:
    logs = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    events = (entry.dagster_event for entry in logs)
    return {event.asset_key for event in events if event is not None and event.asset_key is not None}


def _refused(instance: dg.DagsterInstance, run: DagsterRun) -> set[dg.AssetKey]:
    """The assets of which a blocking check has failed in a run."""
    logs = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    events = (entry.dagster_event for entry in logs)
    checks = [event.asset_check_evaluation_data for event in events if event is not None]
    return {check.asset_key for check in checks if not check.passed and check.blocking}


def _has_completed(context: Context, run: DagsterRun | None) -> bool:
    """Whether the step completed when it last ran, in a run or one before it."""
    step = context.op_execution_context.get_step_execution_context().step.key
    for _ in range(MAX_RUNS):
        if run is None:
            return False
        if run.step_keys_to_execute is None or step in run.step_keys_to_execute:
            stats = context.instance.get_run_step_stats(run.run_id, [step])
            return any(one.status is not None and one.status.value == "SUCCESS" for one in stats)
        run = _parent(context.instance, run)
    return False
