"""The run of a flow for one step: it is submitted or gone on with, followed, and ended with its step.

What a kill between two steps leaves behind: before the submission, nothing; after it, a flow that a
re-execution from failure finds by its id and goes on with. If none comes, the lease of its owner, the step,
lapses and it is cancelled. A step that is terminated while the server is away tries again for some seconds;
then the sensor of ``build_glidemq_cancellation_sensor`` cancels the flow, or else the lapse does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

import dagster as dg
from dagster import DagsterEvent
from dagster._core.events import EngineEventData

from dagster_glidemq.failures import log_failures
from dagster_glidemq.identity import Context, flow_id_for, is_retry, root_run_id
from dagster_glidemq.lineage import Decision, decide, lineage_of
from dagster_glidemq.patience import Patience
from dagster_glidemq.unserved import Unserved
from dagster_glidemq.watch import Batch, Changes, follow
from glidemq_orchestrate import Flow, FlowProducer, FlowSpec, FlowState, FlowStatus, NodeStatus, Owner
from glidemq_orchestrate.errors import (
    FlowCancelled,
    FlowFailed,
    FlowNotFound,
    GlideMQError,
    Superseded,
    WaitTimeout,
    WorkersMissing,
)
from glidemq_orchestrate.foundation.log_text import in_text
from glidemq_orchestrate.jobs.check_result import has_passed

if TYPE_CHECKING:
    from dagster_glidemq.lineage import Lineage

OnExisting = Literal["attach", "retry_failed", "restart"]
LOG_LINES: Final = 25
LOOK_SECONDS: Final = 10.0
INTERRUPTS: Final = (dg.DagsterExecutionInterruptedError, KeyboardInterrupt)
"""What a step that is terminated raises."""
MAX_OF_A_NAME: Final = 256
MAX_LABELS: Final = 16
RUN_LABEL: Final = "dagster_run"
ROOT_LABEL: Final = "dagster_root_run"
_HOW: Final[dict[Decision, OnExisting]] = {Decision.REPAIR: "retry_failed", Decision.RESTART: "restart"}
_OWNER: Final = re.compile(r"Dagster run (\S+), step (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rules:
    """How flows are run; the fields of ``GlideMQResource``, as the core takes them.

    Attributes:
        require_workers, worker_timeout, lapse: Those fields.
        patience: How long the server may be away.
        first_patience: How long it may be when the step begins: it may be no server at all.
        last_patience: How long it may be when the flow is cancelled.
        link: Where a dashboard shows a flow.
    """

    require_workers: bool
    worker_timeout: timedelta | None
    lapse: timedelta | None
    patience: Patience
    first_patience: Patience
    last_patience: Patience
    link: Callable[[str], str]


@dataclass(slots=True)
class FlowRun:
    """The run of a flow for one step.

    Attributes:
        context: The step.
        producer: A client.
        rules: How.
        spec: The flow.
        flow_id: Its id.
        checks: The nodes that are checks: those that have not passed run again in a repair.
    """

    context: Context
    producer: FlowProducer
    rules: Rules
    spec: FlowSpec
    flow_id: str
    checks: Sequence[str] = ()
    _lineage: Lineage = field(init=False)
    _owner: Owner | None = field(init=False, default=None)
    _generation: int | None = field(init=False, default=None)
    _is_theirs: bool = field(init=False, default=False)
    _looked_at: float = field(init=False, default=-LOOK_SECONDS)
    _is_stored: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Look where the step stands in the chain of runs."""
        self._lineage = lineage_of(self.context, self.spec.name)

    def changes(self, timeout: timedelta | None) -> Iterator[Changes]:
        """Yield as nodes end; a flow that did not complete is raised after the last yield.

        Raises:
            FlowFailed, FlowCancelled: It ended so.
            WaitTimeout, WorkersMissing: It did not end in time, or nobody ran it; it was cancelled.
            Superseded: A later run has begun it anew.
            GlideMQError: Anything else; a flow that runs goes on.
        """
        try:
            yield from self._changes(timeout)
        except (WaitTimeout, WorkersMissing) as exc:
            self._cancel(f"Dagster: {exc}", is_interrupted=False)
            raise
        except GlideMQError:
            raise  # if it still runs, a retry of the step attaches to it
        except BaseException as exc:
            reason = f"Dagster run {self.context.run.run_id} {_ended(exc)}"
            self._cancel(reason, is_interrupted=isinstance(exc, INTERRUPTS) or self._is_run_over())
            raise

    def _changes(self, timeout: timedelta | None) -> Iterator[Changes]:
        flow = self._submit()
        _announce(self.context, flow, self.spec, self.rules.link(flow.id))
        while True:
            self._generation = flow.generation
            try:
                status = yield from self._follow(flow, timeout)
            except Superseded as exc:
                flow = self._next(exc)
            else:
                self._raise_unless_completed(flow, status)
                return

    def _follow(self, flow: Flow, timeout: timedelta | None) -> Generator[Changes, None, FlowStatus]:
        """Follow one generation; returns its last status."""
        unserved = Unserved(
            self.producer,
            flow,
            limit=self.rules.worker_timeout,
            warn=self.context.log.warning,
            patience=self.rules.patience,
        )

        def look(batch: Batch) -> None:
            self._end_with_run()
            unserved.look(batch)

        for change in follow(flow, patience=self.rules.patience, timeout=timeout, look=look):
            _log(self.context, change)
            yield change
        return change.status

    def _end_with_run(self) -> None:
        """End the step when its run has ended, is being terminated, or was deleted, whatever signals it had.

        Raises:
            DagsterExecutionInterruptedError: That is so.
        """
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            if self._is_run_over():
                raise dg.DagsterExecutionInterruptedError

    def _is_run_over(self) -> bool:
        """Whether the run has ended or is to end; not where that cannot be read, or is not stored at all."""
        try:
            run = self.context.instance.get_run_by_id(self.context.run.run_id)
        except Exception as exc:  # noqa: BLE001  whatever the storage raises
            self.context.log.warning("whether the run has ended is not known: %s", exc)
            return False
        if run is None:
            return self._is_stored
        self._is_stored = True
        return run.is_finished or run.status is dg.DagsterRunStatus.CANCELING

    def _submit(self) -> Flow:
        """Submit the flow, go on with it, or begin it anew."""
        patience, context = self.rules.patience, self.context
        history = self.rules.first_patience(lambda: history_of(self.producer, self.flow_id))
        decision = decide(self._lineage, history, context.instance)
        if decision is Decision.YIELD:
            raise self._superseded()
        self._is_theirs = decision is Decision.JOIN
        self._owner = None if self._is_theirs or self.rules.lapse is None else self._as_owner()
        is_done = bool(history) and history[-1].state is FlowState.COMPLETED
        if decision is Decision.RESTART:
            context.log.info("flow %s was %s and begins anew", self.flow_id, history[-1].state.value)
        flow = patience(
            lambda: self.producer.submit(
                labelled(self.spec, context),
                flow_id=self.flow_id,
                on_existing=_HOW.get(decision, "attach"),
                request=self._lineage.request,
                owner=self._owner,
                require_workers=self.rules.require_workers and (decision is Decision.RESTART or not is_done),
            )
        )
        self._generation = flow.generation
        if decision is Decision.REPAIR:
            patience(lambda: self._repair_checks(flow))
        elif decision in (Decision.JOIN, Decision.SHARE) and is_retry(context):
            patience(flow.retry_failed)
        return flow

    def _repair_checks(self, flow: Flow) -> None:
        """Run checks again that have completed and not passed, as those of other workers do."""
        names = {node.name for node in self.spec.nodes}.intersection(self.checks)
        failed = [name for name, result in flow.results(names).items() if not has_passed(result)]
        if failed:
            flow.rerun(nodes=failed, request=self._lineage.request)

    def _as_owner(self) -> Owner | None:
        """The step as the owner of its flow."""
        key = self.context.op_execution_context.get_step_execution_context().step.key
        name = f"Dagster run {self.context.run.run_id}, step {key}"
        return None if self.rules.lapse is None else Owner(name[:MAX_OF_A_NAME], self.rules.lapse)

    def _next(self, exc: Superseded) -> Flow:
        """The generation in the place of the one that the step waited for, unless a later run began it.

        Raises:
            Superseded: A later run of the chain did.
        """
        patience = self.rules.patience
        flow = patience(lambda: self.producer.get(self.flow_id, owner=self._owner))
        history = patience(lambda: history_of(self.producer, self.flow_id))
        if decide(self._lineage, history, self.context.instance) is Decision.YIELD:
            raise self._superseded() from exc
        self.context.log.info("%s, which this step waits for now", exc)
        return flow

    def _superseded(self) -> Superseded:
        return Superseded(
            f"a later run has begun flow {self.flow_id} anew, so this one no longer waits for it"
        )

    def _raise_unless_completed(self, flow: Flow, status: FlowStatus) -> None:
        if status.state is FlowState.CANCELLED:
            raise FlowCancelled(flow.id, status.reason)
        if status.state is not FlowState.COMPLETED:
            failed = self.rules.patience(flow.outcome).failed
            log_failures(self.context, flow, failed)
            raise FlowFailed(flow.id, failed)

    def _cancel(self, reason: str, *, is_interrupted: bool) -> None:
        """Cancel the generation of this step, if nobody else wants it; the original error is what counts."""
        log, patience = self.context.log, self.rules.last_patience
        try:
            flow = patience(lambda: self.producer.get(self.flow_id))
            generation = self._generation
            if generation is None and patience(flow.status).request == self._lineage.request:
                generation = flow.generation  # it was being submitted
            if generation is None or self._is_theirs:
                return
            wanted = patience(flow.owners)
            if others := self._others(wanted, is_interrupted=is_interrupted):
                log.info("flow %s goes on for %s", self.flow_id, ", ".join(others))
                return
            patience(lambda: flow.cancel(reason, generation=generation))
        except FlowNotFound:
            return
        except Superseded as exc:
            log.info("flow %s is not cancelled: %s", self.flow_id, exc)
        except GlideMQError as exc:
            log.warning("flow %s could not be cancelled: %s", self.flow_id, exc)
        else:
            log.info("flow %s has been cancelled", self.flow_id)

    def _others(self, owners: Sequence[str], *, is_interrupted: bool) -> list[str]:
        """The owners who still want the flow, besides this step."""
        mine, run_id = self._as_owner(), self.context.run.run_id
        owners = [one for one in owners if mine is None or one != mine.name]
        if is_interrupted:  # the other steps of the run end too
            owners = [one for one in owners if run_of(one) != run_id]
        return live_owners(owners, self.context.instance)


