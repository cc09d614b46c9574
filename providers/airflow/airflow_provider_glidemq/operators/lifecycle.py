"""The life of a task that runs a flow: submit, wait, end; retry, clear, kill. No driver, no keys."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from airflow_provider_glidemq.callbacks import CallbackKind, call_callbacks, event_of
from airflow_provider_glidemq.description import check_labels
from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQFlowSuperseded,
    GlideMQFlowTimeout,
    again,
    airflow_errors,
)
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, patience_for
from airflow_provider_glidemq.links.glidemq import Linked
from airflow_provider_glidemq.node_reports import NodeReports, holds_masked, in_block
from airflow_provider_glidemq.operators.begun import log_begun
from airflow_provider_glidemq.operators.lineage import ReportsLineage
from airflow_provider_glidemq.operators.waiting_in_worker import WaitingInWorker
from airflow_provider_glidemq.ownership import AT_WORK, DAY, lease_in_seconds, owner_of
from airflow_provider_glidemq.parameters import check_parameters, default_deferrable, in_seconds
from airflow_provider_glidemq.task_attempt import KILLED, AirflowAttempt, TaskKey, runs_before
from airflow_provider_glidemq.templates import TemplatedOperator
from airflow_provider_glidemq.triggers.glidemq import GlideMQFlowTrigger
from airflow_provider_glidemq.triggers.waiting import BACKSTOP, SECONDS_DEFERRED
from airflow_provider_glidemq.version_compat import (
    AirflowTaskTimeout,
    TaskDeferralError,
    TaskDeferralTimeout,
)
from glidemq_orchestrate import FlowSpec, FlowState, runs
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, StateError, Superseded, TransportError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from glidemq_orchestrate import Flow, FlowProducer
    from glidemq_orchestrate.flows import FlowStatus
    from glidemq_orchestrate.runs import Duration, OnExisting, OrchestratedRun, Patience

XCOM_FLOW_ID: Final = "glidemq_flow_id"


class FlowTask(ReportsLineage, Linked, TemplatedOperator):
    """A task that runs one flow: submits or continues it, waits for its end, and ends as the flow does.

    Subclasses define the flow and the return value of the task. See ``GlideMQFlowOperator`` for the rest.

    Raises:
        ValueError: A parameter is invalid for any values of its templates.
    """

    def __init__(  # noqa: PLR0913  the common parameters of the operators
        self,
        *,
        flow_id: str | None = None,
        glidemq_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = default_deferrable(),
        defer_after: Duration = 3,
        poll_interval: Duration = 30,
        logging_interval: Duration = 10,
        require_workers: bool = True,
        cancel_on_kill: bool = True,
        lease: Duration | None = DAY,
        on_existing: OnExisting | None = None,
        show_logs: bool = False,
        callbacks: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.flow_id = flow_id
        self.glidemq_conn_id = glidemq_conn_id
        self.deferrable = deferrable
        self.require_workers = require_workers
        self.cancel_on_kill = cancel_on_kill
        self.on_existing = on_existing
        self.show_logs = show_logs
        self.callbacks = callbacks
        with self._located_errors():
            self.defer_after = in_seconds("defer_after", defer_after, 0)
            self.poll_interval = in_seconds("poll_interval", poll_interval)
            self.logging_interval = in_seconds("logging_interval", logging_interval)
            self.lease = lease_in_seconds("lease", lease)
            check_parameters(vars(self))
        self._run: OrchestratedRun | None = None
        self._is_killed = False
        self._submitted: FlowSpec | None = None
        self._is_first = False  # this process has submitted the flow; else it resumes
        self._has_notified = False  # the callbacks for the submission were called
        self._is_masked = False  # see ``node_reports``

    # -- defined by subclasses -------------------------------------------------------------------------------

    def _described(self, context: Context) -> FlowSpec:
        """The flow, from rendered fields."""
        raise NotImplementedError

    def _declared(self) -> FlowSpec | None:
        """The flow, if it is known before the task runs."""
        return self._described({})

    def _returned(self, flow: Flow, status: FlowStatus) -> Any:
        """The return value of the task for a flow that has completed."""
        raise NotImplementedError

    def _linked(self, flow: Flow) -> Mapping[str, str]:
        """The values for a link: the ids of the flow, its queue, its job."""
        return {"flow_id": flow.id, "queue": flow.home}

    _group: str | None = None  # the task group whose flow it is
    shows_progress: ClassVar[bool] = False
    """Whether the log shows the progress of nodes even without ``show_logs``."""
    shows_end: ClassVar[bool] = True
    """Whether the task ends as its flow does; if not, clearing it restarts the flow."""

    # -- called by Airflow -----------------------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        """Submit the flow, or attach to it. Return its results if it has ended, else wait."""
        ti = context["ti"]
        attempt = self._attempt(context)
        run = self._start_run(context, attempt)
        spec = self._spec(context, attempt)
        if self.do_xcom_push:
            ti.xcom_push(key=XCOM_FLOW_ID, value=self._id(ti))

        def begin(producer: FlowProducer) -> Flow:
            flow = run.begin(producer, spec)
            log_begun(self.log, run.begun, flow, len(spec.nodes))
            self._submitted, self._is_masked = spec, holds_masked(spec)
            if self._is_killed:  # while it was being submitted
                self.on_kill()
            self._is_first = True
            return flow

        return self._go_on(context, self._id(ti), begin)

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Resume after the trigger has fired. The event has the reason; the outcome comes from the server."""
        if event is None or "status" not in event or "flow_id" not in event:
            raise GlideMQException(f"the trigger sent no usable event: {event!r}")
        flow_id, self._is_masked = event["flow_id"], event.get("is_masked", False)
        self._start_run(context)
        if event["status"] == "timeout":
            self._time_out(context, flow_id)
        if event["status"] == "superseded":
            raise GlideMQFlowSuperseded(flow_id)
        if event["status"] == "error":
            raise GlideMQException(f"flow {flow_id} cannot be watched: {event.get('reason', '')}")
        return self._go_on(context, flow_id)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after waiting. A flow that no task will wait for is cancelled first.

        Airflow calls neither ``execute_complete`` nor a trigger's ``on_kill`` when waiting itself has failed.
        """
        self._start_run(context)
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self._time_out(context, self._id(context["ti"]))
        except TaskDeferralError:
            ti = context["ti"]
            if ti.try_number > ti.max_tries:
                reason = "the Airflow task could not wait for it and has no retry left"
                with contextlib.suppress(runs.NotOwned):
                    self._cancel(self._run_of(context), reason)
            raise

    def on_kill(self) -> None:
        """Cancel the flow when the worker process must stop; never a flow that a later try has begun."""
        self._is_killed = True
        if self._run is not None and self.cancel_on_kill:
            with contextlib.suppress(runs.NotOwned):
                self._cancel(self._run, KILLED, is_current=False)

    # -- how the flow is found and described -----------------------------------------------------------------

    def _id(self, ti: RuntimeTaskInstanceProtocol) -> str:
        """The id of the flow."""
        given: Any = self.flow_id
        if isinstance(given, int) and not isinstance(given, bool):  # rendered natively
            return str(given)
        return given or TaskKey.of(ti).flow_id

    def _attempt(self, context: Context) -> AirflowAttempt:
        ti = context["ti"]
        before = runs_before(ti, self.upstream_task_ids) if self.shows_end else ""
        return AirflowAttempt.of(ti, context["dag_run"], self.retries, before, shows_end=self.shows_end)

    def _start_run(self, context: Context, attempt: AirflowAttempt | None = None) -> OrchestratedRun:
        """Start or continue the run of the flow. Its owner renews the lease while this process waits.

        So the lease may be short; see ``_keep_while_deferred``.
        """
        ti, lease = context["ti"], None if self.lease is None else min(self.lease, AT_WORK)
        run = self._run = runs.OrchestratedRun(
            attempt=attempt or self._attempt(context),
            flow_id=self._id(ti),
            owner=owner_of(TaskKey.of(ti).owner, lease) if self.cancel_on_kill else None,
            on_existing=self.on_existing,
            require_workers=self.require_workers,
            patience=runs.NO_PATIENCE,
            last_patience=runs.NO_PATIENCE,
            log=self.log,
        )
        return run

    def _run_of(self, context: Context) -> OrchestratedRun:
        return self._run or self._start_run(context)

    def _spec(self, context: Context, attempt: AirflowAttempt) -> FlowSpec:
        ti = context["ti"]
        with self._located_errors(), airflow_errors():
            spec = self._described(context)
            check_labels(spec)
        key = {name: str(part) for name, part in TaskKey.of(ti)._asdict().items()}
        known = attempt.label(is_owned=self.cancel_on_kill, group=self._group)
        ours = {"orchestrator": "airflow", **key, "try": str(ti.try_number), **known}
        return replace(spec, labels={**spec.labels, **ours})

    def _keep_while_deferred(self, producer: FlowProducer, flow: Flow) -> None:
        """Renew the lease for its full length: it may take that long until a triggerer renews it."""
        owner = self._owner_name
        if owner is None or self.lease is None or self.lease <= AT_WORK:
            return
        with contextlib.suppress(TransportError):  # the trigger does the same
            producer.get(flow.id, owner=owner_of(owner, self.lease)).renew()

    @property
    def _owner_name(self) -> str | None:
        """The owner name of the task; None if a kill does not cancel the flow, or others have begun it."""
        run = self._run
        return run.owner.name if run is not None and run.owner is not None and run.is_owned else None

    # -- how it ends -----------------------------------------------------------------------------------------

    def _go_on(
        self, context: Context, flow_id: str, begin: Callable[[FlowProducer], Flow] | None = None
    ) -> Any:
        """Find the flow, or ``begin`` it, and wait for its end.

        Once the flow exists, failures to reach the server count as temporary for some minutes.
        """
        patience = patience_for(self.log, f"Flow {flow_id}", self.glidemq_conn_id)
        run = self._run_of(context)
        with airflow_errors(self.glidemq_conn_id):
            while True:
                try:
                    with self._producer() as producer:
                        flow = begin(producer) if begin else run.current(producer)
                        begin = None
                        return self._wait_and_end(context, producer, flow)
                except GlideMQError as exc:
                    if begin is not None:
                        raise
                    self._pause(context, flow_id, patience, exc)

    def _pause(self, context: Context, flow_id: str, patience: Patience, error: GlideMQError) -> None:
        try:
            time.sleep(patience.pause(error))
        except AirflowTaskTimeout:
            self._time_out(context, flow_id)
        except GlideMQError as exc:
            if isinstance(exc, StateError):
                raise
            raise GlideMQException(f"{type(exc).__name__}: {exc}") from exc

    def _wait_and_end(self, context: Context, producer: FlowProducer, flow: Flow) -> Any:
        """Finish if the flow has ended. Otherwise wait, also for a flow that others retry or restart."""
        while True:
            self.link_places = self._linked(flow)
            try:
                return self._wait_for_generation(context, producer, flow)
            except Superseded as exc:
                self._submitted = None
                flow = self._run_of(context).current(producer)
                self.log.info("%s, which this task waits for now", exc)

    def _wait_for_generation(self, context: Context, producer: FlowProducer, flow: Flow) -> Any:
        status = flow.status()
        if status.superseded_by is not None:
            raise Superseded(f"flow {flow.id} was restarted: generation {status.superseded_by}")
        if self._is_first and not self._has_notified:
            self._has_notified = True
            self._notify("submitted", context, status)
        waiting = self._waiting_here(context)
        if not status.state.is_terminal:
            try:
                if self.deferrable:
                    status = waiting.briefly(flow, status, self.defer_after)
                else:
                    status = waiting.until_end(flow)
            except AirflowTaskTimeout:
                waiting.show(flow, is_last=True)
                self._time_out(context, flow.id)
        if not status.state.is_terminal:
            self._keep_while_deferred(producer, flow)
            self._defer(context, flow)
        waiting.show(flow, is_last=True)
        return self._finish(context, flow, status)

    def _waiting_here(self, context: Context) -> WaitingInWorker:
        is_ours = self._is_first or self._is_masked  # otherwise the trigger has shown them
        reports = NodeReports(self.show_logs) if is_ours and (self.show_logs or self.shows_progress) else None
        conn_id, on_progress = self.glidemq_conn_id, partial(self._notify, "progress", context)
        return WaitingInWorker(
            self.log, self.logging_interval, reports, conn_id=conn_id, on_progress=on_progress
        )

    def _notify(
        self, kind: CallbackKind, context: Context, status: FlowStatus, failed: Sequence[str] = ()
    ) -> None:
        if self.callbacks:
            call_callbacks(self.callbacks, kind, event_of(context["ti"], status, failed), self.log)

    def _finish(self, context: Context, flow: Flow, status: FlowStatus) -> Any:
        failed = flow.outcome().failed if status.state is FlowState.FAILED else ()
        self._notify("end", context, status, [node.name for node in failed])
        if status.state is FlowState.FAILED:
            runs.log_failures(flow, failed, self.log, in_block)
            raise GlideMQFlowFailed(flow.id, failed, again(flow.id))
        if status.state is FlowState.CANCELLED:
            raise GlideMQFlowCancelled(flow.id, status.reason, again(flow.id))
        self.log.info("Flow %s completed: %d nodes", flow.id, status.completed)
        result = self._returned(flow, status)
        with contextlib.suppress(FlowNotFound):  # removed since then
            self._run_of(context).shown(flow, status)
        return result

    def _defer(self, context: Context, flow: Flow) -> NoReturn:
        limit = self.execution_timeout
        deadline = None if limit is None else (context["ti"].start_date + limit).timestamp()
        left = None if deadline is None else timedelta(seconds=max(deadline - time.time(), 0.0))
        self.defer(
            trigger=GlideMQFlowTrigger(
                flow_id=flow.id,
                generation=flow.generation,
                owner=self._owner_name,
                lease=self.lease,
                glidemq_conn_id=self.glidemq_conn_id,
                poll_interval=self.poll_interval,
                logging_interval=self.logging_interval,
                deadline=deadline,
                cancel_on_kill=self._owner_name is not None,
                not_before=time.time() + SECONDS_DEFERRED,
                show_logs=self.show_logs,
                show_progress=self.shows_progress,
                callbacks=list(self.callbacks),
                is_masked=self._is_masked,
            ),
            method_name="execute_complete",
            timeout=None if left is None else left + BACKSTOP,
        )

    def _time_out(self, context: Context, flow_id: str) -> NoReturn:
        reason = "the Airflow task's execution_timeout has passed"
        try:
            status = self._cancel(self._run_of(context), reason) if self.cancel_on_kill else None
        except runs.NotOwned as exc:
            raise GlideMQFlowTimeout(flow_id, f". It continues: {exc}") from exc
        if status is not None:
            self._notify("end", context, replace(status, state=FlowState.CANCELLED, reason=reason))
        progress = f": {status.completed} of {status.total} nodes had completed" if status else ""
        raise GlideMQFlowTimeout(flow_id, progress, again(flow_id))

    def _cancel(self, run: OrchestratedRun, reason: str, *, is_current: bool = True) -> FlowStatus | None:
        """Cancel the current generation, or that of this try; returns the earlier status.

        Failures are logged: the task ends anyway.

        Raises:
            NotOwned: The generation does not run for this task.
        """
        try:
            with self._producer() as producer:
                if is_current:
                    run.current(producer)
                if (status := run.cancel(producer, reason)) is not None:
                    was = status.state.value
                    self.log.info("Flow %s was %s and is cancelled: %s", run.flow_id, was, reason)
                return status
        except FlowNotFound:
            return None
        except (Superseded, runs.NotOwned) as exc:
            self.log.info("Flow %s is not cancelled: %s", run.flow_id, exc)
            if isinstance(exc, runs.NotOwned):
                raise
        except GlideMQError:
            advice = "Flow %s could not be cancelled; cancel it with: glidemq flow cancel %s"
            self.log.exception(advice, run.flow_id, run.flow_id)
        return None
