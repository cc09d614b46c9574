"""``@task.glidemq`` and ``@task.glidemq_spark``: functions by import path, on a real worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator, flow_id_for
from airflow_provider_glidemq.version_compat import AirflowFailException, AirflowSkipException, TaskDeferred

from glidemq_orchestrate import Context, FlowSpec, JobOptions, Worker
from glidemq_orchestrate.errors import ConfigurationError
from glidemq_orchestrate.python import handlers
from tests.providers.airflow import decorated
from tests.providers.airflow.builders import DAY, QUEUE, Contexts, Valkey, run_mapped

tasks: Any = decorated  # for type checkers the calls lack what the worker supplies
clean, count, dated, later = tasks.clean, tasks.count, tasks.dated, tasks.later
plain, same, skips, step = tasks.plain, tasks.same, tasks.skips, tasks.step
named: Any = task
HERE = decorated.__name__

WRONG_ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (clean, "missing a required argument: 'month'"),
    (lambda: clean(1, ctx=5), "unexpected keyword argument 'ctx'"),
    (lambda: clean(1, colour=5), "unexpected keyword argument 'colour'"),
    (lambda: step(1, spark=5), "unexpected keyword argument 'spark'"),
    (lambda: same({1, 2}), "task same: .*is not JSON"),
    (lambda: clean.override(job="x")(1), "multiple values for keyword argument 'job'|job"),
    (lambda: clean.override(options={"attempts": 0})(1), "attempts"),
    (lambda: clean.override(queue_name="a:b")(1), "queue name"),
    (lambda: clean.expand(colour=[1]), "unexpected keyword argument 'colour'"),
    (lambda: named.glidemq(plain)(1), "queue_name"),
    (lambda: named.glidemq(queue_name="q")(lambda: 1), "is a lambda"),
    (lambda: named.glidemq(lambda: 1), "is a lambda"),
    (lambda: named.glidemq_spark(plain), r"must take \(spark, ctx, ...\)"),
]

WRONG_FUNCTIONS: list[tuple[Any, str]] = [
    (named.glidemq, "data"),
    (named.glidemq, "job"),
    (named.glidemq_spark, "application"),
]


@pytest.fixture
def serving(valkey: Valkey) -> Iterator[Worker]:
    """Runs functions of the module of the tests, and tells what a Spark step would get."""
    made = Worker(valkey.url, queues=[QUEUE], prefix=valkey.prefix, allow_import=[HERE])
    made.handlers.include(handlers)

    @made.handler("spark.python")
    def data(ctx: Context) -> Any:
        return ctx.data

    with made.running():
        yield made


def of(output: Any) -> Any:
    """The operator, rendered."""
    output.operator.render_template_fields(dict(DAY))
    return output.operator


def described(output: Any) -> FlowSpec:
    spec: FlowSpec = of(output)._described({})
    return spec


def test_a_task_names_the_function_and_its_arguments() -> None:
    with DAG("d", schedule=None):
        (node,) = described(clean(5, scale="{{ params.n }}")).nodes
    assert (node.name, node.queue, node.job) == ("clean", QUEUE, "python")
    assert node.data == {"callable": f"{HERE}:clean", "arguments": {"month": 5, "scale": "3"}}


def test_native_templates_and_outputs_of_other_tasks_keep_their_types() -> None:
    with DAG("d", schedule=None, render_template_as_native_obj=True):
        (node,) = described(clean("{{ params.n }}")).nodes
        second = clean(count(["a"]))
    assert node.data == {"callable": f"{HERE}:clean", "arguments": {"month": 3}}
    assert second.operator.upstream_task_ids == {"count"}


def test_a_spark_step_leaves_out_what_the_worker_supplies() -> None:
    with DAG("d", schedule=None):
        made = step.override(location="/data/{{ ds }}", conf={"spark.sql.ansi.enabled": False})(5, scale=2)
        (node,) = described(made).nodes
    assert (node.name, node.queue, node.job) == ("step", QUEUE, "spark.python")
    assert node.data == {
        "callable": f"{HERE}:step",
        "arguments": {"month": 5, "scale": 2},
        "location": "/data/2026-01-01",
        "conf": {"spark.sql.ansi.enabled": False},
    }


def test_parameters_of_the_operator_are_taken_overridden_and_documented() -> None:
    with DAG("d", schedule=None, default_args={"lease": 60.0}):
        made = clean.override(task_id="other", options={"attempts": 2}, retries=7, queue="airflow-queue")(1)
    operator: Any = made.operator
    assert isinstance(operator, GlideMQOperator)
    assert (operator.task_id, operator.retries, operator.queue, operator.lease) == (
        "other",
        7,
        "airflow-queue",
        60,
    )
    assert operator.doc_md == "Clean one month."
    assert operator.task_type == "_GlideMQDecoratedOperator"
    assert operator.operator_name == "@task.glidemq"
    assert described(made).nodes[0].options == JobOptions(attempts=2)


def test_many_outputs_are_those_of_the_annotation_or_as_asked() -> None:
    with DAG("d", schedule=None):
        assert count(["a"]).operator.multiple_outputs
        assert not same(1).operator.multiple_outputs
        output = count(["b"])["rows"]
        assert same(output).operator.upstream_task_ids == {"count__1"}


def test_a_worker_runs_it(valkey: Valkey, serving: Worker, context: Contexts) -> None:
    with DAG("d", schedule=None):
        made = of(clean(5, scale=2))
        assert made.execute(context()) == 10
        assert of(later(1)).execute(context(run_id="r2")) == 2
        assert of(count(["a", "b"])).execute(context(run_id="r3"))["rows"] == 2
        with pytest.raises(AirflowSkipException, match="nothing to do"):
            of(skips()).execute(context(run_id="r4"))
    with valkey.producer() as producer:
        (node,) = producer.get(flow_id_for("d", "t", "r1")).nodes()
        assert node.job == "python"


def test_it_defers_as_the_operator_does(valkey: Valkey, serving: Worker, context: Contexts) -> None:
    with DAG("d", schedule=None):
        made = of(same.override(deferrable=True, defer_after=0.0)([1]))
    try:
        result = made.execute(context())
    except TaskDeferred as deferred:
        with valkey.producer() as producer:
            producer.get(flow_id_for("d", "t", "r1")).wait()
        event = {"status": "completed", "flow_id": deferred.trigger.flow_id}
        result = made.execute_complete(context(), event)
    assert result == [1]


def test_a_plain_function_and_a_decorated_one_can_be_wrapped(
    valkey: Valkey, serving: Worker, context: Contexts
) -> None:
    with DAG("d", schedule=None):
        wrapped = named.glidemq(queue_name=QUEUE, deferrable=False)(plain)
        assert of(wrapped(2)).execute(context()) == 20


def test_it_is_mapped(valkey: Valkey, serving: Worker, context: Contexts) -> None:
    with DAG("d", schedule=None):
        mapped: Any = clean.partial(scale=10).expand(month=[1, 2]).operator
        steps: Any = step.partial(scale=2).expand(month=[1, 2]).operator
    assert [run_mapped(mapped, context(), index) for index in range(2)] == [10, 20]
    found = [run_mapped(steps, context(task_id="s"), index)["arguments"] for index in range(2)]
    assert found == [{"month": 1, "scale": 2}, {"month": 2, "scale": 2}]


def test_what_airflow_would_fill_in_must_be_passed(context: Contexts) -> None:
    with DAG("d", schedule=None):
        with pytest.raises(ConfigurationError, match=r"task dated: function dated needs .*\(ds\)"):
            dated()
        (node,) = described(dated(ds="{{ ds }}")).nodes
    assert node.data == {"callable": f"{HERE}:dated", "arguments": {"ds": "2026-01-01"}}


def test_what_cannot_be_right_is_refused_when_the_dag_is_parsed(subtests: pytest.Subtests) -> None:
    for call, why in WRONG_ARGUMENTS:
        with (
            subtests.test(call=call),
            DAG("d", schedule=None),
            pytest.raises((ValueError, TypeError), match=why),
        ):
            call()


def test_a_name_that_stands_for_something_else_fails_for_good(
    valkey: Valkey, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DAG("d", schedule=None):
        made = of(named.glidemq(queue_name=QUEUE)(plain)(1))
    monkeypatch.setattr(decorated, "plain", plain.__class__)
    with pytest.raises(AirflowFailException, match="has something else under this name"):
        made.execute(context())
    with valkey.producer() as producer:
        assert producer.list() == []


def test_what_the_function_itself_says_is_refused(subtests: pytest.Subtests) -> None:
    for decorator, name in WRONG_FUNCTIONS:
        with (
            subtests.test(decorator=decorator),
            pytest.raises(TypeError, match=f"{name} is not for a decorator"),
        ):
            decorator(queue_name="q", **{name: "x"})
