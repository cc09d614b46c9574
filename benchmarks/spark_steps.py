"""What a Spark step costs above its action: ``python -m benchmarks.spark_steps``.

One worker with a warm session on this machine runs steps that count rows. Each step takes the time of its own
action and returns it, so every run is a pair: the whole, from adding the job to having its result, and the
bare action inside. ``spark-submit`` runs the same action as a program of its own, in turns with the steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import redis
import typer
from rich.console import Console

from benchmarks.report import machine_now
from glidemq_orchestrate import EmbeddedServer, Queue
from glidemq_orchestrate.cli.shell import summary_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from glidemq_orchestrate import Context

ROWS: Final = 1_000_000
LIMIT: Final = timedelta(seconds=300)
PROGRAM: Final = f"""
from pyspark.sql import SparkSession
print(SparkSession.builder.getOrCreate().range({ROWS}).selectExpr("sum(id)").collect()[0][0])
"""


def total(spark: SparkSession, ctx: Context) -> float:
    """Run the action: the milliseconds that it takes."""
    del ctx
    began = time.perf_counter()
    spark.range(ROWS).selectExpr("sum(id)").collect()
    return (time.perf_counter() - began) * 1_000


def main(
    rounds: Annotated[int, typer.Option(help="How many steps, after ten to warm up.", min=1)] = 100,
    submits: Annotated[int, typer.Option(help="How many runs of spark-submit.", min=0)] = 3,
    *,
    quick: Annotated[bool, typer.Option(help="Five steps, without spark-submit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure what a step costs above its action."""
    rounds, submits, warm = (5, 0, 1) if quick else (rounds, submits, 10)
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        with redis.Redis.from_url(server.url.replace("valkey", "redis"), decode_responses=True) as client:
            machine = machine_now(client)
        figures = measure(server.url, Path(folder), rounds, submits, warm)
    if as_json:
        json.dump({"machine": machine, "figures": figures}, sys.stdout)
        return
    out = Console(width=None if sys.stdout.isatty() else 160)
    out.print(f"\n{machine}\nlocal[2], {rounds} steps\n")
    out.print(summary_table("A step that sums a million numbers, in ms", [figures]))


def measure(url: str, folder: Path, rounds: int, submits: int, warm: int) -> dict[str, float]:
    """The figures, in milliseconds."""
    environment = {**os.environ, "GLIDEMQ_SPARK_MASTER": "local[2]", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = ["-m", "glidemq_orchestrate", "worker", "--url", url, "--queue", "spark", "--app"]
    command += ["glidemq_orchestrate.spark", "--allow-import", "benchmarks.spark_steps"]
    program = folder / "total.py"
    program.write_text(PROGRAM)
    with (folder / "log").open("wb") as log, Queue("spark", url) as queue:
        worker = subprocess.Popen([sys.executable, *command], env=environment, stdout=log, stderr=log)
        try:
            whole, bare, submitted = [], [], []
            for number in range(-warm, rounds):
                began = time.perf_counter()
                inside = _step(queue)
                if number >= 0:
                    whole.append((time.perf_counter() - began) * 1_000)
                    bare.append(inside)
                    if submits and number % -(-rounds // submits) == 0:
                        submitted.append(_submit(program, environment))
        finally:
            worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                worker.wait(30)
            worker.kill()
    above = sorted(one - inside for one, inside in zip(whole, bare, strict=True))
    found = {
        "bare action": statistics.median(bare),
        "whole step": statistics.median(whole),
        "above": statistics.median(above),
        "above p90": above[int(len(above) * 0.9)],
    }
    if submitted:
        found["spark-submit"] = statistics.median(submitted)
    return {name: round(value, 1) for name, value in found.items()}


def _step(queue: Queue) -> float:
    data: Any = {"callable": "benchmarks.spark_steps:total"}
    inside: Any = queue.add_and_wait("spark.python", data, timeout=LIMIT)
    return float(inside)


def _submit(program: Path, environment: dict[str, str]) -> float:
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    began = time.perf_counter()
    subprocess.run(
        [str(submit), "--master", "local[2]", str(program)], env=environment, capture_output=True, check=True
    )
    return (time.perf_counter() - began) * 1_000


if __name__ == "__main__":
    typer.run(main)