def run_of(owner: str) -> str | None:
    """The run of a step that owns a flow; None for any other owner."""
    found = _OWNER.match(owner)
    return found and found[1]


def live_owners(owners: Sequence[str], instance: dg.DagsterInstance) -> list[str]:
    """Those owners that are not steps of runs that have ended."""
    return [one for one in owners if (run_id := run_of(one)) is None or _is_open(instance, run_id)]


def _is_open(instance: dg.DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is not None and not run.is_finished


def labelled(spec: FlowSpec, context: Context) -> FlowSpec:
    """The flow with labels that name run and step, as far as there is room for them."""
    run, step = context.run, context.op_execution_context
    ours = {
        RUN_LABEL: run.run_id,
        ROOT_LABEL: root_run_id(context),
        "dagster_job": run.job_name,
        "dagster_step": str(step.op_handle),
    }
    new = [(name, value[:MAX_OF_A_NAME]) for name, value in ours.items() if name not in spec.labels]
    return replace(spec, labels={**spec.labels, **dict(new[: max(MAX_LABELS - len(spec.labels), 0)])})


def history_of(producer: FlowProducer, flow_id: str) -> Sequence[FlowStatus]:
    """The status of each generation, oldest first; nothing if there is no such flow."""
    try:
        flow = producer.get(flow_id)
    except FlowNotFound:
        return []
    try:
        return flow.history()
    except FlowNotFound:  # the record of an old one was removed at this moment
        return [flow.status()]


def _ended(exc: BaseException) -> str:
    """How a run ended that has a flow running, for the flow's reason."""
    if isinstance(exc, INTERRUPTS):
        return "was terminated"
    if isinstance(exc, GeneratorExit):  # also by a termination, while it waited for nothing of ours
        return "ended before its flow"
    return f"failed: {type(exc).__name__}"


def _announce(context: Context, flow: Flow, spec: FlowSpec, link: str) -> None:
    """Tell of the flow, with the link to it, in the event log of the run."""
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


def _log(context: Context, change: Changes) -> None:
    """Log a line for each node that ended; a single one when there are many."""
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


def default_flow_id(context: Context, spec: FlowSpec, flow_id: str | None) -> str:
    """The id of the flow of a step."""
    return flow_id or flow_id_for(context, spec.name)
