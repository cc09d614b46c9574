"""Converts the Airflow tasks of a group to the tasks of ``group_flow``; refuses unsupported tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.providers.standard.decorators.python import _PythonDecoratedOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.xcom_arg import PlainXComArg, XComArg
from jinja2 import Environment, TemplateSyntaxError, meta

from airflow_provider_glidemq.decorators.glidemq import (
    _GlideMQDecoratedOperator,
    _GlideMQSparkDecoratedOperator,
)
from airflow_provider_glidemq.functions import SPARK_JOB, NamedFunction
from airflow_provider_glidemq.group_flow import RULES_AFTER_EXPAND
from airflow_provider_glidemq.hooks.glidemq import DEFAULT_CONN_ID
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator, GlideMQSparkOperator
from airflow_provider_glidemq.task_groups.attributes import (
    carried_over,
    check_attributes,
    given,
    options_of,
    rule_of,
)
from airflow_provider_glidemq.templates import is_template
from glidemq_orchestrate import Rule
from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow
from glidemq_orchestrate.flows.pattern import ALL, ARGUMENTS, FIELDS, NODE_FIELDS

if TYPE_CHECKING:
    from airflow.sdk.definitions.param import ParamsDict
    from airflow.sdk.types import Operator

SPARK_QUEUE: Final = "spark"  # of GlideMQSparkOperator
RETURN_VALUE: Final = "return_value"
_OF_TASK: Final = frozenset({"ti", "task_instance", "task", "task_instance_key_str", "map_index_template"})
_FUNCTIONS: Final = (
    _PythonDecoratedOperator,
    PythonOperator,
    _GlideMQDecoratedOperator,
    _GlideMQSparkDecoratedOperator,
)
_PLAIN: Final = _FUNCTIONS[:2]
_OF_ARRAYS: Final = (*_FUNCTIONS[:3], GlideMQOperator)


class GroupReader:
    """Reads the tasks of one group.

    Args:
        operators: The Airflow tasks.
        prefix: The prefix of their ids, which the names of nodes omit.
        queue: The queue of the workers that run functions.
        pools: How many jobs of a pool of Airflow run at once.
        conn_id: The connection id of the group.
        arrays: Whether expanded tasks become arrays; those with Spark steps never do.
    """

    def __init__(  # noqa: PLR0913  keyword-only
        self,
        operators: Sequence[Operator],
        *,
        prefix: str,
        queue: str | None,
        pools: Mapping[str, int],
        conn_id: str,
        arrays: bool = False,
    ) -> None:
        self._names = {operator.task_id: operator.task_id.removeprefix(prefix) for operator in operators}
        self._expanded = {operator.task_id for operator in operators if isinstance(operator, MappedOperator)}
        self._arrays = {
            operator.task_id
            for operator in operators
            if arrays and isinstance(operator, MappedOperator) and operator.operator_class in _OF_ARRAYS
        }
        self._operators, self._queue, self._pools, self._conn_id = operators, queue, pools, conn_id

    @property
    def task_ids(self) -> list[str]:
        """The ids of the tasks, in the order of their creation."""
        return list(self._names)

    def name(self, task_id: str) -> str:
        """The name of the node of a task."""
        return self._names[task_id]

    def read(self) -> list[dict[str, Any]]:
        """Read all tasks, in the order of their creation.

        Raises:
            ConfigurationError, InvalidFlow: A task cannot be part of a flow; the message has the reason, and
                what to do.
        """
        return [self._read(operator) for operator in self._operators]

    def check_params(self, tasks: Sequence[Mapping[str, Any]], params: ParamsDict | dict[Any, Any]) -> None:
        """Refuse templates that use params of a task that differ from those of launch, which renders them.

        Raises:
            ConfigurationError: A template would be rendered with other values.
        """
        known = _values(params)
        for operator, task in zip(self._operators, tasks, strict=True):
            if _values(operator.params) == known:
                continue
            if text := next(
                (one for one in _leaves(task) if isinstance(one, str) and _names_params(one)), ""
            ):
                raise ConfigurationError(
                    f"task {operator.task_id}: the template {text[:80]!r} names params of the task. "
                    "Templates of a group are rendered in its task launch: give params to the DAG, or to the "
                    "group, default_args={'params': ...}, or write the value"
                )

    def check_dates(self, launch: Operator) -> None:
        """Refuse dates that exclude a task from DAG runs in which launch submits its node.

        Raises:
            ConfigurationError: The node would run without its task.
        """
        for operator in self._operators:
            start, end = operator.start_date, operator.end_date
            is_late = start is not None and (launch.start_date is None or start > launch.start_date)
            is_early = end is not None and (launch.end_date is None or end < launch.end_date)
            if is_late or is_early:
                name = "start_date" if is_late else "end_date"
                raise ConfigurationError(
                    f"task {operator.task_id}: {name} cannot be carried over: a flow starts as a whole; "
                    "give it to the DAG, or to the group, default_args={...}"
                )

    def _read(self, operator: Operator) -> dict[str, Any]:
        try:
            check_attributes(operator)
            self._check_connection(operator)
            task = self._described(operator)
            for leaf in _leaves(task):
                self._check_rendered(leaf)
            after = [self._names[one] for one in self._names if one in operator.upstream_task_ids]
            rule = self._rule(operator)
        except (ConfigurationError, InvalidFlow, TypeError) as exc:
            exc.args = (f"task {operator.task_id}: {exc}",)
            raise
        return {"name": self._names[operator.task_id], **task, "after": after, "rule": rule.value}

    def _check_connection(self, operator: Operator) -> None:
        conn_id = given(operator, "glidemq_conn_id")
        if conn_id not in (None, DEFAULT_CONN_ID, self._conn_id):
            raise ConfigurationError(
                f"glidemq_conn_id {conn_id!r}: a group has one connection; give it to the group"
            )

    def _rule(self, operator: Operator) -> Rule:
        try:
            rule = Rule(rule_of(operator))
        except ValueError:
            raise InvalidFlow(f"a flow has no trigger rule {rule_of(operator)}") from None
        if not operator.upstream_task_ids & set(self._names):
            return Rule.ALL_SUCCESS  # it starts with the flow, and launch has decided that
        expanded = sorted(self._expanded & operator.upstream_task_ids)
        if expanded and rule not in RULES_AFTER_EXPAND:
            raise InvalidFlow(
                f"trigger rule {rule} after {expanded[0]}, which is expanded: single nodes decide about "
                f"it in the flow, and all of them in Airflow; use {', '.join(sorted(RULES_AFTER_EXPAND))}"
            )
        return rule

    def _described(self, operator: Operator) -> dict[str, Any]:
        kind = operator.operator_class
        if kind is GlideMQOperator:
            return self._job(operator)
        if kind is GlideMQSparkOperator:
            return self._step(operator)
        if kind in _FUNCTIONS:
            return self._function(operator)
        raise ConfigurationError(
            f"{kind.__name__} has no handler on a glide-mq worker. In this group may be: GlideMQOperator, "
            "GlideMQSparkOperator, PythonOperator, and functions of @task, @task.glidemq and "
            "@task.glidemq_spark. Put the task before or after the group, or make it one of these"
        )

    # -- jobs ------------------------------------------------------------------------------------------------

    def _job(self, operator: Operator) -> dict[str, Any]:
        data = given(operator, "data")
        found: dict[str, Any] = {
            "queue": given(operator, "queue_name"),
            "job": given(operator, "job"),
            "data": self._without_inputs(data),
            "options": options_of(given(operator, "options"), self._carried_over(operator)),
        }
        if isinstance(operator, MappedOperator):
            expand = self._expansion(operator, FIELDS)
            over = expand["over"]
            fields = set(over) if isinstance(over, Mapping) else set()
            if other := sorted(fields - {"data"}) if operator.task_id in self._arrays else ():
                raise ConfigurationError(
                    f"expand({other[0]}=...): elements of an array differ in data only. Fix: arrays=False"
                )
            if unknown := sorted(fields - set(NODE_FIELDS)):
                raise ConfigurationError(
                    f"expand({unknown[0]}=...): the nodes of a task differ in {', '.join(NODE_FIELDS)} only"
                )
            found |= {NODE_FIELDS[name]: f"{name} of expand()" for name in fields & {"queue_name", "job"}}
            found["expand"] = expand
        return found

    def _without_inputs(self, data: Any) -> Any:
        """The data of a job without results of the group, which its handler has in ``ctx.inputs``."""
        if self._is_inner(data):
            return None
        if isinstance(data, Mapping):
            data = {key: value for key, value in data.items() if not self._is_inner(value)}
        for value in _leaves(data):
            if self._refers(value):
                raise ConfigurationError(
                    "data holds the result of another task of the group below its first level. The handler "
                    "has it in ctx.inputs by the name of the task: let the task only wait for it (a >> b), "
                    "or give it as a separate value: data={'name': a.output}"
                )
        return data

    # -- functions -------------------------------------------------------------------------------------------

    def _function(self, operator: Operator) -> dict[str, Any]:
        is_spark = operator.operator_class is _GlideMQSparkDecoratedOperator
        queue = given(operator, "queue_name") or (SPARK_QUEUE if is_spark else None)
        if operator.operator_class in _PLAIN:
            queue = self._queue
            if given(operator, "templates_dict"):
                raise ConfigurationError("templates_dict is part of Airflow's context: use op_kwargs")
        if queue is None:
            raise ConfigurationError(
                "a function needs the queue of workers that run it: GlideMQTaskGroup(..., queue_name='etl')"
            )
        named = NamedFunction.of(given(operator, "python_callable"), is_spark=is_spark)
        args, kwargs = list(given(operator, "op_args") or ()), dict(given(operator, "op_kwargs") or {})
        if not isinstance(operator, MappedOperator):
            named.check_context(args, kwargs)
            return self._call(operator, queue, named.job, named.path, named.arguments(args, kwargs))
        if args:
            raise ConfigurationError("an expanded function takes its arguments by name: use op_kwargs")
        expand = self._expansion(operator, ARGUMENTS)
        if operator.operator_class is PythonOperator:
            expand = _over_dicts(expand, "op_kwargs")
        names = _names(expand["over"])
        named.check_context((), {**kwargs, **dict.fromkeys(names)})
        if unknown := sorted(names - set(named.signature.parameters)):
            raise ConfigurationError(f"expand({unknown[0]}=...): the function takes no such argument")
        return {**self._call(operator, queue, named.job, named.path, kwargs), "expand": expand}

    def _step(self, operator: Operator) -> dict[str, Any]:
        path, arguments = given(operator, "application"), given(operator, "arguments")
        if not (arguments is None or isinstance(arguments, Mapping)):
            raise ConfigurationError("arguments must be a dict; its values may be results of other tasks")
        queue = given(operator, "queue_name") or SPARK_QUEUE
        found = self._call(operator, queue, SPARK_JOB, path, arguments or {})
        if isinstance(operator, MappedOperator):
            found["expand"] = _over_dicts(self._expansion(operator, ARGUMENTS), "arguments")
        return found

    def _call(
        self, operator: Operator, queue: Any, job: str, path: Any, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """A job that calls a function; the worker inserts results of the group into its arguments."""
        inputs: list[dict[str, Any]] = []
        data: dict[str, Any] = {"callable": path, "arguments": self._with_inputs(arguments, [], inputs)}
        if inputs:
            data["inputs"] = inputs
        for name in ("location", "conf"):
            if (value := given(operator, name)) is not None:
                data[name] = value
        options = options_of(given(operator, "options"), self._carried_over(operator))
        return {"queue": queue, "job": job, "data": data, "options": options}

    def _carried_over(self, operator: Operator) -> dict[str, Any]:
        """The options derived from Airflow's parameters; elements of arrays have no priority and no key."""
        if operator.task_id not in self._arrays:
            return carried_over(operator, self._pools)
        found = carried_over(operator, self._pools, limits_run=False)
        for name, parameter in (("priority", "priority_weight"), ("ordering", "a pool or a limit per DAG")):
            if name in found:
                raise ConfigurationError(
                    f"{parameter} cannot be carried over to an array: its elements have none. "
                    "Fix: leave it out, or arrays=False"
                )
        return found

    # -- arguments ------------------------------------------------------------------------------------------

    def _expansion(self, operator: MappedOperator, into: str) -> dict[str, Any]:
        over = getattr(operator, "op_kwargs_expand_input", operator.expand_input).value
        inputs: list[dict[str, Any]] = []
        over = self._with_inputs({"over": over}, [], inputs)["over"]
        for one in inputs:
            if len(one["to"]) > 2:
                raise ConfigurationError(
                    "expand() over a list that holds the result of another task of the group: let a function "
                    "make the whole list, and expand over its result"
                )
        found: dict[str, Any] = {"over": over, "into": into}
        if inputs:
            found["inputs"] = inputs
        if operator.task_id in self._arrays:
            found["array"] = True
            if limit := operator.max_active_tis_per_dagrun:
                found["max_running"] = limit
        return found

    def _with_inputs(self, value: Any, at: list[Any], inputs: list[dict[str, Any]]) -> Any:
        """The value with None where a result of the group belongs; these places are added to ``inputs``."""
        if self._is_inner(value):
            node = self._names[value.operator.task_id]
            if value.operator.task_id in self._expanded:
                node += ALL
            found: dict[str, Any] = {"node": node, "to": at}
            if value.operator.task_id in self._arrays:
                found["array"] = True
            elif value.key != RETURN_VALUE:
                found["path"] = [value.key]
            inputs.append(found)
            return None
        if isinstance(value, Mapping):
            return {key: self._with_inputs(part, [*at, key], inputs) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self._with_inputs(part, [*at, place], inputs) for place, part in enumerate(value)]
        if self._refers(value):
            raise ConfigurationError(
                "map(), zip() and concat() of the result of a task of the group: let a function of the group "
                "do it"
            )
        return value

    def _is_inner(self, value: Any) -> bool:
        return isinstance(value, PlainXComArg) and value.operator.task_id in self._names

    def _refers(self, value: Any) -> bool:
        return any(one.task_id in self._names for one, _ in XComArg.iter_xcom_references(value))

    def _check_rendered(self, value: Any) -> None:
        """Refuse results of the group in values that launch renders before the tasks of the group run."""
        if self._refers(value):
            raise ConfigurationError(
                "the result of another task of the group may be in data, in arguments and in expand() only"
            )
        if isinstance(value, str) and is_template(value):
            _check_template(value)


