"""What items cost an Airflow: as mapped tasks, as one flow, and as a task group.

``python -m benchmarks.airflow_items --items 100 --items 1000``: a real Airflow on this machine (SQLite,
LocalExecutor) runs so many items that do nothing in each of these ways:

- ``mapped``: an ``@task`` that is expanded over them, each a task of Airflow's own;
- ``flow``: one ``GlideMQFlowOperator``, each item a node;
- ``group``: the same ``@task.expand`` inside a ``GlideMQTaskGroup``;
- ``arrays``: the same with ``arrays=True``;
- ``tasks``: a task for each of them inside a ``GlideMQTaskGroup``.

Shown are the seconds of the DAG run, as Airflow notes them, the rows that it leaves in Airflow's database
(task instances, their history, XComs and rendered fields), and the processor time of Airflow, the worker and
the server.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import redis
import typer
from rich.console import Console

from benchmarks.report import machine_now
from glidemq_orchestrate import EmbeddedServer
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.demo.airflow_stack import AirflowStack

WAYS: Final = ("flow", "group", "arrays", "tasks", "mapped")
HERE: Final = Path(__file__).parent
PATH: Final = (HERE.parent, HERE.parent / "providers" / "airflow", HERE / "airflow_dags")
WARM: Final = 3
"""Items of the runs before: the first of each kind imports more."""
TABLES: Final = ("task_instance", "task_instance_history", "xcom", "rendered_task_instance_fields")
QUERIES: Final = {table: f"FROM {table} WHERE dag_id = ?" for table in TABLES}


def main(  # noqa: PLR0913  options
    items: Annotated[list[int] | None, typer.Option(help="How many; repeatable.", min=1)] = None,
    ways: Annotated[str, typer.Option(help="What to measure, comma-separated.")] = ",".join(WAYS),
    rounds: Annotated[int, typer.Option(help="How often; medians are shown.", min=1)] = 1,
    limit: Annotated[float, typer.Option(help="The longest time for one DAG run, in seconds.")] = 7_200,
    *,
    quick: Annotated[bool, typer.Option(help="20 items.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what items cost."""
    counts, chosen = [20] if quick else (items or [100]), ways.split(",")
    if unknown := sorted(set(chosen) - set(WAYS)):
        raise typer.BadParameter(f"there is no way {unknown[0]}: {', '.join(WAYS)}", param_hint="--ways")
    with tempfile.TemporaryDirectory(prefix="glidemq-items-", ignore_cleanup_errors=True) as home:
        machine, rows = measure(Path(home), counts, chosen, rounds, limit)
    if as_json:
        json.dump({"machine": machine, "rows": rows}, sys.stdout)
        return
    out = Console(width=None if sys.stdout.isatty() else 160)
    out.print(f"\n{machine}\nAirflow with SQLite and a LocalExecutor of 4\n")
    texts = [{name: f"{value:,}" for name, value in row.items() if name != "as"} for row in rows]
    shown = [{"as": row["as"], **text} for row, text in zip(rows, texts, strict=True)]
    out.print(summary_table("Items that do nothing", shown))


def measure(
    home: Path, counts: list[int], ways: list[str], rounds: int, limit: float
) -> tuple[str, list[dict[str, Any]]]:
    """A row for each number of items and each way; the rounds take turns."""
    progress = Console(stderr=True)
    with EmbeddedServer() as server, worker(server.url, home), airflow(server.url, home, counts) as stack:
        with redis.Redis.from_url(server.url.replace("valkey", "redis"), decode_responses=True) as client:
            machine = machine_now(client)
        for way in ways:
            progress.print(f"warming up: {way}", style="dim")
            one_run(stack, f"{way}_{WARM}", limit)
        found: dict[tuple[int, str], list[dict[str, Any]]] = {}
        for number in range(rounds):
            for count in counts:
                for way in ways:
                    progress.print(f"round {number + 1}/{rounds}: {count:,} items, {way}", style="dim")
                    figures = one_run(stack, f"{way}_{count}", limit)
                    progress.print(str(figures), style="dim")
                    found.setdefault((count, way), []).append(figures)
    return machine, [
        {
            "as": way,
            "items": count,
            **{name: statistics.median(one[name] for one in of_way) for name in of_way[0]},
        }
        for (count, way), of_way in found.items()
    ]


def one_run(stack: AirflowStack, dag_id: str, limit: float) -> dict[str, Any]:
    """Run a DAG once: what it took."""
    stack.wait_for_dag(dag_id)
    before, rows_before = processor_seconds(), rows_of(stack.home, dag_id)
    run_id = stack.trigger_dag(dag_id)
    state = stack.wait_for_run(dag_id, run_id, limit)
    if state != "success":
        raise SystemExit(f"{dag_id} {run_id} is {state}: {stack.task_states(dag_id, run_id)}")
    time.sleep(2)  # the last process has ended and is counted
    rows = rows_of(stack.home, dag_id)
    return {
        "s": round(seconds_of(stack.home, dag_id, run_id), 1),
        "task rows": rows["task_instance"] - rows_before["task_instance"],
        "rows": sum(rows.values()) - sum(rows_before.values()),
        "processor s": round(processor_seconds() - before, 1),
    }


def seconds_of(home: Path, dag_id: str, run_id: str) -> float:
    """From the start of a DAG run to its end."""
    query = "SELECT start_date, end_date FROM dag_run WHERE dag_id = ? AND run_id = ?"
    with database(home) as cursor:
        start, end = map(datetime.fromisoformat, cursor.execute(query, (dag_id, run_id)).fetchone())
    return (end - start).total_seconds()


def rows_of(home: Path, dag_id: str) -> dict[str, int]:
    """How many rows a DAG has in the tables that grow with its tasks."""
    with database(home) as cursor:
        return {
            table: cursor.execute(f"SELECT count(*) {rest}", (dag_id,)).fetchone()[0]
            for table, rest in QUERIES.items()
        }


@contextmanager
def database(home: Path) -> Iterator[sqlite3.Cursor]:
    """Airflow's database."""
    with closing(sqlite3.connect(f"file:{home}/airflow.db?mode=ro", uri=True, timeout=60)) as connection:
        yield connection.cursor()


def processor_seconds() -> float:
    """Of all processes below this one, with those that have ended."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def worker(url: str, home: Path) -> Iterator[None]:
    """A process that runs the items."""
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", url, "--queue", "items"]
    command += ["--app", "glidemq_orchestrate.python", "--allow-import", "items", "--processes", "1"]
    with (home / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def airflow(url: str, home: Path, counts: list[int]) -> Iterator[AirflowStack]:
    """An Airflow with the DAGs for these numbers of items."""
    most = max(counts)
    with AirflowStack(
        home / "airflow",
        HERE / "airflow_dags",
        connections={"glidemq_default": url.replace("valkey://", "glidemq://")},
        python_path=PATH,
        environment={
            "ITEMS": ",".join(map(str, {WARM, *counts})),
            "AIRFLOW__CORE__MAX_MAP_LENGTH": str(max(most, 1_024)),
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": str(max(most, 16)),
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
        },
        parallelism=4,
    ) as stack:
        yield stack


def environment() -> dict[str, str]:
    """Of the worker, which imports the functions of the DAG file."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATH))}


if __name__ == "__main__":
    typer.run(main)
