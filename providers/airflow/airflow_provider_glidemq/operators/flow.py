"""GlideMQFlowOperator: a flow of jobs behind one task. What is run and what is returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_glidemq.operators.lifecycle import FlowTask
from airflow_provider_glidemq.results import ResultMode, check_result_mode, collect
from glidemq_orchestrate import FlowSpec

if TYPE_CHECKING:
    from glidemq_orchestrate import Flow, FlowStatus

FLOW_FILES: Final = (".yaml", ".yml", ".json")


class GlideMQFlowOperator(FlowTask):
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

    def __init__(
        self,
        *,
        flow: Mapping[str, Any] | FlowSpec | str,
        flow_kwargs: Mapping[str, Any] | None = None,
        result: ResultMode = "leaves",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_result_mode(result)
        self.flow = flow
        self.flow_kwargs = flow_kwargs
        self.result = result

    def _returned(self, flow: Flow, status: FlowStatus) -> dict[str, Any] | None:  # noqa: ARG002
        return collect(flow, self.result, self.log)

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
