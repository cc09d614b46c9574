"""A DAG in a git bundle, whose versions Airflow keeps apart: which specification a cleared task runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from airflow_provider_glidemq.task_attempt import flow_id_for

from glidemq_orchestrate import FlowProducer
from tests.system.conftest import HANDLERS
from tests.system.real_airflow import PYTHON_PATH, Airflow

pytestmark = [pytest.mark.system, pytest.mark.long]

DAGS: Final = ("versioned",)
VERSIONED: Final = """
from datetime import timedelta

from airflow.sdk import DAG, task
from airflow_provider_glidemq.operators.glidemq import GlideMQFlowOperator


@task.glidemq(queue_name="python", defer_after=30, retries=1, retry_delay=timedelta(0))
def where():
    return __name__


with DAG("versioned", schedule=None, catchup=False):
    GlideMQFlowOperator(task_id="flow", defer_after=30, result="all", flow={
        "name": "versioned", "nodes": [
            {"name": "load", "queue": "system", "job": "echo", "data": "kept"},
            {"name": "clean", "queue": "system", "job": "JOB", "after": ["load"], "data": "VERSION"},
        ]})
    where()
"""


def source(job: str, version: str) -> str:
    return VERSIONED.replace("JOB", job).replace("VERSION", version)


@pytest.fixture(scope="module")
def repository(place: Path) -> Path:
    folder = place / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, source("fail", "one"))
    return folder


def git(folder: Path, *words: str) -> None:
    who = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "tests")
    who |= dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "tests@example.org")
    subprocess.run(["git", *words], cwd=folder, env={**os.environ, **who}, check=True)


def commit(folder: Path, text: str) -> None:
    (folder / "dags").mkdir(exist_ok=True)
    (folder / "dags" / "versioned.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "a version")


@pytest.fixture(scope="module")
def environment(repository: Path, place: Path) -> Mapping[str, str]:
    """Airflow has its own clones; the worker for functions has a check-out on its path."""
    bundle = {
        "name": "repository",
        "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
        "kwargs": {
            "repo_url": str(repository),
            "tracking_ref": "main",
            "subdir": "dags",
            "refresh_interval": 5,
        },
    }
    return {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(place / "bundles"),
    }


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    functions = ["--app", "glidemq_orchestrate.python", "--queue", "python", "--allow-import", "versioned"]
    return [HANDLERS, functions]


@pytest.fixture(scope="module")
def worker_path(repository: Path) -> Sequence[Path]:
    return [*PYTHON_PATH, repository / "dags"]


def cleared(airflow: Airflow, run_id: str, *, latest: bool) -> str:
    airflow.clear("versioned", run_id, ["flow"], latest=latest)
    airflow.wait_until_it_runs("versioned", run_id, "flow")
    return airflow.wait_for_run("versioned", run_id, timeout=240)


def data_of(flows: FlowProducer, run_id: str) -> list[Any]:
    """The state of each generation, and the job and the runs of the node that was mended."""
    flow = flows.get(flow_id_for("versioned", "flow", run_id))
    node = flow.node("clean")
    return [[one.state.value for one in flow.history()], node.job, node.reruns]


def test_a_cleared_task_runs_the_version_that_was_asked_for(
    airflow: Airflow, flows: FlowProducer, repository: Path
) -> None:
    run_id = airflow.begin("versioned", "r1")
    assert airflow.wait_for_run("versioned", run_id, timeout=240) == "failed", airflow.story(
        "versioned", run_id
    )
    assert data_of(flows, run_id) == [["failed"], "fail", 0]
    assert airflow.xcom("versioned", run_id, "where") == "versioned", "not the name of a clone of Airflow"
    first = airflow.task("versioned", run_id, "flow")["dag_version"]["bundle_version"]
    assert first

    airflow.wait_for_version("versioned", lambda: commit(repository, source("echo", "two")))
    assert cleared(airflow, run_id, latest=False) == "failed", airflow.story("versioned", run_id)
    assert data_of(flows, run_id) == [["failed"], "fail", 1]
    assert airflow.task("versioned", run_id, "flow")["dag_version"]["bundle_version"] == first

    assert cleared(airflow, run_id, latest=True) == "success", airflow.story("versioned", run_id)
    assert data_of(flows, run_id) == [["failed", "completed"], "echo", 0]
    assert airflow.xcom("versioned", run_id, "flow") == {"load": "kept", "clean": "two"}
    assert airflow.task("versioned", run_id, "flow")["dag_version"]["bundle_version"] != first
