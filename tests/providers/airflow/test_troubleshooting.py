"""What docs/how-to/troubleshooting.md says about a task that stays deferred: its commands, tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow_provider_glidemq.operators.glidemq import XCOM_FLOW_ID
from airflow_provider_glidemq.version_compat import TaskDeferred
from typer.testing import CliRunner

from glidemq_orchestrate import Worker
from glidemq_orchestrate.cli import app
from tests.providers.airflow.builders import Contexts, Valkey, fired, operator, recreated

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "troubleshooting.md"
CHECK = "airflow jobs check --job-type TriggererJob"
TRIGGERER = """
from airflow.jobs.job import Job
from airflow.jobs.triggerer_job_runner import TriggererJobRunner
from airflow.utils.session import create_session

job = Job()
TriggererJobRunner(job)
with create_session() as session:
    job.prepare_for_execution(session=session)
"""


@pytest.mark.long
def test_the_check_tells_whether_a_triggerer_runs(tmp_path: Path) -> None:
    assert f"$ {CHECK}" in PAGE.read_text("utf-8")
    programs = Path(sys.executable).parent
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / words[0]), *words[1:]]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    assert run("airflow", "db", "migrate").returncode == 0
    without = run(*CHECK.split())
    assert without.returncode == 1
    assert "No alive jobs found" in without.stdout + without.stderr
    assert run("python", "-c", TRIGGERER).returncode == 0
    assert "Found one alive job" in run(*CHECK.split()).stdout


async def test_a_flow_that_has_ended_while_its_task_stays_deferred(
    valkey: Valkey, worker: Worker, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = context()
    with pytest.raises(TaskDeferred) as caught:
        operator().execute(about)
    flow_id = about["ti"].pushed[XCOM_FLOW_ID]
    with valkey.producer() as flows:
        flows.get(flow_id).wait(timeout=20)
    words = ["flow", "show", flow_id, "--prefix", valkey.prefix, "--url", valkey.url]
    assert "completed" in CliRunner().invoke(app, words).output.splitlines()[0]

    trigger = recreated(caught.value.trigger.serialize()[1], about)
    lines: list[str] = []
    monkeypatch.setattr(trigger.log, "warning", lambda text, *args: lines.append(text % args))
    connection = {"conn_type": "glidemq", "host": "127.0.0.1", "port": 1, "extra": {"prefix": valkey.prefix}}
    reachable = os.environ["AIRFLOW_CONN_GLIDEMQ_DEFAULT"]
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", json.dumps(connection))
    with pytest.raises(TimeoutError):
        await fired(trigger, 2)
    assert "cannot connect to valkey://127.0.0.1:1" in lines[0]
    monkeypatch.setenv("AIRFLOW_CONN_GLIDEMQ_DEFAULT", reachable)
    assert (await fired(recreated(caught.value.trigger.serialize()[1], about)))["status"] == "completed"
