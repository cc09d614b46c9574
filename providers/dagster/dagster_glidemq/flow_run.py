"""The run of a flow for one step: submits or continues it, watches it, and ends it with the step.

A kill before the submission leaves nothing behind; a kill after it leaves a flow that a re-execution from
failure finds by its id and continues. Without a re-execution, the lease of its owner, the step, expires and
the flow is cancelled. A step that is terminated while the server is unreachable retries for some seconds.
After that, the sensor of ``build_glidemq_cancellation_sensor`` cancels the flow, or else the lease does.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, cast

import dagster as dg
from dagster import DagsterEvent

from dagster_glidemq.private import EngineEventData
from dagster_glidemq.reexecution import StepContext, reexecution_of, root_run_id
from glidemq_orchestrate import Flow, FlowProducer, FlowSpec, Owner
from glidemq_orchestrate.errors import FailedNode, FlowConflict, FlowFailed, GlideMQError
from glidemq_orchestrate.flows import NodeStatus
from glidemq_orchestrate.jobs.attempt import has_passed
from glidemq_orchestrate.runs import (
    Changes,
    Decision,
    Duration,
    OrchestratedRun,
    in_text,
    log_failures,
    owner_of,
)

LOG_LINES: Final = 25
POLL_SECONDS: Final = 10.0
INTERRUPTS: Final = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt)
"""The exceptions that terminate a step."""
MAX_OF_A_NAME: Final = 256
MAX_LABELS: Final = 16
RUN_LABEL: Final = "dagster_run"
ROOT_LABEL: Final = "dagster_root_run"
_OWNER: Final = re.compile(r"Dagster run (\S+), step (.*)", re.DOTALL)


@dataclass(slots=True, kw_only=True)
class FlowRun:
    """The run of a flow for one step.

    Attributes:
        context: The step.
        producer: The client for the flow.
        spec: The flow.
        flow_id: The id of the flow.
        lease: The lease of the step as the owner of the flow; None: the flow continues without the step.
        link: The dashboard page of the flow; may be empty.
        checks: The nodes that are checks: a repair runs those again that have not passed.
        options: Other arguments of ``OrchestratedRun``.
    """

    context: StepContext
    producer: FlowProducer
    spec: FlowSpec
    flow_id: str
    lease: timedelta | None
    link: str
    checks: Sequence[str]
    options: InitVar[Mapping[str, Any]]
    _run: OrchestratedRun = field(init=False)
    _raised: BaseException | None = field(init=False, default=None)
    _is_run_ending: bool = field(init=False, default=False)
    _polled_at: float = field(init=False, default=-POLL_SECONDS)
    _is_stored: bool = field(init=False, default=False)

    def __post_init__(self, options: Mapping[str, Any]) -> None:
        """Determine the position of the step in the chain of runs."""
        self._run = OrchestratedRun(
            attempt=reexecution_of(self.context, self.spec.name),
            flow_id=self.flow_id,
            owner=self._as_owner(),
            log=self.context.log,
            counts=self._counts,
            reason=self._reason,
            **options,
        )

    def changes(self, timeout: Duration | None) -> Iterator[Changes]:
        """Yield changes as nodes end. If the flow does not complete, raise after the last yield.

        Raises:
            FlowFailed, FlowCancelled: The flow failed or was cancelled.
            WaitTimeout, WorkersMissing: The flow did not end in time, or no worker ran it; it is cancelled.
            Superseded: A later run has restarted the flow.
            GlideMQError: Any other error; a running flow continues.
        """
        spec = labelled(self.spec, self.context)
        run = self._run.changes(
            self.producer, spec, timeout=timeout, on_begin=self._begun, on_poll=self._end_with_run
        )
        with contextlib.closing(cast("Generator[Changes]", run)) as changes:
            try:
                for change in changes:
                    _log(self.context, change)
                    yield change
            except FlowFailed as exc:
                self._log_failures(exc)
                raise
            except BaseException as exc:
                self._raised = exc
                raise

    def _begun(self, flow: Flow) -> None:
        _announce(self.context, flow, self.spec, self.link)
        begun = self._run.begun
        if begun is None or begun.former is None:
            return
        if begun.decision is Decision.RESTART:
            self.context.log.info("flow %s was %s, and runs again as a whole", flow.id, begun.former.value)
        elif begun.decision is Decision.REPAIR:
            self._run.patience(lambda: self._repair_checks(flow))

    def _repair_checks(self, flow: Flow) -> None:
        """Run checks again that have completed without passing, as Node workers report them."""
        names = {node.name for node in self.spec.nodes}.intersection(self.checks)
        failed = [name for name, result in flow.results(names).items() if not has_passed(result)]
        if failed:
            flow.rerun(nodes=failed, idempotency_key=self._run.attempt.request)

    def _log_failures(self, exc: FlowFailed) -> None:
        try:
            flow = self.producer.get(self.flow_id)
        except GlideMQError as error:
            self.context.log.warning("the logs of the failed nodes cannot be read: %s", error)
        else:
            log_failures(flow, exc.failed, self.context.log)

    # -- ending with the run ---------------------------------------------------------------------------------

    def _end_with_run(self) -> None:
        """End the step if its run has ended, is being terminated, or was deleted, with or without a signal.

        Raises:
            DagsterExecutionInterruptedError: The run is over.
        """
        now = time.monotonic()
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            if self._is_run_over():
                raise dg.DagsterExecutionInterruptedError

    def _is_run_over(self) -> bool:
        """Whether the run has ended or must end; False if that cannot be read, or is not stored at all."""
        try:
            run = self.context.instance.get_run_by_id(self.context.run.run_id)
        except Exception as exc:  # noqa: BLE001  of any class, by storage
            self.context.log.warning("cannot read whether the run has ended: %s", exc)
            return False
        if run is None:
            return self._is_stored
        self._is_stored = True
        return run.is_finished or run.status is dg.DagsterRunStatus.CANCELING

    def _reason(self, exc: BaseException) -> str:
        """The reason for cancelling the flow."""
        exc = self._raised or exc
        if isinstance(exc, GlideMQError):
            return f"Dagster: {exc}"
        self._is_run_ending = isinstance(exc, INTERRUPTS) or self._is_run_over()
        return f"Dagster run {self.context.run.run_id} {_ended(exc)}"

    def _as_owner(self) -> Owner:
        """The step as the owner of its flow."""
        key = self.context.op_execution_context.get_step_execution_context().step.key
        name = f"Dagster run {self.context.run.run_id}, step {key}"
        return owner_of(name[:MAX_OF_A_NAME], self.lease)

    def _counts(self, owner: str) -> bool:
        """Whether another owner still needs the flow; all steps of a run end with it."""
        run_id = run_of(owner)
        if run_id is not None and run_id == self.context.run.run_id:
            return not self._is_run_ending
        return bool(live_owners([owner], self.context.instance))


def run_of(owner: str) -> str | None:
    """The run id of an owner that is a step; None for any other owner."""
    found = _OWNER.match(owner)
    return found and found[1]


def live_owners(owners: Sequence[str], instance: dg.DagsterInstance) -> list[str]:
    """The owners, without steps of runs that have ended."""
    return [one for one in owners if (run_id := run_of(one)) is None or _is_open(instance, run_id)]


def _is_open(instance: dg.DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is not None and not run.is_finished


def labelled(spec: FlowSpec, context: StepContext) -> FlowSpec:
    """The flow with labels for run and step, as far as they fit."""
    run, step = context.run, context.op_execution_context
    ours = {
        RUN_LABEL: run.run_id,
        ROOT_LABEL: root_run_id(context),
        "dagster_job": run.job_name,
        "dagster_step": str(step.op_handle),
    }
    new = [(name, value[:MAX_OF_A_NAME]) for name, value in ours.items() if name not in spec.labels]
    return replace(spec, labels={**spec.labels, **dict(new[: max(MAX_LABELS - len(spec.labels), 0)])})


def _ended(exc: BaseException) -> str:
    """How a run with a running flow has ended, for the reason of the flow."""
    if isinstance(exc, INTERRUPTS):
        return "was terminated"
    if isinstance(exc, GeneratorExit):  # also by a termination outside of our own waits
        return "ended before its flow"
    return f"failed: {type(exc).__name__}"


def _announce(context: StepContext, flow: Flow, spec: FlowSpec, link: str) -> None:
    """Write the flow and its link to the event log of the run."""
    metadata: dict[str, dg.MetadataValue] = {
        "glidemq/flow_id": dg.MetadataValue.text(flow.id),
        "glidemq/flow_name": dg.MetadataValue.text(spec.name),
        "glidemq/generation": dg.MetadataValue.int(flow.generation),
        "glidemq/nodes": dg.MetadataValue.int(len(spec.nodes)),
        "glidemq/queue": dg.MetadataValue.text(flow.home),
    }
    if link:
        metadata["glidemq/flow"] = dg.MetadataValue.url(link)
    step = context.op_execution_context.get_step_execution_context()
    text = f"Flow {flow.id} ({spec.name}) has {len(spec.nodes):,} nodes on queue {flow.home}"
    DagsterEvent.engine_event(step, text, EngineEventData(metadata))


def _log(context: StepContext, change: Changes) -> None:
    """Log a line for each node that has ended, or a single line if there are many."""
    status = change.status
    counted = f"{status.completed} of {status.total} completed"
    failed = [node for node in change.ended if node.state == "failed"]
    others = [node for node in change.ended if node.state != "failed"]
    for node in failed[:LOG_LINES]:
        context.log.error("node %s failed: %s", node.name, in_text(node.reason))
    if len(others) <= LOG_LINES:
        for node in others:
            context.log.info("node %s %s%s (%s)", node.name, node.state, _how(node), counted)
    else:
        context.log.info("%s nodes ended (%s)", len(others), counted)
    if len(failed) > LOG_LINES:
        context.log.error("%s more nodes failed", len(failed) - LOG_LINES)


def _how(node: NodeStatus) -> str:
    if node.state != "completed":
        return f": {in_text(node.reason)}" if node.reason else ""
    return "" if node.seconds is None else f" in {node.seconds:.2f} s"


MAX_ROWS: Final = 50


def failure_from(exc: GlideMQError, flow_id: str, *, allow_retries: bool | None = None) -> dg.Failure:
    """Turn an error of the core into the ``Failure`` that a step raises.

    Args:
        exc: The error.
        flow_id: The id of the flow; becomes metadata.
        allow_retries: Whether the step's retry policy applies; None: only if the error is retryable.
    """
    metadata: dict[str, dg.MetadataValue] = {
        "glidemq/flow_id": dg.MetadataValue.text(flow_id),
        "glidemq/error": dg.MetadataValue.text(type(exc).__name__),
    }
    description = in_text(str(exc))
    if isinstance(exc, FlowFailed):
        metadata["glidemq/failed_count"] = dg.MetadataValue.int(len(exc.failed))
        metadata["glidemq/failed_nodes"] = failed_table(exc.failed)
    elif isinstance(exc, FlowConflict):
        description = (
            f"{description}. Only the runs that began a flow can change it: use another flow_id for this one"
        )
    retries = exc.retryable if allow_retries is None else allow_retries
    return dg.Failure(description=description, metadata=metadata, allow_retries=retries)


def failed_table(failed: Sequence[FailedNode]) -> dg.TableMetadataValue:
    """The first 50 failed nodes as a table: causes, ignored failures, consequences."""
    columns = {"node": "string", "reason": "string", "attempts": "int", "ignored": "bool", "job_id": "string"}
    rows = [
        dg.TableRecord(
            {
                "node": node.name,
                "reason": in_text(node.reason),
                "attempts": node.attempts,
                "ignored": node.ignored,
                "job_id": node.job_id,
            }
        )
        for node in failed[:MAX_ROWS]
    ]
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    return dg.MetadataValue.table(records=rows, schema=schema)
