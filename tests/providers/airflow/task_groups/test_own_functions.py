"""Functions that name their own workers, and Spark steps, inside a group."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQSparkOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

from glidemq_orchestrate.errors import ConfigurationError
from tests.providers.airflow.task_groups.groups import load, read, tasks

HERE = __name__


@task.glidemq(queue_name="own", options={"attempts": 4})
def clean(rows: Any, month: int = 0) -> Any:
    return [rows, month]


@task.glidemq
def bare(rows: Any) -> Any:
    return rows


@task.glidemq_spark(location="/data", conf={"spark.sql.shuffle.partitions": 2})
def total(spark: Any, ctx: Any, months: Any) -> Any:
    return months


def call(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


def step(**more: Any) -> GlideMQSparkOperator:
    return GlideMQSparkOperator(task_id="step", application="m:f", location="/data/{{ ds }}", **more)


def test_a_function_of_task_glidemq_keeps_its_queue_and_options() -> None:
    def build() -> None:
        clean(load(), month=3)

    node = read(build)["clean"]
    assert (node["queue"], node["job"], node["options"]["attempts"]) == ("own", "python", 4)
    assert node["data"] == {
        "callable": f"{HERE}:clean", "arguments": {"rows": None, "month": 3},
        "inputs": [{"node": "load", "to": ["rows"]}],
    }  # fmt: skip


def test_an_expanded_one_has_them_too_also_from_default_args() -> None:
    def build() -> None:
        clean.partial(rows=1).expand(month=[7, 8])

    node = read(build)["clean"]
    assert (node["queue"], node["options"]["attempts"]) == ("own", 4)
    assert node["expand"] == {"over": {"month": [7, 8]}, "into": "arguments"}
    with (
        DAG("d", schedule=None, default_args={"queue_name": "of the dag"}) as dag,
        GlideMQTaskGroup("etl", default_args={"queue_name": "of the group"}),
    ):
        bare.expand(rows=[1])
    assert tasks(dag)["bare"]["queue"] == "of the group"


def test_a_spark_function_has_its_location_and_settings() -> None:
    node = read(lambda: call(total, load()))["total"]
    assert (node["queue"], node["job"]) == ("spark", "spark.python")
    assert node["data"] == {
        "callable": f"{HERE}:total", "arguments": {"months": None},
        "inputs": [{"node": "load", "to": ["months"]}],
        "location": "/data", "conf": {"spark.sql.shuffle.partitions": 2},
    }  # fmt: skip


def test_a_spark_step_by_its_path() -> None:
    node = read(lambda: step(arguments={"rows": load(), "n": 1}))["step"]
    assert (node["queue"], node["job"]) == ("spark", "spark.python")
    assert node["data"] == {
        "callable": "m:f", "arguments": {"rows": None, "n": 1},
        "inputs": [{"node": "load", "to": ["rows"]}], "location": "/data/{{ ds }}",
    }  # fmt: skip


def test_an_expanded_spark_step() -> None:
    def build() -> None:
        GlideMQSparkOperator.partial(task_id="step", application="m:f").expand(arguments=[{"n": 1}, {"n": 2}])

    node = read(build)["step"]
    assert node["data"] == {"callable": "m:f", "arguments": {}}
    assert node["expand"] == {"over": [{"n": 1}, {"n": 2}], "into": "arguments"}


def test_what_cannot_be_is_refused() -> None:
    def over_locations() -> None:
        GlideMQSparkOperator.partial(task_id="step", application="m:f").expand(location=["/a", "/b"])

    with pytest.raises(ConfigurationError, match="over a list of arguments"):
        read(over_locations)
    with pytest.raises(ConfigurationError, match="may be in data, in arguments and in expand"):
        read(lambda: GlideMQSparkOperator(task_id="step", application="m:f", location=call(load)))
