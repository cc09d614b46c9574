"""A Spark step behind one task: what it sends, and what it refuses. Real steps run in tests/system."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow_provider_glidemq.operators.glidemq import GlideMQSparkOperator
from airflow_provider_glidemq.version_compat import AirflowFailException

from glidemq_orchestrate import Context, FlowSpec, JobOptions, Worker
from tests.providers.airflow.builders import DAY, QUEUE, Contexts, Valkey, run_mapped

WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"application": "steps.py"}, "task t: application 'steps.py' is not package.module:function"),
    ({"application": "/jobs/etl.jar"}, "is not package.module:function"),
    ({"application": 5}, "is not package.module:function"),
    ({"arguments": [1]}, "arguments must be a dict, got list"),
    ({"arguments": {"a": {1}}}, "is not JSON"),
    ({"conf": "x"}, "conf must be a dict, got str"),
    ({"lineage": "x"}, "lineage must be a dict, got str"),
    ({"options": {"attempts": 0}}, "attempts"),
    ({"queue_name": "a:b"}, "queue name"),
]


def step(**kwargs: Any) -> GlideMQSparkOperator:
    given: dict[str, Any] = {"task_id": "t", "deferrable": False, "application": "mypackage.steps:clean"}
    return GlideMQSparkOperator(**{**given, **kwargs})


def described(operator: GlideMQSparkOperator) -> FlowSpec:
    operator.render_template_fields(dict(DAY))  # type: ignore[arg-type]
    return operator._described({})


def test_it_sends_a_step_with_its_arguments() -> None:
    with DAG("d", schedule=None):
        made = step(
            arguments={"month": "{{ params.n }}", "days": [1, "{{ ds }}"]},
            location="/data/{{ ds_nodash }}",
            conf={"spark.sql.shuffle.partitions": 8},
            lineage={"outputs": ["/data/{{ ds_nodash }}/clean"]},
            user="team {{ params.n }}",
            options={"attempts": 2},
        )
    (node,) = described(made).nodes
    assert (node.name, node.queue, node.job) == ("clean", "spark", "spark.python")
    assert node.data == {
        "callable": "mypackage.steps:clean",
        "arguments": {"month": "3", "days": [1, "2026-01-01"]},
        "location": "/data/20260101",
        "conf": {"spark.sql.shuffle.partitions": 8},
        "lineage": {"outputs": ["/data/20260101/clean"]},
        "user": "team 3",
    }
    assert node.options == JobOptions(attempts=2)
    (bare,) = described(step(task_id="u")).nodes
    assert bare.data == {"callable": "mypackage.steps:clean", "arguments": {}}


def test_the_application_may_be_a_template_or_come_from_a_task() -> None:
    with DAG("d", schedule=None):
        first = step(task_id="first")
        output: Any = first.output
        made = step(application="{{ 'a.b:c' }}", queue_name="q-{{ ds }}")
        step(task_id="u", application=output, arguments=output, conf=output, location=output)
    made.render_template_fields(dict(DAY))  # type: ignore[arg-type]
    (node,) = made._described({}).nodes
    assert (node.name, node.queue) == ("c", "q-2026-01-01")


def test_what_cannot_be_right_is_refused_when_the_dag_is_parsed(subtests: pytest.Subtests) -> None:
    for given, why in WRONG_ARGUMENTS:
        with (
            subtests.test(given=given),
            DAG("d", schedule=None),
            pytest.raises((ValueError, TypeError), match=why),
        ):
            step(**given)


def test_what_rendering_shows_to_be_wrong_fails_for_good(context: Contexts) -> None:
    with DAG("d", schedule=None):
        made = step(application="{{ ds }}", arguments="{{ ds }}")
    made.render_template_fields(dict(DAY))  # type: ignore[arg-type]
    with pytest.raises(AirflowFailException, match=r"arguments must be a dict"):
        made.execute(context())
    made.arguments = None
    with pytest.raises(AirflowFailException, match="application '2026-01-01' is not package"):
        made.execute(context())


def test_it_can_be_mapped(valkey: Valkey, context: Contexts) -> None:
    made = Worker(valkey.url, queues=[QUEUE], prefix=valkey.prefix)

    @made.handler("spark.python")
    def echo(ctx: Context) -> Any:
        return ctx.data

    with DAG("d", schedule=None):
        task = GlideMQSparkOperator.partial(
            task_id="t", application="s:f", queue_name=QUEUE, deferrable=False
        ).expand(arguments=[{"month": 1}, {"month": 2}])
    with made.running():
        found = [run_mapped(task, context(), index)["arguments"] for index in range(2)]
    assert found == [{"month": 1}, {"month": 2}]
