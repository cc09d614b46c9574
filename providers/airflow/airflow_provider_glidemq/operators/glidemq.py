"""GlideMQFlowOperator: a flow of jobs behind one task. Parameters, ids, lifecycle; no driver, no keys."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralError, TaskDeferralTimeout

from airflow_provider_glidemq.exceptions import (
    GlideMQException,
    GlideMQFlowCancelled,
    GlideMQFlowFailed,
    GlideMQFlowTimeout,
    airflow_errors,
)
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID, GlideMQHook
from airflow_provider_glidemq.identity import flow_id_for
from airflow_provider_glidemq.results import ResultMode, check_result_mode, collect
from airflow_provider_glidemq.triggers.glidemq import SECONDS_DEFERRED, GlideMQFlowTrigger, reconnect_pauses
from glidemq_orchestrate import FlowSpec, FlowState
from glidemq_orchestrate.errors import FlowNotFound, GlideMQError, TransportError, WaitTimeout

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from glidemq_orchestrate import Flow, FlowProducer, FlowStatus

__all__ = ["XCOM_FLOW_ID", "GlideMQFlowOperator", "flow_id_for"]

XCOM_FLOW_ID: Final = "glidemq_flow_id"
STORE_KEY: Final = "glidemq_flow"
FLOW_FILES: Final = (".yaml", ".yml", ".json")
BACKSTOP: Final = timedelta(seconds=60)
WAIT_SLICE: Final = timedelta(seconds=10)


class GlideMQFlowOperator(BaseOperator):
    """Submits a flow, waits for its end without a worker slot, and returns results.

    The flow's id follows from DAG, DAG run, task and map index. So whatever happens to the Airflow worker,
    the flow is submitted once; a retry attaches to it if it still runs, and repairs it if it failed: failed
    nodes and those after them run again, completed ones keep their results. Killing or marking the task
    cancels the flow. Clearing it while it waits continues with the same flow. Clearing a task that had
    succeeded does not run the flow again: its results are reused, and a warning is logged.

    A flow must be the same on each try: keep times and try numbers out of its data.

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
        on_existing: What to do with a failed flow of this id: ``attach`` (fail immediately) or
            ``retry_failed``; default: the latter from the second try on.

    Raises:
        GlideMQFlowFailed: Lists the nodes that did not complete, causes first.
        GlideMQFlowCancelled: The flow was cancelled.
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
        on_existing: Literal["attach", "retry_failed"] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_result_mode(result)
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
        self.on_existing = on_existing
        self._submitted_id: str | None = None

    # -- what Airflow calls ----------------------------------------------------------------------------------

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Submit the flow, or attach to it; return its results if it has ended, else wait."""
        ti = context["ti"]
        flow_id = self._id(ti)
        spec = self._spec(ti)
        if self.do_xcom_push:
            ti.xcom_push(key=XCOM_FLOW_ID, value=flow_id)
        with airflow_errors(), self._producer() as producer:
            before = _state(producer, flow_id)
            self._note_clear(context, flow_id, before)
            self._submitted_id = flow_id
            flow = producer.submit(
                spec,
                flow_id=flow_id,
                on_existing=self.on_existing or ("retry_failed" if ti.try_number > 1 else "attach"),
                require_workers=self.require_workers and before is not FlowState.COMPLETED,
            )
            self.log.info(
                "Flow %s: %d nodes, home queue %s, was %s. Watch it with: glidemq flow watch %s",
                flow_id, len(spec.nodes), flow.home, "new" if before is None else before.value, flow_id,
            )  # fmt: skip
            return self._settle(context, flow)

    def execute_complete(
        self, context: Context, event: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Resume after the trigger has fired: the event holds why, the outcome is read from the server."""
        if event is None or "status" not in event or "flow_id" not in event:
            raise GlideMQException(f"the trigger sent no usable event: {event!r}")
        flow_id = event["flow_id"]
        if event["status"] == "timeout":
            self._time_out(flow_id)
        if event["status"] == "error":
            raise GlideMQException(f"flow {flow_id} cannot be watched: {event.get('reason', '')}")
        with airflow_errors(), self._producer() as producer:
            return self._settle(context, producer.get(flow_id))

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after waiting; a flow that no task would wait for any more is cancelled first.

        Airflow calls neither ``execute_complete`` nor a trigger's ``on_kill`` when waiting itself has failed.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            self._time_out(self._id(context["ti"]))
        except TaskDeferralError:
            ti = context["ti"]
            if ti.try_number > ti.max_tries:
                self._cancel(self._id(ti), "the Airflow task could not wait for it and has no retry left")
            raise

    def on_kill(self) -> None:
        """Cancel the flow when the worker process is asked to stop."""
        if self._submitted_id is not None and self.cancel_on_kill:
            self._cancel(self._submitted_id, "the Airflow task was killed")

    # -- how the flow is found and described -----------------------------------------------------------------

    def _producer(self) -> FlowProducer:
        return GlideMQHook(self.glidemq_conn_id).get_producer()

    def _id(self, ti: RuntimeTaskInstanceProtocol) -> str:
        return self.flow_id or flow_id_for(ti.dag_id, ti.task_id, ti.run_id, _map_index(ti))

    def _spec(self, ti: RuntimeTaskInstanceProtocol) -> FlowSpec:
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
        return replace(spec, labels=labels)

    def _described(self) -> FlowSpec:
        flow: object = self.flow
        if isinstance(flow, str) and flow.endswith(FLOW_FILES):
            flow = FlowSpec.from_file(self._beside_dag(flow))
        elif isinstance(flow, str):
            flow = _function(flow)(**(self.flow_kwargs or {}))
        if isinstance(flow, FlowSpec):
            return flow
        if isinstance(flow, Mapping):
            return FlowSpec.from_dict(flow)
        raise AirflowFailException(f"flow must be a dict or a FlowSpec, got {type(flow).__name__}")

    def _beside_dag(self, name: str) -> Path:
        path = Path(name)
        if path.is_absolute() or not self.has_dag():  # type: ignore[no-untyped-call]
            return path
        return Path(self.dag.fileloc).parent / path

    def _note_clear(self, context: Context, flow_id: str, before: FlowState | None) -> None:
        """Warn when a cleared task gets its old results, and remember the id for the next try."""
        store = context.get("task_state_store")
        if store is None:
            return
        known = store.get(STORE_KEY, default=None)
        known = known if isinstance(known, dict) and known.get("flow_id") == flow_id else {}
        if known.get("finished") and before is FlowState.COMPLETED:
            self.log.warning(
                "Flow %s had completed and the task had succeeded, so the task was cleared. The flow does "
                "not run again: its results are reused. To run it again, start a new DAG run or set "
                "another flow_id.",
                flow_id,
            )
        store.set(STORE_KEY, {"flow_id": flow_id, "try_number": context["ti"].try_number, "finished": False})

    # -- how it ends -----------------------------------------------------------------------------------------

    def _settle(self, context: Context, flow: Flow) -> dict[str, Any] | None:
        """Finish if the flow has ended. Else wait: also for one that was retried by another client."""
        status = flow.status()
        if not status.state.is_terminal:
            status = self._wait_briefly(flow, status) if self.deferrable else self._wait(flow)
        if not status.state.is_terminal:
            self._defer(context, flow.id)
        return self._finish(context, flow, status)

    def _finish(self, context: Context, flow: Flow, status: FlowStatus) -> dict[str, Any] | None:
        if status.state is FlowState.FAILED:
            raise GlideMQFlowFailed(flow.id, flow.outcome().failed)
        if status.state is FlowState.CANCELLED:
            raise GlideMQFlowCancelled(flow.id, status.reason)
        self.log.info("Flow %s completed: %d nodes", flow.id, status.completed)
        values = collect(flow, self.result, self.log)
        if (store := context.get("task_state_store")) is not None:
            store.set(
                STORE_KEY, {"flow_id": flow.id, "try_number": context["ti"].try_number, "finished": True}
            )
        return values

    def _defer(self, context: Context, flow_id: str) -> NoReturn:
        deadline = self._deadline(context["ti"])
        left = None if deadline is None else timedelta(seconds=max(deadline - time.time(), 0.0))
        self.defer(
            trigger=GlideMQFlowTrigger(
                flow_id=flow_id,
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

    def _time_out(self, flow_id: str) -> NoReturn:
        status = (
            self._cancel(flow_id, "the Airflow task's execution_timeout has passed")
            if self.cancel_on_kill
            else None
        )
        progress = f": {status.completed} of {status.total} nodes had completed" if status else ""
        raise GlideMQFlowTimeout(flow_id, progress)

    def _cancel(self, flow_id: str, reason: str) -> FlowStatus | None:
        """Cancel and return the status before; errors are logged, since the task is ending anyway."""
        try:
            with self._producer() as producer:
                flow = producer.get(flow_id)
                status = flow.status()
                flow.cancel(reason)
        except FlowNotFound:
            return None
        except GlideMQError:
            self.log.exception(
                "Flow %s could not be cancelled; cancel it with: glidemq flow cancel %s", flow_id, flow_id
            )
            return None
        self.log.info("Flow %s was %s and is cancelled: %s", flow_id, status.state.value, reason)
        return status


def _map_index(ti: RuntimeTaskInstanceProtocol) -> int:
    return -1 if ti.map_index is None else ti.map_index


def _state(producer: FlowProducer, flow_id: str) -> FlowState | None:
    try:
        return producer.get(flow_id).status().state
    except FlowNotFound:
        return None


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name) if module and name else None
    except (ImportError, AttributeError) as exc:
        raise AirflowFailException(f"flow {place!r} cannot be imported: {exc}") from exc
    if not callable(found):
        raise AirflowFailException(
            f"flow {place!r} is neither a flow file ({', '.join(FLOW_FILES)}) nor package.module:function"
        )
    return found
