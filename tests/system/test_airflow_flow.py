"""A real Airflow (scheduler, DAG processor, triggerer, API server), a real worker process, a real Valkey."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import metadata
from pathlib import Path

import pytest
from airflow_provider_glidemq.identity import flow_id_for

from glidemq_orchestrate import EmbeddedServer, Flow, FlowProducer, FlowState
from glidemq_orchestrate.demo.airflow_stack import AirflowStack, AirflowStackError
from glidemq_orchestrate.errors import FlowNotFound
from tests.processes import spawned

pytestmark = pytest.mark.system

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON_PATH = [ROOT, ROOT / "providers" / "airflow", HERE]
TOTAL = 2 * (2 * (12 + sum(range(12))) + 3) + 7 + 1
WORKER_SECONDS = 90
RELEASE = tuple(int(part) for part in metadata.version("apache-airflow-core").split(".")[:2])


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="module")
def flows(server: EmbeddedServer) -> Iterator[FlowProducer]:
    with FlowProducer(server.url) as producer:
        yield producer


@pytest.fixture(scope="module")
def _worker(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    log = tmp_path_factory.mktemp("worker") / "worker.log"
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker"]
    command += ["--app", "airflow_handlers:handlers", "--queue", "system", "--url", server.url]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PYTHON_PATH))}
    with (
        log.open("wb") as out,
        spawned(command, env=environment, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        _wait_for(log, "serves queues system", process)
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(WORKER_SECONDS)


def _wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WORKER_SECONDS
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def stack(
    server: EmbeddedServer, _worker: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowStack]:
    running = AirflowStack(
        tmp_path_factory.mktemp("airflow"),
        HERE / "airflow_dags",
        connections={"glidemq_default": server.url.replace("valkey://", "glidemq://")},
        python_path=PYTHON_PATH,
        progress=_Progress(),
    )
    with running:
        for dag_id in ("completes", "fails", "hangs", "keeps", "repairs", "senses"):
            running.wait_for_dag(dag_id)
        yield running


class _Progress:
    """Prints on the terminal (``pytest -s``) what takes so long."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self, line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._since:6.1f} s  {line}\n")


def test_a_flow_runs_behind_one_task_and_a_sensor_sees_it(stack: AirflowStack, flows: FlowProducer) -> None:
    start = time.monotonic()
    run_id = stack.trigger_dag("completes")
    sensing = stack.trigger_dag("senses", {"run_id": run_id})

    assert stack.wait_for_run("completes", run_id) == "success", _story(stack, "completes", run_id)
    sys.stdout.write(f"DAG run of 22 nodes: {time.monotonic() - start:.1f} s\n")
    flow_id = flow_id_for("completes", "flow", run_id)
    assert stack.xcom("completes", run_id, "flow", "glidemq_flow_id") == flow_id
    assert stack.xcom("completes", run_id, "flow") == {"run": run_id, "total": TOTAL}
    assert stack.xcom("completes", run_id, "after") == TOTAL
    status = flows.get(flow_id).status()
    assert (status.state, status.total, status.completed) == (FlowState.COMPLETED, 22, 22)
    assert (status.labels["orchestrator"], status.labels["run_id"]) == ("airflow", run_id)
    log = _logs(stack, "completes", run_id, "flow")
    assert f"Flow {flow_id}: 22 nodes, home queue system" in log
    assert f"Flow {flow_id} completed: 22 nodes" in log

    assert stack.wait_for_run("senses", sensing) == "success", _story(stack, "senses", sensing)
    assert stack.xcom("senses", sensing, "ready") == {"run": run_id, "total": TOTAL}


