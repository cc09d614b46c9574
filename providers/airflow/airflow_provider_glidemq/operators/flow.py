"""GlideMQFlowOperator: a flow of jobs behind one task. This module defines the flow and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_glidemq.description import (
    FLOW_FILES,
    FlowText,
    check_description,
    find_file,
    is_file,
    names_of,
    object_of,
    read_file,
)
from airflow_provider_glidemq.operators.lifecycle import FlowTask
from airflow_provider_glidemq.results import KEEPING, check_names, check_result, check_size
from airflow_provider_glidemq.templates import is_unknown
from airflow_provider_glidemq.version_compat import AirflowFailException
from glidemq_orchestrate import FlowSpec, runs

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

    from glidemq_orchestrate import Flow
    from glidemq_orchestrate.flows import FlowStatus
    from glidemq_orchestrate.runs import Result


class GlideMQFlowOperator(FlowTask):
    """Submits a flow, waits for its end without a worker slot, and returns its results.

    The flow id is derived from DAG, DAG run, task and map index. So the flow is submitted only once, even if
    the Airflow worker dies.

    - A retry attaches to the flow if it still runs, and repairs it if it failed: failed nodes and the nodes
      after them run again, completed nodes keep their results. If the definition of the flow has changed
      since then, the changed nodes and the nodes after them run again too. Clearing a failed task does the
      same.
    - The whole flow runs again after a clear of a task that succeeded or still waited, after a clear that
      follows another run of an upstream task, and in a DAG run that was deleted and created again. No old
      result is reused, and nodes that still run are cancelled.
    - If a person has restarted the flow by hand, a cleared task attaches to that generation.
    - Killing or marking the task cancels the flow. Leftovers of an earlier run of the task never affect the
      flow of a later run.

    Data that contains times or try numbers changes with each try, so a retry runs these nodes again: leave
    such values out. One kind of clear looks like a retry: that of a running task whose process was killed
    before it could cancel the flow (kill -9, a lost machine).

    With your own ``flow_id``, the task joins a flow that another task or client has begun: the first try
    attaches to it, later tries repair it, and no try restarts or changes it.

    Args:
        flow: What to run: a dict in the form of a flow file, a ``FlowSpec``, or the path of a ``.yaml``,
            ``.yml`` or ``.json`` file, relative to the DAG file or in the ``template_searchpath`` of the DAG.
            All strings in these are templated. Or ``package.module:function``, a function that returns a dict
            or a ``FlowSpec``, which is not rendered.
        flow_kwargs: Arguments for that function (templated).
        flow_id: Your own id for the flow (templated), 1 to 256 characters; default: derived as above.
        glidemq_conn_id: The connection (templated).
        deferrable: Wait in the triggerer, without a worker slot; with False, the task keeps its slot. The
            default is ``AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE`` if set, else True.
        defer_after: How long to wait in the worker before deferring: a short flow ends sooner than a deferred
            task resumes.
        poll_interval: How often the triggerer reads the state if no event arrives; without effect while the
            task waits in the worker.
        logging_interval: Time between log lines about progress.
        show_logs: Also show, at this interval, the log lines (``ctx.log``) and the progress of nodes.
        callbacks: Subclasses of ``GlideMQFlowCallback``, named as ``package.module:Class``, which are called
            when the flow is submitted, makes progress, and ends.
        require_workers: Fail immediately unless live workers serve every queue and have all handlers.
        result: Which results to return, as ``{node: result}``: ``leaves`` (nodes without dependents),
            ``all``, a list of names of the flow's nodes, or ``none``. Skipped nodes, and nodes whose failure
            is ignored, have no result.
        cancel_on_kill: Whether killing or marking the task cancels the flow.
        lease: The flow is cancelled after no worker or triggerer has waited for it for this long: 15 seconds
            to seven days. None: it keeps running. Without ``cancel_on_kill``, and for a flow that another
            client has begun, there is no lease.
        on_existing: What to do with an existing flow of this id, even if another client has begun it:
            ``attach`` (leave it unchanged), ``retry_failed`` (repair it; a clear of a success runs the whole
            flow again), or ``restart`` (each try runs the whole flow again); default: as above.

    Raises:
        GlideMQFlowFailed: The flow failed. Lists the nodes that did not complete, causes first.
        GlideMQFlowCancelled: The flow was cancelled.
        GlideMQFlowSuperseded: A later try of the task has restarted the flow.
        GlideMQFlowTimeout: The flow did not end within ``execution_timeout``; it is cancelled if
            ``cancel_on_kill``.
        GlideMQResultTooLarge: The results are more than 48 KiB of JSON, and XCom is in Airflow's database.
        GlideMQException: No worker serves a queue; the server cannot be reached; the flow no longer exists.
        AirflowFailException: No retry helps: the flow, the connection or the code must be changed first.
        ValueError, TypeError: While the DAG is parsed: the flow or a parameter is invalid.
    """

    template_fields: Sequence[str] = ("flow", "flow_kwargs", "flow_id", "glidemq_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"flow": "json", "flow_kwargs": "json"}
    template_ext: Sequence[str] = FLOW_FILES
    structured_fields: ClassVar[tuple[str, ...]] = ("flow",)
    ui_color = "#dbe9f4"

    def __init__(
        self,
        *,
        flow: Mapping[str, Any] | FlowSpec | str,
        flow_kwargs: Mapping[str, Any] | None = None,
        result: Result = "leaves",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        with self._located_errors():
            check_result(result)
        self.flow = flow
        self.flow_kwargs = flow_kwargs
        self.result = result
        self._is_checked = False
        if self.is_being_parsed:
            self._check()

    # -- while the DAG is parsed -----------------------------------------------------------------------------

    def resolve_template_files(self) -> None:
        """Read the flow file, and refuse a flow that cannot run; Airflow has parsed the DAG.

        Raises:
            GlideMQError: The file cannot be read, or the flow cannot run for any values of its templates.
            TypeError: No value of this type describes a flow.
        """
        if is_file(self.flow) and not is_unknown(self.flow, self._marks()):
            self._file = str(self.flow)
            with self._located_errors():
                self.flow = self._read(self._file)
        self._check()
        self.prepare_template()

    def _check(self) -> None:
        if self._is_checked:
            return
        given: object = self.flow_kwargs
        if not (given is None or isinstance(given, Mapping) or is_unknown(given, self._marks())):
            raise TypeError(f"task {self.task_id}: flow_kwargs must be a dict, got {type(given).__name__}")
        with self._located_errors():
            check_description(self.flow, self._marks())
            if (names := names_of(self.flow, self._marks())) is not None:
                check_names(self.result, names)
        self._is_checked = not is_file(self.flow)

    def _read(self, name: str) -> dict[str, Any] | FlowText:
        """The flow file beside the DAG, or in the ``template_searchpath`` of the DAG."""
        if Path(name).is_absolute() or not self.has_dag():  # type: ignore[no-untyped-call]
            return read_file(Path(name), self._marks())
        paths = self.dag.template_searchpath or []
        folders = [self.dag.folder, *([paths] if isinstance(paths, str) else paths)]
        return read_file(find_file(name, folders), self._marks())

    # -- when it runs ----------------------------------------------------------------------------------------

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Render as the base class does; the text of a flow file stays a ``FlowText``."""
        if isinstance(content, FlowText):
            rendered = self._rendered(context, jinja_env or self.get_template_env())
            return FlowText.of(rendered.text(content), content.path)
        return super().render_template(content, context, jinja_env, seen_oids)

    def _declared(self) -> FlowSpec | None:
        flow: object = self.flow
        is_known = isinstance(
            flow, FlowText | FlowSpec | Mapping
        )  # not a function, nor a file that a template names
        return self._read_spec({}) if is_known else None

    def _described(self, context: Context) -> FlowSpec:
        spec = self._read_spec(context)
        check_names(self.result, [node.name for node in spec.nodes])
        return spec

    def _read_spec(self, context: Context) -> FlowSpec:
        flow: object = self.flow
        if is_file(flow):  # the file name is a template, or an output of another task
            self.flow = self._read(str(flow))
            flow = self.render_template(self.flow, context)
        elif isinstance(flow, str) and not isinstance(flow, FlowText):
            check_description(flow, ())
            return FlowSpec.from_function(flow, **(self.flow_kwargs or {}))
        if isinstance(flow, FlowText):
            flow = object_of(flow)
        if isinstance(flow, FlowSpec):
            return flow
        if isinstance(flow, Mapping):
            return FlowSpec.from_dict(flow)
        raise AirflowFailException(f"flow must be a dict, a FlowSpec or a string, got {type(flow).__name__}")

    def _returned(self, flow: Flow, status: FlowStatus) -> dict[str, Any] | None:
        spec = self._submitted
        is_whole = spec is not None and status.total == len(spec.nodes)  # else running nodes have added nodes
        found = runs.collect(
            flow, self.result, runs.leaves_of(spec) if spec is not None and is_whole else None
        )
        if found is not None and self.do_xcom_push:
            check_size(flow.id, found, KEEPING)
        return found
