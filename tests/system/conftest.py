"""A real Valkey, real workers and a real Airflow for each module of tests that asks for them.

A module names its DAGs in ``DAGS``, and overrides the fixtures of what it has otherwise: ``dags``,
``workers_run``, ``worker_path``, ``environment``, ``connections``.

There is one Dagster for all tests, ``dagster``, with the code location ``dagster_location``, and a server and
workers of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import EmbeddedServer, FlowProducer
from tests.processes import spawned
from tests.system.real_airflow import HERE, PYTHON_PATH, ROOT, Airflow

if TYPE_CHECKING:
    from tests.system.real_dagster import DagsterStack

WORKER_SECONDS = 90
# One process: a handler notes in it what it has tried, and a test kills a worker by the pid of a step.
HANDLERS = ("--app", "airflow_handlers:handlers", "--queue", "system", "--processes", "1")
DAGSTER_WORKERS = (
    ("--app", "dagster_handlers:handlers", "--queue", "etl", "--queue", "events", "--queue", "watched"),
    (
        "--app",
        "glidemq_orchestrate.python",
        "--queue",
        "orders",
        "--queue",
        "shop",
        "--allow-import",
        "orders_steps",
    ),
)
DAGSTER_PATH = (HERE, ROOT, ROOT / "dags" / "dagster")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="module")
def server_or_cluster(server: EmbeddedServer) -> EmbeddedServer:
    return server


@pytest.fixture(scope="module")
def flows(server: EmbeddedServer) -> Iterator[FlowProducer]:
    with FlowProducer(server.url) as producer:
        yield producer


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the module."""
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def dags() -> Path:
    """The folder of the DAGs."""
    return HERE / "airflow_dags"


@pytest.fixture(scope="module")
def environment() -> Mapping[str, str]:
    """Variables of workers and tasks."""
    return {}


@pytest.fixture(scope="module")
def workers_run() -> Sequence[Sequence[str]]:
    """The options of each worker process."""
    return [HANDLERS]


@pytest.fixture(scope="module")
def worker_path() -> Sequence[Path]:
    """The folders from which workers may import."""
    return PYTHON_PATH


@pytest.fixture(scope="module")
def workers(
    server: EmbeddedServer,
    place: Path,
    *,
    environment: Mapping[str, str],
    workers_run: Sequence[Sequence[str]],
    worker_path: Sequence[Path],
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The worker processes; they have begun to serve."""
    variables = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(map(str, worker_path))}
    variables["AIRFLOW_HOME"] = str(place / "of-workers")  # for those that import DAG files
    with _serving(server, place, workers_run, variables) as running:
        yield running


@contextmanager
def _serving(
    server: EmbeddedServer, place: Path, workers_run: Sequence[Sequence[str]], variables: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Worker processes that have begun to serve; they end by SIGTERM."""
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", server.url]
    with ExitStack() as stack:
        running: dict[Path, subprocess.Popen[bytes]] = {}
        for number, options in enumerate(workers_run):
            log = place / f"worker-{number}.log"
            out = stack.enter_context(log.open("wb"))
            running[log] = stack.enter_context(
                spawned([*command, *options], env=variables, stdout=out, stderr=subprocess.STDOUT)
            )
        for log, process in running.items():
            _wait_for(log, "serves queues", process)
        yield list(running.values())
        for process in running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(WORKER_SECONDS)


def _wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + WORKER_SECONDS
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def connections(server: EmbeddedServer) -> Mapping[str, str | Mapping[str, Any]]:
    """Of Airflow, by id."""
    return {"glidemq_default": server.url.replace("valkey://", "glidemq://")}


@pytest.fixture(scope="module")
def airflow(
    request: pytest.FixtureRequest,
    *,
    connections: Mapping[str, str | Mapping[str, Any]],
    workers: list[object],
    place: Path,
    dags: Path,
    environment: Mapping[str, str],
) -> Iterator[Airflow]:
    """Its four processes; it has parsed the DAGs of the module."""
    running = Airflow(
        place / "airflow",
        dags,
        connections=connections,
        python_path=PYTHON_PATH,
        environment=environment,
        parallelism=4,
        progress=_Progress(),
    )
    with running:
        for dag_id in request.module.DAGS:
            running.wait_for_dag(dag_id)
        yield running


@pytest.fixture(scope="session")
def dagster_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="session")
def dagster_flows(dagster_server: EmbeddedServer) -> Iterator[FlowProducer]:
    with FlowProducer(dagster_server.url) as producer:
        yield producer


@pytest.fixture(scope="session")
def dagster(
    dagster_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DagsterStack]:
    """Its three processes, which have loaded ``dagster_location``, and the workers for its flows."""
    from tests.system.real_dagster import DagsterStack  # noqa: PLC0415  not where only Airflow is installed

    place = tmp_path_factory.mktemp("dagster")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, DAGSTER_PATH))}
    stack = DagsterStack(
        place / "home",
        HERE / "dagster_location.py",
        environment={"GLIDEMQ_URL": dagster_server.url},
        python_path=DAGSTER_PATH,
        progress=_Progress(),
    )
    with _serving(dagster_server, place, DAGSTER_WORKERS, variables), stack:
        yield stack


class _Progress:
    """Prints on the terminal (``pytest -s``) what takes so long."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self, line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._since:6.1f} s  {line}\n")
