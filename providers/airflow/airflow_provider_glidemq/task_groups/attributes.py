"""Parameters of the tasks of a group: which become options of a node, and which have no counterpart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.definitions.mappedoperator import MappedOperator

from glidemq_orchestrate import FlowNode, FlowSpec, JobOptions
from glidemq_orchestrate.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk.types import Operator

_ABSENT: Final = object()
# Attributes that change how or when a task runs and have no counterpart in a flow: the attribute, its neutral
# value, and the reason.
_ON_LAUNCH: Final = "a flow starts as a whole; give it to the task launch instead: launch_args={...}"
_REFUSED: Final[Sequence[tuple[str, Any, str]]] = (
    ("depends_on_past", False, _ON_LAUNCH),
    ("wait_for_downstream", False, _ON_LAUNCH),
    ("is_setup", False, "a flow has no set-up tasks: put it before the group"),
    ("is_teardown", False, "a flow has no teardown tasks: put it after the group"),
    ("pool_slots", 1, "a job takes one place of a pool"),
    ("retry_policy", None, "retries are attempts of the job: let the handler raise Unrecoverable"),
    ("run_as_user", None, "it runs as the user of the glide-mq worker"),
    ("executor", None, "no executor runs it"),
    ("executor_config", {}, "no executor runs it"),
    ("map_index_template", None, "all its nodes are one task"),
    ("on_execute_callback", [], "no process of Airflow executes it"),
    ("on_retry_callback", [], "its retries are attempts of the job, which Airflow does not see"),
    ("pre_execute", None, "no process of Airflow executes it"),
    ("post_execute", None, "no process of Airflow executes it"),
    ("cancel_on_kill", True, "give it to the group"),
    ("on_existing", None, "it would be that of the whole flow"),
    ("flow_id", None, "the group has one flow"),
    ("retention", None, "it would be that of the whole flow"),
    ("show_logs", False, "give it to the group"),
    ("callbacks", (), "they are called for whole flows"),
)
# Allowed in default_args nevertheless: these do not change what the task does, and launch has them too.
_LEFT_OUT: Final = frozenset(
    {"executor", "executor_config", "map_index_template", "on_execute_callback", "on_retry_callback"}
)
_HOOKS: Final = {"pre_execute": "_pre_execute_hook", "post_execute": "_post_execute_hook"}


def rule_of(operator: Operator) -> str:
    """The trigger rule of a task."""
    return str(getattr(operator.trigger_rule, "value", operator.trigger_rule))


def attributes(operator: Operator, names: Sequence[str]) -> dict[str, Any]:
    """The parameters with these names that are set on a task, expanded or not."""
    found = {name: getattr(operator, name, _ABSENT) for name in names}
    if isinstance(operator, MappedOperator):
        found = {name: operator.partial_kwargs.get(name, value) for name, value in found.items()}
    return {name: value for name, value in found.items() if value is not _ABSENT}


def given(operator: Operator, name: str) -> Any:
    """A parameter of a task, expanded or not."""
    if isinstance(operator, MappedOperator):
        of_function = getattr(operator, "python_callable", None) if name == "python_callable" else None
        return of_function or operator.partial_kwargs.get(name, defaults_of(operator).get(name))
    return getattr(operator, name, None)


def is_default(operator: Operator, name: str, value: Any) -> bool:
    """Whether the value of a parameter comes from default_args, and not from the task itself."""
    default = defaults_of(operator).get(name, _ABSENT)
    return default is not _ABSENT and value in (default, [default])


def defaults_of(operator: Operator) -> dict[str, Any]:
    """The default_args of the DAG and the groups of a task, the innermost last."""
    found: list[Mapping[str, Any]] = []
    group = operator.task_group
    while group is not None:
        found.append(group.default_args)
        group = group.parent_group
    merged: dict[str, Any] = dict(operator.dag.default_args if operator.dag else {})
    for one in reversed(found):
        merged |= one
    return merged


def check_attributes(operator: Operator) -> None:
    """Refuse attributes that change how or when a task runs and have no counterpart in a flow.

    Raises:
        ConfigurationError: Such an attribute is set; the message has the reason, and what to do.
    """
    for name, neutral, reason in _REFUSED:
        value = getattr(operator, _HOOKS.get(name, name), _ABSENT)
        if value is _ABSENT and isinstance(operator, MappedOperator):
            value = operator.partial_kwargs.get(name, neutral)
        if value is _ABSENT or value == neutral or not value:
            continue
        if name in _LEFT_OUT and is_default(operator, name, value):
            continue
        raise ConfigurationError(f"{name} cannot be carried over: {reason}")


MAX_PRIORITY: Final = 2048


def carried_over(operator: Operator, pools: Mapping[str, int], *, limits_run: bool = True) -> dict[str, Any]:
    """The options of a node derived from Airflow's parameters, in the form of a flow file.

    Args:
        operator: The task.
        pools: How many jobs of each Airflow pool run at once.
        limits_run: Whether ``max_active_tis_per_dagrun`` is among them; for an array it is no option.

    Raises:
        ConfigurationError: A parameter has no counterpart.
    """
    found: dict[str, Any] = {}
    if retries := operator.retries or 0:
        found["attempts"] = retries + 1
        _check_longest(operator)
        found["backoff"] = _backoff(operator)
    if timeout := operator.execution_timeout:
        found["timeout"] = timeout.total_seconds()
    if operator.priority_weight > 1:
        found["priority"] = max(MAX_PRIORITY + 1 - operator.priority_weight, 1)
    if ordering := _ordering(operator, pools, limits_run=limits_run):
        found["ordering"] = ordering
    return found


def _ordering(operator: Operator, pools: Mapping[str, int], *, limits_run: bool) -> dict[str, Any] | None:
    limits: list[dict[str, Any]] = []
    if operator.pool != "default_pool":
        if operator.pool not in pools:
            raise ConfigurationError(
                f"the size of pool {operator.pool} is stored in Airflow's database, which is not read here; "
                f"pass it too: GlideMQTaskGroup(..., pools={{{operator.pool!r}: 4}})"
            )
        limits.append(_limit(f"pool {operator.pool}", pools[operator.pool]))
    if operator.max_active_tis_per_dag:
        key = f"task {operator.dag_id} {operator.task_id}"
        limits.append(_limit(key, operator.max_active_tis_per_dag))
    if operator.max_active_tis_per_dagrun and limits_run:
        key = f"task {operator.dag_id} {operator.task_id} {{{{ run_id }}}}"
        limits.append(_limit(key, operator.max_active_tis_per_dagrun))
    if len(limits) > 1:
        raise ConfigurationError("a job has one limit: a pool, or one max_active_tis_per_dag or _dagrun")
    return limits[0] if limits else None


def _backoff(operator: Operator) -> dict[str, Any]:
    factor = operator.retry_exponential_backoff
    if factor not in (False, True, 0, 1, 2):
        raise ConfigurationError(f"retry_exponential_backoff={factor}: a job's backoff doubles, use 2")
    kind = "exponential" if factor in (True, 2) else "fixed"
    return {"kind": kind, "delay": operator.retry_delay.total_seconds()}


def _check_longest(operator: Operator) -> None:
    """Refuse a max delay that a retry would reach."""
    longest, delay = operator.max_retry_delay, operator.retry_delay
    if longest is None:
        return
    limit = longest if isinstance(longest, timedelta) else timedelta(seconds=longest)
    doublings = (operator.retries or 0) - 1 if operator.retry_exponential_backoff else 0
    if delay.total_seconds() * 2.0 ** min(doublings, 40) > limit.total_seconds():
        raise ConfigurationError(
            f"max_retry_delay={limit} cannot be carried over: a job's backoff has no limit below seven days, "
            f"and the last of {operator.retries} retries would come later"
        )


def _limit(key: str, most: int) -> dict[str, Any]:
    return {"key": f"airflow {key}", "concurrency": most}


def options_of(own: Any, carried: Mapping[str, Any]) -> Any:
    """The options of a job: its own, completed by those derived from Airflow's parameters.

    Its attempts and Airflow's retries multiply, as they do outside a group.

    Raises:
        ConfigurationError: The options cannot be merged.
    """
    if isinstance(own, JobOptions):
        spec = FlowSpec("options", [FlowNode("n", queue="q", job="j", options=own)])
        own = spec.to_dict()["nodes"][0].get("options")
    if own is None:
        return dict(carried)
    if not isinstance(own, Mapping):
        if carried:
            raise ConfigurationError(
                f"options must be a dict or JobOptions where {', '.join(carried)} follow from Airflow's "
                "parameters"
            )
        return own
    attempts = own.get("attempts")
    if attempts is not None and "attempts" in carried:
        if not isinstance(attempts, int):
            raise ConfigurationError("attempts is a template, and retries multiply it: set retries=0")
        return {**carried, **own, "attempts": attempts * carried["attempts"]}
    return {**carried, **own}
