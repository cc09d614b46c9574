"""What steps cost a Dagster: in processes of its own, in that of the run, as jobs, and as nodes of a flow.

``python -m benchmarks.dagster_steps --steps 20 --steps 100``: a real Dagster on this machine (SQLite) runs a
job of so many steps that do nothing and depend on nothing, in each of these ways:

- ``multiprocess``: Dagster's default, a new process for each step;
- ``forkserver``: the same with ``start_method: forkserver``, which has the code imported;
- ``glidemq``: ``glidemq_executor``, a job for each step, run by a child of a warm process of one worker;
- ``in_process``: one after the other in the process of the run, without isolation;
- ``assets``: ``glidemq_flow_assets``, one step that runs so many nodes of a flow, each an asset;
- ``one_op``: ``run_flow``, one op that runs so many nodes.

Each has two steps or nodes at a time (``in_process`` one). Shown are the seconds of the run and the processor
time of everything, also of the workers and the server, in total and for each step or node.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import tenacity
import typer
from rich.console import Console

from benchmarks.report import machine_now
from glidemq_orchestrate import EmbeddedServer, FlowProducer
from glidemq_orchestrate.cli.shell import summary_table
from glidemq_orchestrate.errors import HandlerNotFound, QueueNotServed

WAYS: Final = ("glidemq", "forkserver", "multiprocess", "in_process", "assets", "one_op")
HERE: Final = Path(__file__).parent
NODES: Final = "nothings"  # the queue in dagster_jobs, which is imported when the environment is set
WARM: Final = 3
AT_ONCE: Final = 2


def main(
    steps: Annotated[list[int] | None, typer.Option(help="How many; repeatable.", min=1)] = None,
    ways: Annotated[str, typer.Option(help="What to measure, comma-separated.")] = ",".join(WAYS),
    rounds: Annotated[int, typer.Option(help="How often; medians are shown.", min=1)] = 1,
    *,
    quick: Annotated[bool, typer.Option(help="6 steps.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what steps cost."""
    counts, chosen = [6] if quick else (steps or [20, 100]), ways.split(",")
    if unknown := sorted(set(chosen) - set(WAYS)):
        raise typer.BadParameter(f"there is no way {unknown[0]}: {', '.join(WAYS)}", param_hint="--ways")
    os.environ |= {
        "STEPS": ",".join(map(str, {WARM, *counts})),
        "AT_ONCE": str(AT_ONCE),
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }
    with tempfile.TemporaryDirectory(prefix="glidemq-steps-", ignore_cleanup_errors=True) as home:
        machine, rows = measure(Path(home), counts, chosen, rounds)
    if as_json:
        json.dump({"machine": machine, "rows": rows}, sys.stdout)
        return
    out = Console(width=None if sys.stdout.isatty() else 160)
    out.print(f"\n{machine}\nDagster with SQLite, {AT_ONCE} steps at a time\n")
    texts = [{name: f"{value:,}" for name, value in row.items() if name != "as"} for row in rows]
    shown = [{"as": row["as"], **text} for row, text in zip(rows, texts, strict=True)]
    out.print(summary_table("Steps that do nothing", shown))


def measure(home: Path, counts: list[int], ways: list[str], rounds: int) -> tuple[str, list[dict[str, Any]]]:
    """A row for each number of steps and each way; the rounds take turns."""
    import redis  # noqa: PLC0415  only here

    progress = Console(stderr=True)
    (home / "dagster").mkdir()
    (home / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    with EmbeddedServer() as server:
        os.environ |= {"DAGSTER_HOME": str(home / "dagster"), "GLIDEMQ_URL": server.url}
        with redis.Redis.from_url(server.url.replace("valkey", "redis"), decode_responses=True) as client:
            machine = machine_now(client)
        with (
            worker(home, "dagster_glidemq.worker", "dagster-steps"),
            worker(home, "benchmarks.dagster_jobs", NODES),
        ):
            wait_for_workers(server.url)
            for way in ways:
                progress.print(f"warming up: {way}", style="dim")
                one_run(way, WARM)
            found: dict[tuple[int, str], list[dict[str, float]]] = {}
            for number in range(rounds):
                for count in counts:
                    for way in ways:
                        progress.print(f"round {number + 1}/{rounds}: {count:,} steps, {way}", style="dim")
                        figures = one_run(way, count)
                        progress.print(str(figures), style="dim")
                        found.setdefault((count, way), []).append(figures)
    return machine, [
        {
            "as": way,
            "steps": count,
            **{name: statistics.median(one[name] for one in of_way) for name in of_way[0]},
        }
        for (count, way), of_way in found.items()
    ]


def one_run(way: str, count: int) -> dict[str, float]:
    """Run a job once: what it took."""
    import dagster as dg
    from dagster._core.definitions.reconstruct import ReconstructableRepository

    job = ReconstructableRepository.for_module(
        "benchmarks.dagster_jobs", "defs", str(HERE.parent)
    ).get_reconstructable_job(f"{way}_{count}")
    with dg.DagsterInstance.get() as instance:
        before, began = processor_seconds(), time.monotonic()
        with dg.execute_job(job, instance) as result:
            seconds = time.monotonic() - began
            if not result.success:
                raise SystemExit(f"{way}_{count} failed")
        time.sleep(1)  # the last process has ended and is counted
        spent = processor_seconds() - before
    return {
        "s": round(seconds, 1),
        "s a step": round(seconds / count, 3),
        "processor s": round(spent, 1),
        "processor s a step": round(spent / count, 3),
    }


def processor_seconds() -> float:
    """Of this process and all below it, with those that have ended."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def worker(home: Path, app: str, queue: str) -> Iterator[None]:
    """A process that runs what is in the queue."""
    command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--app", app]
    command += ["--queue", queue, "--concurrency", str(AT_ONCE), "--processes", "1"]
    with (home / f"{queue}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=HERE.parent)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def wait_for_workers(url: str) -> None:
    """Until both workers are there."""
    patience = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((QueueNotServed, HandlerNotFound)),
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(60),
        reraise=True,
    )
    with FlowProducer(url) as producer:
        patience(producer.check_workers, {"dagster-steps": [], NODES: ["nothing"]})


if __name__ == "__main__":
    typer.run(main)
