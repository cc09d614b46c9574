"""What cannot be part of a flow is refused while the DAG is parsed, with the reason and the remedy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator, GlideMQOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

from glidemq_orchestrate.errors import ConfigurationError, InvalidFlow
from tests.providers.airflow.task_groups.groups import (
    Build,
    clean,
    closed,
    job,
    load,
    merge,
    outside,
    plain,
    wants_context,
)

NOT_CARRIED_OVER: list[tuple[dict[str, Any], str]] = [
    ({"depends_on_past": True}, "task etl.job: depends_on_past cannot be carried over: a flow starts"),
    ({"pool_slots": 2}, "pool_slots cannot be carried over: a job takes one place of a pool"),
    ({"pool": "db"}, "pools={'db': 4}"),
    (
        {"retries": 9, "retry_exponential_backoff": True, "max_retry_delay": timedelta(hours=1)},
        "max_retry_delay=1:00:00 cannot be carried over",
    ),
    ({"retries": 1, "retry_exponential_backoff": 3}, "retry_exponential_backoff"),
    ({"on_retry_callback": print}, "on_retry_callback cannot be carried over: its retries are"),
    ({"on_execute_callback": print}, "on_execute_callback cannot be carried over"),
    ({"pre_execute": print}, "pre_execute cannot be carried over"),
    ({"run_as_user": "x"}, "run_as_user cannot be carried over: it runs as the user of"),
    ({"executor_config": {"a": 1}}, "executor_config cannot be carried over: no executor"),
    ({"flow_id": "x"}, "flow_id cannot be carried over: the group has one flow"),
    ({"retention": 5}, "retention cannot be carried over"),
    ({"trigger_rule": "all_done_setup_success"}, "a flow has no trigger rule all_done_setup_success"),
    ({"retries": 1, "options": "{{ x }}"}, "options must be a dict or JobOptions where attempts"),
    ({"retries": 1, "options": {"attempts": "{{ x }}"}}, "attempts is a template, and retries"),
    ({"pool": "a", "max_active_tis_per_dag": 1}, "a job has one limit"),
    ({"data": "{{ ti.try_number }}"}, "names ti. Templates of a group are rendered in its task launch"),
    ({"data": {"x": ["{{ task.task_id }}"]}}, "names task."),
    ({"options": {"attempts": 0}}, "attempts"),
    ({"glidemq_conn_id": "other"}, "glidemq_conn_id 'other': a group has one"),
    ({"show_logs": True}, "show_logs cannot be carried over"),
    ({"callbacks": ["m:C"]}, "callbacks cannot be carried over"),
]  # fmt: skip


def refusal(build: Build, **kwargs: Any) -> str:
    with pytest.raises((ConfigurationError, InvalidFlow, TypeError)) as refused:
        closed(build, **kwargs)
    return str(refused.value)


def test_what_cannot_be_carried_over_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for given, why in NOT_CARRIED_OVER:
        with subtests.test(given=given):
            pools = {"a": 1} if given.get("pool") == "a" else None
            assert why in refusal(partial(job, **given), pools=pools)


def nested() -> None:
    def inside() -> None:
        pass

    task(inside)()


def double() -> None:
    with GlideMQTaskGroup("inside", queue_name="etl"):
        load()


def deep() -> None:
    job(data={"x": [load()]})


def mapped_deep() -> None:
    clean.partial(rows=1).expand(month=[load()])


def doubled() -> None:
    merge(load().map(str))


def early() -> None:
    clean.partial(rows=1).expand(month=[1, 2]) >> job(trigger_rule="one_success")


def wrong_expand() -> None:
    GlideMQOperator.partial(task_id="a", queue_name="q", job="j").expand(defer_after=[1, 2])


NO_TASKS_OF_FLOWS: list[tuple[Build, str]] = [
    (lambda: BashOperator(task_id="a", bash_command="ls"), "task etl.a: BashOperator has no handler"),
    (lambda: GlideMQFlowOperator(task_id="a", flow="a:b"), "GlideMQFlowOperator has no handler"),
    (lambda: PythonOperator(task_id="a", python_callable=lambda: 1), "is a lambda"),
    (nested, "is defined inside another function"),
    (wants_context, "needs Airflow's context (ti)"),
    (lambda: None, "task group etl has no tasks"),
    (double, "a group inside it must be a plain TaskGroup"),
    (deep, "below its first level"),
    (lambda: job(job=load()), "may be in data, in arguments and in expand() only"),
    (mapped_deep, "let a function make the whole list"),
    (doubled, "let a function of the group do it"),
    (early, "single nodes decide about it in the flow"),
    (wrong_expand, "expand(defer_after=...): the nodes of a task differ in"),
    (lambda: PythonOperator(task_id="a", python_callable=plain, templates_dict={"a": 1}), "op_kwargs"),
    (lambda: task.branch(plain)(1), "has no handler"),
    (lambda: load().as_setup(), "is_setup cannot be carried over"),
]  # fmt: skip


def test_tasks_that_no_flow_can_run_are_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for build, why in NO_TASKS_OF_FLOWS:
        with subtests.test(build=build):
            assert why in refusal(build)


def of_queues() -> None:
    GlideMQOperator.partial(task_id="a", job="j", data=1).expand(queue_name=["x", "y"])


NO_ARRAYS: list[tuple[Build, str]] = [
    (of_queues, "expand(queue_name=...): elements of an array differ in data only"),
    (lambda: clean.override(priority_weight=5).expand(rows=[1]), "priority_weight cannot be carried over to"),
    (lambda: clean.override(pool="a").expand(rows=[1]), "a pool or a limit per DAG cannot be carried over"),
    (early, "single nodes decide about it in the flow"),
]  # fmt: skip


def test_what_elements_of_arrays_cannot_be_is_refused(subtests: pytest.Subtests) -> None:
    for build, why in NO_ARRAYS:
        with subtests.test(build=build):
            assert why in refusal(build, arrays=True, pools={"a": 1})


def test_a_function_needs_a_queue() -> None:
    assert "queue_name='etl'" in refusal(load, queue_name=None)


def test_a_circle_through_a_task_outside_is_refused() -> None:
    why = refusal(lambda: load() >> outside("x") >> job())
    assert "task etl.job waits for x, which waits for etl.load of the same group" in why


def test_a_trigger_rule_cannot_decide_about_what_the_group_waits_for() -> None:
    assert "launch_args={'trigger_rule'" in refusal(lambda: outside("x") >> job(trigger_rule="all_done"))


def test_launch_takes_arguments_of_its_own() -> None:
    dag = closed(load, launch_args={"trigger_rule": "all_done", "retries": 2, "pool": "db"})
    launch: Any = dag.get_task("etl.launch")
    assert (launch.trigger_rule, launch.retries, launch.pool) == ("all_done", 2, "db")


def test_a_second_launch_and_an_eager_group_that_fails_fast_are_refused() -> None:
    assert "adds a task etl.launch, and there is one already" in refusal(lambda: job("launch"))
    with DAG("d", schedule=None):
        with GlideMQTaskGroup("one", prefix_group_id=False, queue_name="etl"):
            job("a")
        refused = pytest.raises(ConfigurationError, match="two groups with prefix_group_id=False")
        with refused, GlideMQTaskGroup("two", prefix_group_id=False, queue_name="etl"):
            job("b")
    with DAG("d", schedule=None, fail_fast=True):
        refused = pytest.raises(ConfigurationError, match="leave eager out")
        with refused, GlideMQTaskGroup("etl", queue_name="etl", eager=True):
            job("a") >> job("b")


def test_params_of_a_task_that_launch_would_not_know_are_refused() -> None:
    """They were rendered with those of the DAG: another region, without a word."""
    own: dict[str, Any] = {"data": {"region": "{{ params.region }}"}, "params": {"region": "eu"}}
    why = refusal(lambda: job(**own))
    assert "task etl.job: the template '{{ params.region }}' names params of the task" in why
    assert "names params" in refusal(
        lambda: clean.override(params=own["params"]).expand(rows=["{{ params.x }}"])
    )
    closed(lambda: job(data=own["data"]), default_args={"params": {"region": "eu"}})
    closed(lambda: job(**{**own, "data": "plain"}))


def test_dates_of_a_task_that_launch_does_not_have_are_refused() -> None:
    """Airflow leaves the task out of earlier runs, and its node ran there."""
    for name in ("start_date", "end_date"):
        own: dict[str, Any] = {name: datetime(2026, 1, 1, tzinfo=UTC)}
        assert f"task etl.job: {name} cannot be carried over" in refusal(partial(job, **own))
        assert f"{name} cannot" in refusal(lambda own=own: clean.override(**own).expand(rows=[1]))  # type: ignore[misc]
        closed(job, default_args=own)
        closed(partial(job, **own), launch_args=own)


def test_an_error_in_the_with_block_is_not_hidden() -> None:
    def build() -> None:
        BashOperator(task_id="a", bash_command="ls")
        raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        closed(build)
