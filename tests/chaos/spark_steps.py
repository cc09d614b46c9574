"""What steps of Spark do in a round: in a session host, or with a driver of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from glidemq_orchestrate import Context, Unrecoverable
from glidemq_orchestrate.lifeline.guard import processes
from glidemq_orchestrate.spark import publish, read_published
from glidemq_orchestrate.testing.chaos.ledger import Ledger
from tests.chaos.in_process import FOLDER, Told, cures_of, decide, ledger_of, say
from tests.chaos.mutations import BY_NAME as DEFECTS
from tests.chaos.mutations import VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER: Final = "GLIDEMQ_CHAOS_SPARK_WORKER"
"""The environment variable that all that a Spark worker starts has: its process id."""
ROWS: Final = 50
SHARED: Final = "all"
"""The table into which every step publishes, each its own partition."""
DRIVER_SECONDS: Final = 30.0
"""A driver may take so long to end after its worker: its patience, and its grace."""


def publish_rows(spark: SparkSession, ctx: Context, *, step: dict[str, Any]) -> dict[str, Any]:
    """Publish rows with the name of this run to a table of the node's own and to the shared one; then end.

    Also an attempt that fails has published by then: nobody may ever see that.
    """
    from pyspark.sql.functions import lit  # noqa: PLC0415  of an extra

    _have_the_defect()
    tell_processes(spark)
    _check_inputs(spark, ctx)
    say(ctx, step)
    place, folder = f"{step['flow']}~{ctx.node}", Path(os.environ[FOLDER], "tables")
    run = f"{ctx.token}:{ctx.job_id}"
    rows = spark.range(ROWS).select("id", lit(run).alias("run"), lit(place).alias("place"))
    own = publish(ctx, str(folder / quote(place)), rows)
    shared = publish(ctx, str(folder / SHARED), rows, partition_by=["place"], replace="partitions")
    ctx.cancelled.wait(step["ms"] / 1000)
    value = decide(Told(step, ctx.attempt, ctx.node, ctx.inputs), cures_of(Path(os.environ[FOLDER])))
    return {"value": value, "own": own, "shared": shared}


@cache
def _have_the_defect() -> None:
    """Let this process have that of its worker, if there is one."""
    if name := os.environ.get(VARIABLE):
        DEFECTS[name].begin()


def tell_processes(spark: SparkSession) -> None:
    """Write to the ledger in which process and JVM a step runs; both must end with the worker."""
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    worker, host = int(os.environ[WORKER]), os.getpid()
    _tell("host", host, [worker])
    _tell("jvm", jvm, [worker, host])


def _tell(what: str, pid: int, above: list[int], grace: float = 0.0) -> None:
    ledger = Ledger(ledger_of(Path(os.environ[FOLDER])), "spark")
    if found := processes().get(pid):  # else it has just been killed
        ledger.write("child", child=pid, above=above, started=found.started, what=what, grace=grace)
    ledger.close()


def _check_inputs(spark: SparkSession, ctx: Context) -> None:
    """What the steps before this one have published is what their accepted runs have written."""
    inputs: Mapping[str, Any] = ctx.inputs
    for name, value in inputs.items():
        if value and "own" in value:
            found = read_published(spark, value["own"]).groupBy("run").count().collect()
            if [(row["run"], row["count"]) for row in found] != [(value["run"], ROWS)]:
                raise Unrecoverable(f"{name} has published {found}, and its accepted run is {value['run']}")


def main(arguments: list[str]) -> None:
    """Be the program of a ``spark.submit`` step: its data, then the results of its dependencies."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  of an extra

    keeper = processes()[os.getppid()].parent  # of the JVM of spark-submit
    _tell("keeper", keeper, [])
    _tell("driver", os.getpid(), [keeper], DRIVER_SECONDS)
    step, *inputs = (json.loads(argument) for argument in arguments)
    job = json.loads(os.environ["GLIDEMQ_JOB"])
    spark = SparkSession.builder.getOrCreate()
    if spark.range(ROWS).count() != ROWS:
        raise RuntimeError("the rows are not there")
    told = Told(step, job["attempt"], job["node"], {value["node"]: value for value in inputs if value})
    value = decide(told, cures_of(Path(os.environ[FOLDER])))
    Path(os.environ["GLIDEMQ_RESULT"]).write_text(json.dumps({"value": value}), encoding="utf-8")
    spark.stop()