def _story(stack: AirflowStack, dag_id: str, run_id: str) -> str:
    """All that Airflow knows of a run, for a failure of a test."""
    tasks = (stack.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}").glob("*/*")
    parts = [path.read_text(errors="replace") for path in sorted(tasks)]
    parts += [
        f"{path.name}:\n{path.read_text(errors='replace')[-6_000:]}"
        for path in sorted(stack.home.glob("*.log"))
    ]
    return "\n".join([str(stack.task_states(dag_id, run_id)), *parts])


def _logs(stack: AirflowStack, dag_id: str, run_id: str, task_id: str) -> str:
    """What all tries of a task have written. A scheduler that is late may count a try for a resumed task."""
    folder = stack.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}" / f"task_id={task_id}"
    return "\n".join(path.read_text() for path in sorted(folder.iterdir()))


def test_a_failed_flow_fails_the_task_with_the_reason(stack: AirflowStack) -> None:
    run_id = stack.trigger_dag("fails")
    assert stack.wait_for_run("fails", run_id) == "failed"
    assert stack.task_states("fails", run_id) == {"flow": "failed"}
    log = _logs(stack, "fails", run_id, "flow")
    assert "GlideMQFlowFailed" in log
    assert "month 13 does not exist" in log


def test_a_retry_repairs_and_a_clear_runs_anew(stack: AirflowStack, flows: FlowProducer) -> None:
    run_id = stack.trigger_dag("repairs")
    flow_id = flow_id_for("repairs", "flow", run_id)
    stamps = []
    for generation in range(2):
        assert stack.wait_for_run("repairs", run_id) == "success", _story(stack, "repairs", run_id)
        results = stack.xcom("repairs", run_id, "flow")
        assert results["lucky"] == generation
        stamps.append(results["stamp"])
        flow = flows.get(flow_id)
        assert [status.state for status in flow.history()] == ["completed"] * (generation + 1)
        assert flow.node("stamp").attempts == 1
        if not generation:
            stack.clear_task("repairs", run_id, "flow")
            _wait_until_it_runs(stack, "repairs", run_id)
    assert stamps[0] < stamps[1]


def _wait_until_it_runs(stack: AirflowStack, dag_id: str, run_id: str) -> None:
    """Wait until the clear of an ended run has taken effect."""
    until = time.monotonic() + 60
    while stack.task_states(dag_id, run_id)["flow"] in ("success", "failed"):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_cleared_task_that_waits_runs_anew_and_a_failed_one_cancels_its_flow(
    stack: AirflowStack, flows: FlowProducer
) -> None:
    run_id = stack.trigger_dag("hangs")
    stack.wait_for_task("hangs", run_id, "flow", ["deferred"])
    flow = flows.get(flow_id_for("hangs", "flow", run_id))
    _wait_until_watched(stack, run_id, try_number=1)
    stack.clear_task("hangs", run_id, "flow")
    _wait_until_watched(stack, run_id, try_number=2)
    assert [one.state for one in flow.history()] == ["cancelled", "running"], (
        "the old trigger was killed late"
    )
    flow = flows.get(flow.id)
    stack.mark_task("hangs", run_id, "flow", "failed")
    told = RELEASE >= (3, 3)  # earlier ones tell no trigger why it ends: the lease of the owner lapses
    outcome = flow.wait(timeout=timedelta(seconds=40 if told else 200))
    assert outcome.status.state is FlowState.CANCELLED
    expected = "ended by a user (state: failed)" if told else f"task hangs.flow of run {run_id} has vanished"
    assert expected in outcome.status.reason


def test_a_task_that_is_marked_while_it_runs_cancels_its_flow(
    stack: AirflowStack, flows: FlowProducer
) -> None:
    run_id = stack.trigger_dag("keeps")
    stack.wait_for_task("keeps", run_id, "flow", ["running"])
    flow = _begun(flows, flow_id_for("keeps", "flow", run_id))
    stack.mark_task("keeps", run_id, "flow", "failed")
    outcome = flow.wait(timeout=timedelta(seconds=60))
    assert outcome.status.state is FlowState.CANCELLED
    assert "the Airflow task was killed" in outcome.status.reason


def _begun(flows: FlowProducer, flow_id: str) -> Flow:
    until = time.monotonic() + 60
    while True:
        with contextlib.suppress(FlowNotFound):
            return flows.get(flow_id)
        assert time.monotonic() < until
        time.sleep(0.1)


def _wait_until_watched(stack: AirflowStack, run_id: str, try_number: int) -> None:
    """Wait for the trigger: Airflow notifies only a running trigger of what a user did."""
    until = time.monotonic() + 60
    while "0/2 nodes completed" not in _log_so_far(stack, run_id, try_number):
        assert time.monotonic() < until
        time.sleep(0.5)


def _log_so_far(stack: AirflowStack, run_id: str, try_number: int) -> str:
    try:
        return stack.task_log("hangs", run_id, "flow", try_number)
    except AirflowStackError:
        return ""  # this try has not begun
