"""GlideMQTaskGroup: its tasks become one flow, and each remains an Airflow task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import TaskGroup
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.taskgroup import MappedTaskGroup

from airflow_provider_glidemq.group_flow import LAUNCH
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID
from airflow_provider_glidemq.ownership import DAY, lease_in_seconds
from airflow_provider_glidemq.parameters import in_seconds
from airflow_provider_glidemq.task_groups.attributes import attributes, defaults_of, rule_of
from airflow_provider_glidemq.task_groups.reading import GroupReader
from airflow_provider_glidemq.task_groups.tasks import GlideMQLaunchOperator, GlideMQNodeMonitor
from glidemq_orchestrate import Rule
from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow

if TYPE_CHECKING:
    from airflow.sdk.types import Operator

    from glidemq_orchestrate.runs import Duration

# Set on every monitor regardless of default_args: these are carried over to the node, or were refused.
_PLAIN: Final[Mapping[str, Any]] = {
    "retry_delay": timedelta(seconds=1),
    "execution_timeout": None,
    "depends_on_past": False,
    "wait_for_downstream": False,
    "pool": None,
    "pool_slots": 1,
    "max_active_tis_per_dag": None,
    "max_active_tis_per_dagrun": None,
    "on_execute_callback": None,
    "on_retry_callback": None,
    "email_on_retry": False,
    "run_as_user": None,
    "executor": None,
    "executor_config": None,
    "map_index_template": None,
}
# Attributes that the monitor takes over from the task that it replaces.
_CARRIED: Final = (
    "owner",
    "doc",
    "doc_md",
    "doc_json",
    "doc_yaml",
    "doc_rst",
    "task_display_name",
    "on_success_callback",
    "on_failure_callback",
    "on_skipped_callback",
    "email",
    "email_on_failure",
    "inlets",
    "outlets",
    "queue",
    "do_xcom_push",
    "multiple_outputs",
    "start_date",
    "end_date",
    "priority_weight",
)


class GlideMQTaskGroup(TaskGroup):
    """Runs its tasks as one flow of jobs; each remains a task with its own state, duration, log and retries.

    The group may contain ``GlideMQOperator``, ``GlideMQSparkOperator``, ``PythonOperator``, functions with
    ``@task``, ``@task.glidemq`` or ``@task.glidemq_spark``, expanded or not, and task groups. A function runs
    on a glide-mq worker by its import path: see ``functions``. When the ``with`` block ends, a task
    ``launch`` is added, which submits the flow. Every other task is replaced by a task that watches its node;
    ids, edges and callbacks stay. On Airflow 3.3 these tasks need no Airflow worker.

    The arguments of a task become the arguments of its node. Results of other tasks of the group go from node
    to node: into the arguments of a function, and to the handler of a ``GlideMQOperator`` as ``ctx.inputs``,
    keyed by the task id without the group id. All else is rendered in ``launch``, before any task of the
    group runs. So the whole group waits for every task outside the group that one of its tasks depends on.
    Trigger rules, ``retries`` (attempts of the job), ``retry_delay``, ``execution_timeout`` (of an attempt),
    ``priority_weight`` and ``pool`` carry over. Other parameters that affect a run are refused while the DAG
    is parsed, with the reason.

    Args:
        group_id: See ``TaskGroup``.
        queue_name: The queue of the workers that run the functions.
        glidemq_conn_id: The id of the connection.
        eager: Start every task as soon as the flow is submitted: it shows the end of its node at once, and
            its duration includes the time that its node waits for others. Otherwise tasks start in order of
            their dependencies, as without the group, and each shows the end of its node some seconds later.
        arrays: Make an array of each expanded task, instead of a node for each item: for thousands of items.
            Its results reach other functions as before, but the handler of a ``GlideMQOperator`` has counts
            in ``ctx.inputs["task[*]"]``, and reads the results with ``ctx.flow.array_results("task[*]")``.
        pools: How many jobs of an Airflow pool run at once on each queue, by the name of the pool.
        require_workers, cancel_on_kill, lease, logging_interval: See ``GlideMQFlowOperator``.
        poll_interval: How often nodes are read if no event arrives.
        show_logs: Show the log lines and progress of running nodes in the logs of their tasks.
        launch_args: Additional arguments for the task ``launch``, such as ``retries``.
        kwargs: See ``TaskGroup``.

    Raises:
        ConfigurationError, InvalidFlow: While the DAG is parsed: a task cannot be part of a flow; the message
            names the task, the reason, and what to do.
    """

    def __init__(  # noqa: PLR0913  all but the first have defaults
        self,
        group_id: str,
        *,
        queue_name: str | None = None,
        glidemq_conn_id: str = DEFAULT_CONN_ID,
        eager: bool = False,
        arrays: bool = False,
        pools: Mapping[str, int] | None = None,
        require_workers: bool = True,
        cancel_on_kill: bool = True,
        lease: Duration | None = DAY,
        poll_interval: Duration = 10,
        logging_interval: Duration = 10,
        show_logs: bool = False,
        launch_args: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id=group_id, **kwargs)
        self._queue_name = queue_name
        self._eager = eager
        self._arrays = arrays
        self._pools = dict(pools or {})
        self._require_workers = require_workers
        self._launch_args = dict(launch_args or {})
        self._watch: dict[str, Any] = {
            "glidemq_conn_id": glidemq_conn_id,
            "cancel_on_kill": cancel_on_kill,
            "lease": lease_in_seconds("lease", lease),
            "poll_interval": in_seconds("poll_interval", poll_interval),
            "logging_interval": in_seconds("logging_interval", logging_interval),
            "show_logs": show_logs,
        }

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the group: its tasks become a flow."""
        try:
            if kind is None:
                self._close()
        finally:
            super().__exit__(kind, value, traceback)  # type: ignore[no-untyped-call]

    # -- closing ---------------------------------------------------------------------------------------------

    def _close(self) -> None:
        operators: list[Operator] = list(self)
        where = f"task group {self.group_id}"
        if not operators:
            raise ConfigurationError(f"{where} has no tasks")
        if any(isinstance(group, GlideMQTaskGroup | MappedTaskGroup) for group in _inside(self)):
            raise ConfigurationError(f"{where}: a group inside it must be a plain TaskGroup, not expanded")
        taken: str = self.child_id(LAUNCH)  # type: ignore[no-untyped-call]
        if taken in self.dag.task_ids:
            raise ConfigurationError(
                f"{where} adds a task {taken}, and there is one already: rename that one; two groups with "
                "prefix_group_id=False cannot be in one DAG"
            )
        if self._eager and getattr(self.dag, "fail_fast", False):
            raise ConfigurationError(
                f"{where}: tasks of an eager group have the trigger rule one_success, which Airflow does "
                "not allow in a fail_fast DAG: leave eager out"
            )
        ids = {operator.task_id for operator in operators}
        prefix = f"{self.group_id}." if self.prefix_group_id else ""
        reader = GroupReader(
            operators,
            prefix=prefix,
            queue=self._queue_name,
            pools=self._pools,
            conn_id=self._watch["glidemq_conn_id"],
            arrays=self._arrays,
        )
        tasks = reader.read()
        rule = self._default_rule(operators[0])
        outside = self._outside(operators, ids, rule)
        launch = GlideMQLaunchOperator(
            task_id=LAUNCH,
            task_group=self,
            dag=self.dag,
            tasks=tasks,
            group=str(self.group_id),
            require_workers=self._require_workers,
            **{name: self._watch[name] for name in ("glidemq_conn_id", "cancel_on_kill", "lease")},
            **{"trigger_rule": rule, **self._launch_args},
        )
        reader.check_params(tasks, launch.params)
        reader.check_dates(launch)
        for task_id in sorted(outside):
            waited = self.dag.get_task(task_id)
            waited.downstream_task_ids.difference_update(ids)
            launch.set_upstream(waited)
        for operator, task in zip(operators, tasks, strict=True):
            self._replace(operator, task, reader, launch)

    def _default_rule(self, operator: Operator) -> str:
        """The trigger rule that default_args set for the whole group, and so for launch."""
        rule = defaults_of(operator).get("trigger_rule", Rule.ALL_SUCCESS)
        return str(getattr(rule, "value", rule))

    def _outside(self, operators: list[Operator], ids: set[str], rule: str) -> set[str]:
        """Move the dependencies on tasks outside the group from its tasks; ``rule``: that of default_args."""
        found: set[str] = set()
        for operator in operators:
            waited = operator.upstream_task_ids - ids
            by_launch = Rule.ALL_SUCCESS.value if "trigger_rule" in self._launch_args else rule
            if waited and rule_of(operator) not in (rule, by_launch):
                raise InvalidFlow(
                    f"task {operator.task_id}: all of the group waits for {min(waited)}, so trigger rule "
                    f"{rule_of(operator)} cannot decide about it: leave the rule to the task {LAUNCH}, by "
                    "launch_args={'trigger_rule': ...}"
                )
            for task_id in sorted(waited):
                if circle := self.dag.get_task(task_id).get_flat_relative_ids(upstream=True) & ids:
                    raise InvalidFlow(
                        f"task {operator.task_id} waits for {task_id}, which waits for {min(circle)} of the "
                        f"same group. The group starts as a whole: move {task_id} into the group, or end the "
                        "group before it"
                    )
            found |= waited
            operator.upstream_task_ids.intersection_update(ids)
        return found

    def _replace(
        self, operator: Operator, task: Mapping[str, Any], reader: GroupReader, launch: GlideMQLaunchOperator
    ) -> None:
        """Replace a task by a monitor; existing and later references to the task lead to the monitor."""
        before = {one: reader.name(one) for one in sorted(operator.upstream_task_ids)}
        is_early = self._eager or rule_of(operator) == Rule.ALWAYS
        rule = Rule.ONE_SUCCESS if is_early and before else rule_of(operator) if before else Rule.ALL_SUCCESS
        label, group = operator.label, operator.task_group
        _remove(operator)
        monitor = GlideMQNodeMonitor(
            task_id=label,
            task_group=group,
            dag=self.dag,
            node=task["name"],
            is_expanded=isinstance(operator, MappedOperator),
            launch=launch.task_id,
            nodes_before=before,
            group=str(self.group_id),
            group_tasks=reader.task_ids,
            watch=self._watch,
            trigger_rule=str(rule),  # one_success: as soon as launch has submitted the flow
            **attributes(operator, _CARRIED),
            **_PLAIN,
        )
        # The same sets: an edge that is set on the task when the group is closed is one of the monitor.
        monitor.upstream_task_ids = operator.upstream_task_ids
        monitor.downstream_task_ids = operator.downstream_task_ids
        if isinstance(operator, MappedOperator):
            operator._is_mapped = False  # noqa: SLF001  those who use its output get one value: a list
        if is_early or not before:
            monitor.set_upstream(launch)


def _remove(operator: Operator) -> None:
    """Remove a task from its DAG and group; its edges stay, for the task that gets its id."""
    dag, group = operator.dag, operator.task_group
    if dag is not None and group is not None:
        del dag.task_dict[operator.task_id]
        del group.children[operator.task_id]
        group.used_group_ids.discard(operator.task_id)


def _inside(group: TaskGroup) -> Iterator[TaskGroup]:
    """The task groups in a group, at any depth."""
    for child in group.children.values():
        if isinstance(child, TaskGroup):
            yield child
            yield from _inside(child)
