"""What becomes of the tasks of a group when its with block ends, and what is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, TaskGroup, task_group
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator, GlideMQSparkOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup
from airflow_provider_glidemq.version_compat import STARTS_FROM_TRIGGER, AirflowException

from glidemq_orchestrate import JobOptions
from tests.providers.airflow.task_groups.groups import (
    HERE,
    clean,
    closed,
    edges,
    job,
    load,
    merge,
    named,
    plain,
    read,
    spark_step,
    tasks,
    two,
)

try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:  # Airflow 3.1
    from airflow.serialization.serialized_objects import (  # type: ignore[attr-defined, assignment]
        SerializedDAG as DagSerialization,
    )


# -- what becomes of them ------------------------------------------------------------------------------------


OPTIONS_OF_JOBS: list[tuple[dict[str, Any], Any]] = [
    ({"retries": 2, "retry_delay": 5}, {"attempts": 3, "backoff": {"kind": "fixed", "delay": 5.0}}),
    (
        {"retries": 1, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
        {"attempts": 2, "backoff": {"kind": "exponential", "delay": 60.0}},
    ),
    ({"execution_timeout": timedelta(seconds=90)}, {"timeout": 90.0}),
    ({"priority_weight": 10}, {"priority": 2039}),
    ({"priority_weight": 100_000}, {"priority": 1}),
    ({"priority_weight": 1}, {}),
    ({"pool": "db"}, {"ordering": {"key": "airflow pool db", "concurrency": 4}}),
    (
        {"max_active_tis_per_dag": 2},
        {"ordering": {"key": "airflow task d etl.job", "concurrency": 2}},
    ),
    (
        {"max_active_tis_per_dagrun": 2},
        {"ordering": {"key": "airflow task d etl.job {{ run_id }}", "concurrency": 2}},
    ),
    ({"retries": 1, "retry_delay": 0, "options": {"attempts": 3, "lifo": True}},
     {"attempts": 6, "backoff": {"kind": "fixed", "delay": 0.0}, "lifo": True}),
    ({"retries": 1, "retry_delay": 0, "options": JobOptions(attempts=2, timeout=timedelta(seconds=5))},
     {"attempts": 4, "backoff": {"kind": "fixed", "delay": 0.0}, "timeout": "PT5S"}),
    ({"options": "{{ params.options }}"}, "{{ params.options }}"),
]  # fmt: skip


def test_expanded_tasks_become_arrays_where_the_group_wants_it() -> None:
    def build() -> None:
        cleaned: Any = (
            clean.override(max_active_tis_per_dagrun=3, retries=2).partial(rows=1).expand(month=[1, 2])
        )
        again: Any = clean.partial(rows=cleaned).expand(month=load())
        GlideMQOperator.partial(task_id="jobs", queue_name="etl", job="echo").expand(data=[1, 2])
        spark_step.expand(rows=[1])
        step: Any = spark_step.override(task_id="spark")
        step(rows=cleaned)
        merge([again])

    found = read(build, arrays=True)
    assert found["clean"]["expand"] == {
        "over": {"month": [1, 2]}, "into": "arguments", "array": True, "max_running": 3,
    }  # fmt: skip
    assert found["clean"]["options"]["attempts"] == 3
    assert found["clean__1"]["data"]["inputs"] == [{"node": "clean[*]", "to": ["rows"], "array": True}]
    assert found["clean__1"]["expand"]["array"] is True
    assert found["merge"]["data"]["inputs"] == [{"node": "clean__1[*]", "to": ["parts", 0], "array": True}]
    assert found["jobs"]["expand"] == {"over": {"data": [1, 2]}, "into": "fields", "array": True}
    assert "array" not in found["spark_step"]["expand"]
    assert found["spark"]["data"]["inputs"] == [{"node": "clean[*]", "to": ["rows"], "array": True}]


def test_functions_and_jobs_become_nodes_and_results_go_from_node_to_node() -> None:
    def build() -> None:
        loaded: Any = load("{{ ds }}")
        cleaned: Any = clean.partial(rows=loaded).expand(month=[1, 2])
        given: Any = two()
        echo = job(data={"n": loaded, "day": "{{ ds }}"}, options={"attempts": 2})
        merge([cleaned, given["b"]], echo.output)

    found = read(build)
    assert list(found) == ["load", "clean", "two", "job", "merge"]
    call = {"callable": f"{HERE}:load", "arguments": {"day": "{{ ds }}"}}
    assert (found["load"]["job"], found["load"]["queue"], found["load"]["data"]) == ("python", "etl", call)
    assert found["clean"]["data"]["inputs"] == [{"node": "load", "to": ["rows"]}]
    assert found["clean"]["expand"] == {"over": {"month": [1, 2]}, "into": "arguments"}
    assert found["merge"]["data"] == {
        "callable": f"{HERE}:merge",
        "arguments": {"parts": [None, None], "n": None},
        "inputs": [
            {"node": "clean[*]", "to": ["parts", 0]},
            {"node": "two", "to": ["parts", 1], "path": ["b"]},
            {"node": "job", "to": ["n"]},
        ],
    }
    assert found["merge"]["after"] == ["clean", "two", "job"]
    assert (found["job"]["data"], found["job"]["after"]) == ({"day": "{{ ds }}"}, ["load"])
    assert found["job"]["options"] == {"attempts": 2}


def test_python_operators_are_functions_too() -> None:
    def build() -> None:
        a = PythonOperator(task_id="a", python_callable=plain, op_args=[1], op_kwargs={"scale": 2})
        PythonOperator.partial(task_id="b", python_callable=plain).expand(
            op_kwargs=[{"value": 1}, {"value": 2}]
        )
        PythonOperator(task_id="c", python_callable=plain, op_kwargs={"value": a.output})

    found = read(build)
    assert found["a"]["data"] == {"callable": f"{HERE}:plain", "arguments": {"value": 1, "scale": 2}}
    assert found["b"]["expand"] == {"over": [{"value": 1}, {"value": 2}], "into": "arguments"}
    assert found["c"]["data"]["inputs"] == [{"node": "a", "to": ["value"]}]


def test_functions_for_workers_and_spark_steps_are_tasks_of_a_group_too() -> None:
    def build() -> None:
        loaded: Any = load()
        named(loaded)
        named.override(task_id="each").expand(rows=[1, 2])
        step_of: Any = spark_step
        step_of(loaded)
        step: dict[str, Any] = {"application": "m:step", "location": "/data"}
        GlideMQSparkOperator(task_id="step", arguments={"rows": loaded, "n": 1}, **step)
        GlideMQSparkOperator.partial(task_id="steps", **step).expand(arguments=[{"n": 1}, {"n": 2}])

    found = read(build)
    inputs = [{"node": "load", "to": ["rows"]}]
    assert (found["named"]["queue"], found["named"]["job"]) == ("named", "python")
    assert found["named"]["data"] == {
        "callable": f"{HERE}:named",
        "arguments": {"rows": None},
        "inputs": inputs,
    }
    assert found["each"]["expand"] == {"over": {"rows": [1, 2]}, "into": "arguments"}
    assert (found["spark_step"]["queue"], found["spark_step"]["job"]) == ("spark", "spark.python")
    assert found["spark_step"]["data"] == {
        "callable": f"{HERE}:spark_step",
        "arguments": {"rows": None},
        "inputs": inputs,
        "location": "/data",
        "conf": {"spark.sql.shuffle.partitions": "4"},
    }
    assert found["step"]["data"] == {
        "callable": "m:step",
        "arguments": {"rows": None, "n": 1},
        "inputs": inputs,
        "location": "/data",
    }
    assert found["steps"]["expand"] == {"over": [{"n": 1}, {"n": 2}], "into": "arguments"}


def test_over_a_result_of_the_group_a_task_is_expanded_in_the_flow() -> None:
    def build() -> None:
        clean.partial(rows=1).expand(month=load())

    assert read(build)["clean"]["expand"] == {
        "over": {"month": None},
        "into": "arguments",
        "inputs": [{"node": "load", "to": ["over", "month"]}],
    }


def test_a_monitor_takes_the_place_of_each_task() -> None:
    def told(context: Any) -> None:
        pass

    def build() -> None:
        first: Any = load()
        with TaskGroup("inner"):
            last = job(
                "last", on_failure_callback=told, doc_md="Last.", retries=3, owner="me", do_xcom_push=False
            )
        first >> last

    dag = closed(
        build, default_args={"retries": 5, "pool": "default_pool", "execution_timeout": timedelta(1)}
    )
    last: Any = dag.get_task("etl.inner.last")
    assert last.task_type == "GlideMQNodeMonitor"
    assert (last.node, last.nodes_before, last.launch) == ("inner.last", {"etl.load": "load"}, "etl.launch")
    assert (last.retries, last.execution_timeout, last.on_failure_callback) == (0, None, [told])
    assert (last.owner, last.doc_md, last.do_xcom_push) == ("me", "Last.", False)
    assert dag.task_group_dict["etl.inner"].children == {"etl.inner.last": last}
    assert dag.get_task("etl.launch").retries == 5
    assert tasks(dag)["inner.last"]["options"]["attempts"] == 4


def test_without_a_prefix_names_are_ids() -> None:
    dag = closed(load, prefix_group_id=False)
    assert edges(dag) == {"launch": [], "load": ["launch"]}


def test_what_the_tasks_wait_for_outside_the_whole_group_waits_for() -> None:
    with DAG("d", schedule=None) as dag:
        given: Any = load.override(task_id="given")()
        other, end = EmptyOperator(task_id="other"), EmptyOperator(task_id="end")
        with GlideMQTaskGroup("etl", queue_name="etl") as group:
            first: Any = load(given)
            second: Any = clean(first)
            third: Any = merge(second)
            other >> second
        third >> EmptyOperator(task_id="late")
        merge.override(task_id="puller")(second)
        EmptyOperator(task_id="start") >> group >> end
    assert edges(dag) == {
        "given": [],
        "other": [],
        "etl.launch": ["given", "other", "start"],
        "etl.load": ["etl.launch"],
        "etl.clean": ["etl.load"],
        "etl.merge": ["etl.clean"],
        "late": ["etl.merge"],
        "puller": ["etl.clean"],
        "start": [],
        "end": ["etl.merge"],
    }
    for one in dag.tasks:
        assert {
            up.task_id for up in dag.tasks if one.task_id in up.downstream_task_ids
        } == one.upstream_task_ids


def test_the_tasks_of_an_eager_group_begin_with_its_flow() -> None:
    def build() -> None:
        first: Any = load()
        clean(first) >> job("last", trigger_rule="all_done")

    with DAG("d", schedule=None) as dag:
        with GlideMQTaskGroup("etl", queue_name="etl", eager=True) as group:
            build()
        group >> EmptyOperator(task_id="end")
    assert edges(dag) == {
        "etl.launch": [],
        "etl.load": ["etl.launch"],
        "etl.clean": ["etl.launch", "etl.load"],
        "etl.last": ["etl.clean", "etl.launch"],
        "end": ["etl.last"],
    }
    assert [dag.get_task(f"etl.{name}").trigger_rule for name in ("load", "clean", "last")] == [
        "all_success",
        "one_success",
        "one_success",
    ]
    assert tasks(dag)["last"]["after"] == ["clean"]


def test_trigger_rules_carry_over_to_the_node_and_to_the_monitor() -> None:
    def build() -> None:
        first = job("first")
        first >> job("done", trigger_rule="all_done")
        first >> job("always", trigger_rule="always")

    dag = closed(build)
    assert {name: one["rule"] for name, one in tasks(dag).items()} == {
        "first": "all_success",
        "done": "all_done",
        "always": "always",
    }
    assert dag.get_task("etl.done").trigger_rule == "all_done"
    assert edges(dag)["etl.always"] == ["etl.first", "etl.launch"]
    assert dag.get_task("etl.always").trigger_rule == "one_success", "not before the flow is submitted"
    assert tasks(dag)["always"]["after"] == ["first"]


def test_parameters_of_airflow_become_options_of_the_job(subtests: pytest.Subtests) -> None:
    for given, options in OPTIONS_OF_JOBS:
        with subtests.test(given=given):
            assert read(partial(job, **given), pools={"db": 4})["job"]["options"] == options


# -- serialization -------------------------------------------------------------------------------------------


def everything() -> None:
    loaded: Any = load("{{ ds }}")
    cleaned: Any = clean.partial(rows=loaded).expand(month=[1, 2])
    merge(cleaned) >> job("last", trigger_rule="all_done", outlets=[Asset("x")])


def started_with(serialized: Any) -> dict[str, Any]:
    """The arguments of the trigger with which a task starts, as they are in the database."""
    given = serialized.start_trigger_args.trigger_kwargs
    found: dict[str, Any] = given.get("__var", given)
    return found


def test_the_dag_is_the_same_at_each_parse_and_survives_serialization() -> None:
    first, second = (DagSerialization.to_dict(closed(everything)) for _ in range(2))
    assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    dag = DagSerialization.from_dict(json.loads(json.dumps(first)))
    assert {one.task_id: sorted(one.upstream_task_ids) for one in dag.tasks} == edges(closed(everything))
    load_, last = dag.get_task("etl.load"), dag.get_task("etl.last")
    assert load_.start_from_trigger is STARTS_FROM_TRIGGER
    assert last.start_from_trigger is False, "an asset event needs a worker"
    arguments = started_with(load_)
    assert (arguments["node"], arguments["ends_task"], arguments["is_needed"]) == ("load", True, False)


def test_a_task_outside_that_waits_for_one_inside_makes_its_result_needed() -> None:
    with DAG("d", schedule=None) as dag:
        with GlideMQTaskGroup("etl", queue_name="etl"):
            inside: Any = load()
        merge(inside)
    monitor: Any = DagSerialization.from_dict(DagSerialization.to_dict(dag)).get_task("etl.load")
    found = started_with(monitor)
    assert (found["is_needed"], found["is_mapped_over"]) == (True, False)


def test_a_task_outside_that_is_expanded_over_one_inside_is_known() -> None:
    with DAG("d", schedule=None) as dag:
        with GlideMQTaskGroup("etl", queue_name="etl"):
            inside: Any = load()
            again: Any = clean.expand(rows=[1, 2])
        merge.expand(parts=inside)
        merge.override(task_id="other").expand(parts=again.map(lambda one: one))
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for name in ("load", "clean"):
        assert started_with(stored.get_task(f"etl.{name}"))["is_mapped_over"] is True


def test_over_a_task_of_a_mapped_group_nothing_is_expanded() -> None:
    """Airflow cannot: it failed such a task when those of the group had succeeded."""

    @task_group
    def each(month: Any) -> Any:
        with GlideMQTaskGroup("inner", queue_name="etl"):
            return clean(1, month)

    with DAG("d", schedule=None) as dag:
        made: Any = each.expand(month=[1, 2])
        merge(made)
    monitor: Any = dag.get_task("each.inner.clean")
    assert (monitor._watching()["is_needed"], monitor._watching()["is_mapped_over"]) == (True, False)
    with dag:
        merge.override(task_id="late").expand(parts=made)
    with pytest.raises(AirflowException, match=r"expanded over each\.inner\.clean, which is in an expanded"):
        DagSerialization.to_dict(dag)


def test_an_edge_that_comes_too_late_is_an_import_error() -> None:
    with DAG("d", schedule=None) as dag:
        with GlideMQTaskGroup("etl", queue_name="etl"):
            first = job("first")
            second = job("second")
            first >> second
        EmptyOperator(task_id="x") >> second
    with pytest.raises(AirflowException, match=r"task etl\.second waits for x since the group was closed"):
        DagSerialization.to_dict(dag)


def test_a_callback_that_airflow_calls_in_workers_only_gets_one(subtests: pytest.Subtests) -> None:
    """An end in the triggerer calls ``on_failure_callback`` alone."""
    for name in ("on_success_callback", "on_skipped_callback"):
        with subtests.test(name=name):
            with DAG("d", schedule=None) as dag, GlideMQTaskGroup("g", queue_name="q"):
                given: Any = {name: print}
                GlideMQOperator(task_id="told", queue_name="q", job="x", **given)
                GlideMQOperator(task_id="plain", queue_name="q", job="x", on_failure_callback=print)
            starts: list[Any] = [
                getattr(dag.get_task(f"g.{one}"), "start_from_trigger", None) for one in ("told", "plain")
            ]
            assert starts == [False, STARTS_FROM_TRIGGER]
            retries = [dag.get_task(f"g.{one}").retries for one in ("told", "plain")]
            assert retries == [1, 0], "a busy scheduler may take one that resumes for lost"
