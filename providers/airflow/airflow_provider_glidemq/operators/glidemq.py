"""GlideMQFlowOperator: a flow of jobs behind one task. Parameters, ids, lifecycle; no driver, no keys."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn

from airflow.sdk import BaseOperator

from airflow_provider_glidemq.attempt import MAX_LABELS, Attempt, Decision, decide
from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQFlowSuperseded,
    GlideMQFlowTimeout,
    airflow_errors,
)
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from airflow_provider_glidemq.identity import flow_id_for
from airflow_provider_glidemq.ownership import DAY, check_lapse, name_of, owner_of
from airflow_provider_glidemq.results import ResultMode, check_result_mode, collect
from airflow_provider_glidemq.triggers.glidemq import SECONDS_DEFERRED, GlideMQFlowTrigger, reconnect_pauses
from airflow_provider_glidemq.version_compat import (
    AirflowFailException,
    TaskDeferralError,
    TaskDeferralTimeout,
)
from glidemq_orchestrate import FlowSpec, FlowState, Owner
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, Superseded, TransportError, WaitTimeout

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from glidemq_orchestrate import Flow, FlowProducer, FlowStatus

__all__ = ["XCOM_FLOW_ID", "GlideMQFlowOperator", "flow_id_for"]

XCOM_FLOW_ID: Final = "glidemq_flow_id"
FLOW_FILES: Final = (".yaml", ".yml", ".json")
BACKSTOP: Final = timedelta(seconds=60)
WAIT_SLICE: Final = timedelta(seconds=10)
KILLED: Final = "the Airflow task was killed"
OnExisting = Literal["attach", "retry_failed", "restart"]


@dataclass(frozen=True, slots=True)
class _Held:
    """The flow that a kill cancels; while it is being submitted its generation is known by the request."""

    flow_id: str
    request: str
    generation: int | None = None


class GlideMQFlowOperator(BaseOperator):
    """Submits a flow, waits for its end without a worker slot, and returns results.

    The flow's id follows from DAG, DAG run, task and map index. So whatever happens to the Airflow worker,
    the flow is submitted once. A retry attaches to it if it still runs, and repairs it if it failed: failed
    nodes and those after them run again, completed ones keep their results. If the flow was changed in
    between, nodes that were changed, and those after them, run again too. A task that was cleared, and one
    of a DAG run that was created again or is reprocessed by a backfill, runs all of it anew: no old result
    is seen, and what still runs is cancelled. Killing or marking the task cancels the flow; what is left of
    an earlier run of the task never touches the flow of a later one.

    Data that contains times or try numbers changes with each try: leave them out, or a retry runs their
    nodes again. One clear looks like a retry: that of a running task whose process was killed before it
    could cancel the flow (kill -9, a lost machine).

    With a ``flow_id`` of your own, a flow that another task or client has begun is joined: attached to on the
    first try, repaired on later ones, never run anew nor changed.

    Args:
        flow: What to run (templated): a dict in the form of a flow file; a ``FlowSpec`` (not rendered); the
            path of a ``.yaml``, ``.yml`` or ``.json`` file, relative to the DAG file; or
            ``package.module:function``, a function that returns a dict or a ``FlowSpec``.
        flow_kwargs: Arguments for that function (templated).
        flow_id: An id of your own (templated), 1 to 256 characters; default: derived as above.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer, without a worker slot; False keeps the slot.
        defer_after: Seconds to wait in the worker before deferring: resuming takes longer than a
            short flow.
        poll_interval: Seconds after which the state is read again even if no event came.
        require_workers: Fail immediately unless live workers serve every queue and have every handler.
        result: What is returned, as ``{node: result}``: ``leaves`` (nodes without dependents), ``all`` or
            ``none``. Over 48 KiB a reference is returned instead.
        cancel_on_kill: Whether killing or marking the task cancels the flow.
        lapse: Seconds, 15 to 604,800, after which the flow is cancelled when nothing was heard of the task:
            no worker and no triggerer has waited for it. None: it runs on. Without ``cancel_on_kill``, and
            for a flow that somebody else has begun, there is no lease.
        on_existing: What to do with a flow of this id, whoever began it: ``attach`` to it as it is,
            ``retry_failed`` (repair it), or ``restart`` (each try runs all of it); default: as above.

    Raises:
        GlideMQFlowFailed: Lists the nodes that did not complete, causes first.
        GlideMQFlowCancelled: The flow was cancelled.
        GlideMQFlowSuperseded: A later try of the task has begun the flow anew.
        GlideMQFlowTimeout: It had not ended at ``execution_timeout``, and was cancelled.
        GlideMQException: No worker serves a queue; the server cannot be reached; the flow no longer exists.
        AirflowFailException: The flow, the connection or the code must be changed: no retry helps.
    """

    template_fields: Sequence[str] = ("flow", "flow_kwargs", "flow_id", "glidemq_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"flow": "json", "flow_kwargs": "json"}
    ui_color = "#dbe9f4"

    def __init__(  # noqa: PLR0913  an operator's parameters are its interface
        self,
        *,
        flow: Mapping[str, Any] | FlowSpec | str,
        flow_kwargs: Mapping[str, Any] | None = None,
        flow_id: str | None = None,
        glidemq_conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool = True,
        defer_after: float = 3.0,
        poll_interval: float = 30.0,
        require_workers: bool = True,
        result: ResultMode = "leaves",
        cancel_on_kill: bool = True,
        lapse: float | None = DAY,
        on_existing: OnExisting | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_result_mode(result)
        check_lapse(lapse)
        self.flow = flow
        self.flow_kwargs = flow_kwargs
        self.flow_id = flow_id
        self.glidemq_conn_id = glidemq_conn_id
        self.deferrable = deferrable
        self.defer_after = defer_after
        self.poll_interval = poll_interval
        self.require_workers = require_workers
        self.result = result
        self.cancel_on_kill = cancel_on_kill
        self.lapse = lapse
        self.on_existing = on_existing
        self._held: _Held | None = None
        self._owner: Owner | None = None
        self._is_killed = False

    # -- what Airflow calls ----------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Submit the flow, or attach to it; return its results if it has ended, else wait."""
        ti = context["ti"]
        attempt = self._attempt(context)
        spec = self._spec(ti, attempt)
        if self.do_xcom_push:
            ti.xcom_push(key=XCOM_FLOW_ID, value=self._id(ti))
        with airflow_errors(), self._producer() as producer:
            flow = self._submit(producer, spec, ti, attempt)
            if self._is_killed:  # while it was being submitted
                self.on_kill()
            return self._settle(context, producer, flow)

    def execute_complete(
        self, context: Context, event: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Resume after the trigger has fired: the event holds why, the outcome is read from the server."""
        if event is None or "status" not in event or "flow_id" not in event:
            raise GlideMQException(f"the trigger sent no usable event: {event!r}")
        flow_id = event["flow_id"]
        if event["status"] == "timeout":
            self._time_out(context, flow_id)
        if event["status"] == "superseded":
            raise GlideMQFlowSuperseded(flow_id)
        if event["status"] == "error":
            raise GlideMQException(f"flow {flow_id} cannot be watched: {event.get('reason', '')}")
        with airflow_errors(), self._producer() as producer:
            return self._settle(context, producer, self._find(context, producer, flow_id))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after waiting; a flow that no task would wait for any more is cancelled first.

        Airflow calls neither ``execute_complete`` nor a trigger's ``on_kill`` when waiting itself has failed.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self._time_out(context, self._id(context["ti"]))
        except TaskDeferralError:
            ti = context["ti"]
            if ti.try_number > ti.max_tries:
                reason = "the Airflow task could not wait for it and has no retry left"
                self._cancel_own(context, self._id(ti), reason)
            raise

    def on_kill(self) -> None:
        """Cancel the flow when the worker process is asked to stop; never one that a later try has begun."""
        self._is_killed = True
        if self._held is not None and self.cancel_on_kill:
            self._cancel(self._held, KILLED)

    # -- how the flow is found and described -----------------------------------------------------------------

    def _producer(self) -> FlowProducer:
        return GlideMQHook(self.glidemq_conn_id).get_producer()

    def _id(self, ti: RuntimeTaskInstanceProtocol) -> str:
        return self.flow_id or flow_id_for(ti.dag_id, ti.task_id, ti.run_id, _map_index(ti))

    def _attempt(self, context: Context) -> Attempt:
        return Attempt.of(context["ti"], context["dag_run"], self.retries)

    def _spec(self, ti: RuntimeTaskInstanceProtocol, attempt: Attempt) -> FlowSpec:
        with airflow_errors():
            spec = self._described()
        labels = {
            **spec.labels,
            "orchestrator": "airflow",
            "dag_id": ti.dag_id,
            "task_id": ti.task_id,
            "run_id": ti.run_id,
            "map_index": str(_map_index(ti)),
            "try": str(ti.try_number),
        }
        return replace(spec, labels=labels | attempt.label(MAX_LABELS - len(labels)))

    def _described(self) -> FlowSpec:
        flow: object = self.flow
        if isinstance(flow, str) and flow.endswith(FLOW_FILES):
            flow = FlowSpec.from_file(self._beside_dag(flow))
        elif isinstance(flow, str) and ":" in flow:
            flow = FlowSpec.from_function(flow, **(self.flow_kwargs or {}))
        if isinstance(flow, FlowSpec):
            return flow
        if isinstance(flow, Mapping):
            return FlowSpec.from_dict(flow)
        raise AirflowFailException(
            f"flow {flow!r} is neither a flow file ({', '.join(FLOW_FILES)}) nor package.module:function"
            if isinstance(flow, str)
            else f"flow must be a dict or a FlowSpec, got {type(flow).__name__}"
        )

    def _beside_dag(self, name: str) -> Path:
        path = Path(name)
        if path.is_absolute() or not self.has_dag():  # type: ignore[no-untyped-call]
            return path
        return Path(self.dag.fileloc).parent / path

    # -- which generation of the flow is that of this try -------------------------------------------------

    def _submit(
        self, producer: FlowProducer, spec: FlowSpec, ti: RuntimeTaskInstanceProtocol, attempt: Attempt
    ) -> Flow:
        """Submit the flow, go on with it, or begin it anew; also while another try does the same."""
        flow_id = self._id(ti)
        history = _history(producer, flow_id)
        decision = decide(attempt, history)
        if decision is Decision.YIELD and self.on_existing is None:
            raise GlideMQFlowSuperseded(flow_id)
        how = self.on_existing or _HOW.get(decision, "attach")
        request = attempt.request
        if how == "restart" and (self.on_existing or any(one.request == request for one in history)):
            request = attempt.own_request
        self._held = _Held(flow_id, request)
        state = history[-1].state if history else None
        flow = producer.submit(
            spec,
            flow_id=flow_id,
            on_existing=how,
            request=request,
            owner=self._owned_by(ti, decision),
            require_workers=self.require_workers and (how == "restart" or state is not FlowState.COMPLETED),
        )
        self._held = _Held(flow_id, request, flow.generation)
        if decision is Decision.JOIN and self.on_existing is None and attempt.number > 1:
            flow.retry_failed()
        self.log.info(
            "Flow %s: %d nodes, home queue %s, %s%s. Watch it with: glidemq flow watch %s",
            flow_id, len(spec.nodes), flow.home, "new" if state is None else f"was {state.value}",
            ", begun anew" if how == "restart" and state else "", flow_id,
        )  # fmt: skip
        return flow

    def _find(self, context: Context, producer: FlowProducer, flow_id: str) -> Flow:
        """The current generation, whoever began it, unless that was a later try of this task.

        Raises:
            GlideMQFlowSuperseded: A later try has begun it.
            FlowNotFound: The flow no longer exists.
        """
        decision = decide(self._attempt(context), _history(producer, flow_id))
        if decision is Decision.YIELD:
            raise GlideMQFlowSuperseded(flow_id)
        return producer.get(flow_id, owner=self._owned_by(context["ti"], decision))

    def _owned_by(self, ti: RuntimeTaskInstanceProtocol, decision: Decision) -> Owner | None:
        """The task as the owner of its flow; nobody of one that others have begun, or a kill lets run."""
        is_own = self.cancel_on_kill and decision is not Decision.JOIN
        self._owner = owner_of(name_of(ti), self.lapse) if is_own else None
        return self._owner

    # -- how it ends -----------------------------------------------------------------------------------------

    def _settle(self, context: Context, producer: FlowProducer, flow: Flow) -> dict[str, Any] | None:
        """Finish if the flow has ended. Else wait: also for one that was retried or begun anew by others."""
        while True:
            self._held = _Held(flow.id, "", flow.generation)
            try:
                return self._settle_generation(context, flow)
            except Superseded as exc:
                flow = self._find(context, producer, flow.id)
                self.log.info("%s, which this task waits for now", exc)

    def _settle_generation(self, context: Context, flow: Flow) -> dict[str, Any] | None:
        status = flow.status()
        if status.superseded_by is not None:
            raise Superseded(f"flow {flow.id} was begun anew: generation {status.superseded_by}")
        if not status.state.is_terminal:
            status = self._wait_briefly(flow, status) if self.deferrable else self._wait(flow)
        if not status.state.is_terminal:
            self._defer(context, flow)
        return self._finish(flow, status)

    def _finish(self, flow: Flow, status: FlowStatus) -> dict[str, Any] | None:
        if status.state is FlowState.FAILED:
            raise GlideMQFlowFailed(flow.id, flow.outcome().failed)
        if status.state is FlowState.CANCELLED:
            raise GlideMQFlowCancelled(flow.id, status.reason)
        self.log.info("Flow %s completed: %d nodes", flow.id, status.completed)
        return collect(flow, self.result, self.log)

    def _defer(self, context: Context, flow: Flow) -> NoReturn:
        deadline = self._deadline(context["ti"])
        left = None if deadline is None else timedelta(seconds=max(deadline - time.time(), 0.0))
        self.defer(
            trigger=GlideMQFlowTrigger(
                flow_id=flow.id,
                generation=flow.generation,
                owner=None if self._owner is None else self._owner.name,
                lapse=self.lapse,
                glidemq_conn_id=self.glidemq_conn_id,
                poll_interval=self.poll_interval,
                deadline=deadline,
                cancel_on_kill=self.cancel_on_kill,
                not_before=time.time() + SECONDS_DEFERRED,
            ),
            method_name="execute_complete",
            timeout=None if left is None else left + BACKSTOP,
        )

    def _deadline(self, ti: RuntimeTaskInstanceProtocol) -> float | None:
        if self.execution_timeout is None:
            return None
        return (ti.start_date + self.execution_timeout).timestamp()

    def _wait_briefly(self, flow: Flow, status: FlowStatus) -> FlowStatus:
        if self.defer_after > 0:
            with contextlib.suppress(WaitTimeout, TransportError):
                return flow.wait(timeout=timedelta(seconds=self.defer_after)).status
        return status

    def _wait(self, flow: Flow) -> FlowStatus:
        """Wait in this process; Airflow enforces ``execution_timeout`` and calls ``on_kill``."""
        pauses, logged = reconnect_pauses(), -1
        while True:
            try:
                return flow.wait(timeout=WAIT_SLICE).status
            except WaitTimeout:
                pauses = reconnect_pauses()
                status = flow.status()
                if status.completed != logged:
                    logged = status.completed
                    self.log.info("%d/%d nodes completed", status.completed, status.total)
            except TransportError as exc:
                if not exc.retryable:
                    raise
                pause = next(pauses)
                self.log.warning("Flow %s cannot be watched, retrying in %.1f s: %s", flow.id, pause, exc)
                time.sleep(pause)

    def _time_out(self, context: Context, flow_id: str) -> NoReturn:
        status = None
        if self.cancel_on_kill:
            reason = "the Airflow task's execution_timeout has passed"
            status = self._cancel_own(context, flow_id, reason)
        progress = f": {status.completed} of {status.total} nodes had completed" if status else ""
        raise GlideMQFlowTimeout(flow_id, progress)

    def _cancel_own(self, context: Context, flow_id: str, reason: str) -> FlowStatus | None:
        """Cancel the current generation unless a later try has begun it; returns the status before."""
        with self._ending(flow_id), self._producer() as producer:
            flow = self._find(context, producer, flow_id)
            return self._cancel_generation(flow, flow.generation, reason)

    def _cancel(self, held: _Held, reason: str) -> None:
        """Cancel the generation of this try; of one that is being submitted, if it has begun."""
        with self._ending(held.flow_id), self._producer() as producer:
            flow = producer.get(held.flow_id)
            if held.generation is not None:
                self._cancel_generation(flow, held.generation, reason)
            elif flow.status().request == held.request:
                self._cancel_generation(flow, flow.generation, reason)

    def _cancel_generation(self, flow: Flow, generation: int, reason: str) -> FlowStatus:
        status = flow.status()
        flow.cancel(reason, generation=generation)
        self.log.info("Flow %s was %s and is cancelled: %s", flow.id, status.state.value, reason)
        return status

    @contextlib.contextmanager
    def _ending(self, flow_id: str) -> Iterator[None]:
        """Log why a flow was not cancelled; the task is ending anyway."""
        try:
            yield
        except FlowNotFound:
            pass
        except (Superseded, GlideMQFlowSuperseded) as exc:
            self.log.info("Flow %s is not cancelled: %s", flow_id, exc)
        except GlideMQError:
            self.log.exception(
                "Flow %s could not be cancelled; cancel it with: glidemq flow cancel %s", flow_id, flow_id
            )


_HOW: Final[Mapping[Decision, OnExisting]] = {
    Decision.REPAIR: "retry_failed",
    Decision.RESTART: "restart",
}


def _map_index(ti: RuntimeTaskInstanceProtocol) -> int:
    return -1 if ti.map_index is None else ti.map_index


def _history(producer: FlowProducer, flow_id: str) -> Sequence[FlowStatus]:
    """The status of each generation, oldest first; nothing if there is no such flow."""
    try:
        flow = producer.get(flow_id)
    except FlowNotFound:
        return []
    try:
        return flow.history()
    except FlowNotFound:  # the record of an old one was removed at this moment
        return [flow.status()]
