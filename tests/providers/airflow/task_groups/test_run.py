"""A group in ``dag.test``: there, and on Airflow 3.1 and 3.2, its tasks defer and resume as others do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_orchestrate import EmbeddedServer

ROOT = Path(__file__).parents[4]
DAG_FILE = """
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, task, task_group
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup
from airflow_provider_glidemq.version_compat import AirflowSkipException

@task
def before():
    return [1, 2, 3]

@task
def square(number):
    return number * number

@task
def total(squares, more):
    return {"sum": sum(squares) + more}

@task
def skips():
    raise AirflowSkipException("nothing to do")

@task
def fails():
    raise RuntimeError("as announced")

@task
def plus(left, right):
    return left + right

@task(trigger_rule="all_done")
def after(summed, squares, mapped):
    return [summed["sum"], list(squares), list(mapped)]

@task_group
def each(number):
    with GlideMQTaskGroup("inner", queue_name="etl"):
        found = plus(square(number), number)
    return found

with DAG("small", schedule=None, catchup=False):
    numbers = before()
    with GlideMQTaskGroup("etl", queue_name="etl"):
        squares = square.expand(number=numbers)
        summed = total(squares, 1)
        skips() >> square.override(task_id="not_run")(1)
        fails() >> square.override(task_id="not_run_either")(1)
    after(summed, squares, each.expand(number=numbers))
"""
ARRAYS = """
from airflow.sdk import DAG, task
from airflow_provider_glidemq.task_groups.glidemq import GlideMQTaskGroup
from airflow_provider_glidemq.version_compat import AirflowSkipException

@task
def before():
    return [1, 2, 3]

@task
def numbers():
    return list(range(100))

@task(retries=1)
def square(number, more=0):
    if number == 7:
        raise AirflowSkipException("not this one")
    return number * number + more

@task
def total(squares):
    return sum(squares)

@task
def skips(number):
    raise AirflowSkipException("nothing to do")

@task
def fails(number):
    if number == 2:
        raise RuntimeError("as announced")

@task(trigger_rule="all_done")
def after(*found):
    return [list(one) if isinstance(one, list | tuple) else one for one in found]

with DAG("small", schedule=None, catchup=False):
    known = before()
    with GlideMQTaskGroup("etl", queue_name="etl", arrays=True):
        early = square.override(task_id="early").partial(more=1).expand(number=known)
        late = square.override(task_id="late").expand(number=numbers())
        summed = total(late)
        skips.expand(number=[1, 2]) >> total.override(task_id="not_run")([1])
        fails.expand(number=[1, 2, 3]) >> total.override(task_id="not_run_either")([1])
        square.override(task_id="none").expand(number=[])
    after(early, summed, total.override(task_id="outside")(early))
"""


def run_dag(tmp_path: Path, server: EmbeddedServer, text: str) -> Any:
    """Run the DAG ``small`` of a file; returns what run_group prints."""
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "small_dag.py").write_text(text)
    settings = {"CORE__DAGS_FOLDER": str(dags), "CORE__LOAD_EXAMPLES": "False"}
    settings |= {"DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db"}
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    environment |= {f"AIRFLOW__{name}": value for name, value in settings.items()}
    environment |= {
        "AIRFLOW_CONN_GLIDEMQ_DEFAULT": server.url.replace("valkey://", "glidemq://"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(dags), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "tests.providers.airflow.task_groups.run_group", str(dags), server.url]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_a_group_runs_in_dag_test(tmp_path: Path, server: EmbeddedServer) -> None:
    found = run_dag(tmp_path, server, DAG_FILE)
    assert found["tasks"] == {
        "before": "success",
        "etl.launch": "success",
        "etl.square": "success",
        "etl.total": "success",
        "etl.skips": "skipped",
        "etl.not_run": "skipped",
        "etl.fails": "failed",
        "etl.not_run_either": "upstream_failed",
        "each.inner.launch": "success",
        "each.inner.square": "success",
        "each.inner.plus": "success",
        "after": "success",
    }
    assert found["last"] == [15, [1, 4, 9], [2, 6, 12]]


@pytest.mark.long
def test_expanded_tasks_run_as_arrays(tmp_path: Path, server: EmbeddedServer) -> None:
    found = run_dag(tmp_path, server, ARRAYS)
    assert found["tasks"] == {
        "before": "success",
        "etl.launch": "success",
        "etl.early": "success",
        "etl.numbers": "success",
        "etl.late": "success",
        "etl.total": "success",
        "etl.skips": "skipped",
        "etl.not_run": "skipped",
        "etl.fails": "failed",
        "etl.not_run_either": "upstream_failed",
        "etl.none": "skipped",
        "outside": "success",
        "after": "success",
    }
    assert found["last"] == [[2, 5, 10], sum(n * n for n in range(100) if n != 7), 17]