def _over_dicts(expansion: dict[str, Any], name: str) -> dict[str, Any]:
    """The expansion over a list of dicts of arguments."""
    over = expansion["over"]
    if not isinstance(over, Mapping) or set(over) != {name} or expansion.get("inputs"):
        raise ConfigurationError(
            f"expand it over a list of {name}, which is no result of the group, or use a function of @task"
        )
    return {**expansion, "over": over[name]}


def _names(over: Any) -> set[str]:
    """The names of the arguments that an expansion supplies, as far as they are known."""
    if isinstance(over, Mapping):
        return set(over)
    listed = over if isinstance(over, list | tuple) else ()
    return {name for item in listed if isinstance(item, Mapping) for name in item}


def _leaves(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for part in parts:
            yield from _leaves(part)
    else:
        yield value


def _values(params: ParamsDict | dict[Any, Any]) -> dict[str, Any]:
    return params if isinstance(params, dict) else {name: params.get_param(name).value for name in params}


def _names_params(text: str) -> bool:
    return is_template(text) and "params" in _named(text)


def _named(text: str) -> set[str]:
    """The names in a template; none if it cannot be parsed, which rendering reports."""
    try:
        return meta.find_undeclared_variables(Environment(autoescape=True).parse(text))
    except TemplateSyntaxError:  # or the DAG has other marks
        return set()


def _check_template(text: str) -> None:
    """Refuse templates that use the task itself: they are rendered in launch, before the task runs."""
    if wrong := sorted(_named(text) & _OF_TASK):
        raise ConfigurationError(
            f"the template {text[:80]!r} names {wrong[0]}. Templates of a group are rendered in its task "
            "launch, before its tasks run: pass results as arguments, such as other.output"
        )
