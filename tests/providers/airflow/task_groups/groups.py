"""Groups of tasks for these tests: their functions, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task
from airflow.sdk.definitions._internal.contextmanager import DagContext
from airflow_provider_glidemq.operators.glidemq import GlideMQOperator
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup

HERE = __name__
Build = Callable[[], Any]


@task
def load(day: str = "today") -> Any:
    return day


@task
def clean(rows: Any, month: int = 0) -> Any:
    return [rows, month]


@task
def merge(parts: Any, n: Any = None) -> Any:
    return [parts, n]


@task(multiple_outputs=True)
def two() -> Any:
    return {"a": 1, "b": 2}


@task
def wants_context(ti: Any = None) -> Any:
    return ti


@task.glidemq(queue_name="named")
def named(rows: Any, ctx: Any = None) -> Any:
    return [rows, ctx]


@task.glidemq_spark(location="/data", conf={"spark.sql.shuffle.partitions": "4"})
def spark_step(spark: Any, ctx: Any, rows: Any) -> Any:
    return [spark, ctx, rows]


def plain(value: Any, scale: int = 1) -> Any:
    return [value, scale]


def job(task_id: str = "job", **kwargs: Any) -> GlideMQOperator:
    return GlideMQOperator(**{"task_id": task_id, "queue_name": "etl", "job": "echo", **kwargs})


def outside(task_id: str) -> EmptyOperator:
    """A task of the DAG outside of the group, also where the group is open."""
    dag = DagContext.get_current()
    assert dag is not None
    return EmptyOperator(task_id=task_id, task_group=dag.task_group)


def closed(build: Build, **kwargs: Any) -> DAG:
    """A DAG with the group ``etl``."""
    with DAG("d", schedule=None) as dag, GlideMQTaskGroup("etl", **{"queue_name": "etl", **kwargs}):
        build()
    return dag


def tasks(dag: DAG) -> dict[str, Any]:
    """What the group's launch submits, by name."""
    launch: Any = dag.get_task("etl.launch")
    return {one["name"]: one for one in launch.tasks}


def read(build: Build, **kwargs: Any) -> dict[str, Any]:
    return tasks(closed(build, **kwargs))


def edges(dag: DAG) -> dict[str, list[str]]:
    return {one.task_id: sorted(one.upstream_task_ids) for one in dag.tasks}
