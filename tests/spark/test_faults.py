"""Kills in the middle of the steps of a flow, on a real standalone cluster: its data are right once."""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.spark import read_published

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Eventually
    from tests.spark.conftest import SparkWorkers, Start

pytestmark = pytest.mark.long

STEPS = """
    import time
    from pathlib import Path
    from glidemq_orchestrate.spark import publish, read_published

    def _held(marker):
        # The first of all attempts that comes here waits for the fault: a file that was made once stays.
        begun, go = Path(marker + ".begun"), Path(marker + ".go")
        try:
            begun.open("x").close()
        except FileExistsError:
            return
        until = time.monotonic() + 120
        while not go.exists() and time.monotonic() < until:
            time.sleep(0.05)

    def part(spark, ctx, *, number, folder, marker):
        def rows(index, ids):
            if number == 1:
                _held(marker)
            return ((one, number) for one in ids)
        numbers = spark.sparkContext.parallelize(range(number * 100, number * 100 + 100), 2)
        frame = numbers.mapPartitionsWithIndex(rows).toDF("id long, part int")
        return publish(ctx, folder, frame, partition_by=["part"], replace="partitions")

    def total(spark, ctx, *, folder):
        table = read_published(spark, folder)
        return [table.count(), table.select("id").distinct().count(), sorted(ctx.inputs)]
"""
PARTS = 3


FAULTS = {
    "worker": "",
    "session host": "spark.host_process",
    "JVM": "org.apache.spark.deploy.SparkSubmit",
    "executor": "CoarseGrainedExecutorBackend",
    "Python worker": "pyspark.daemon",
}
"""What is killed, by a text of its command line."""


def _kill(text: str, among: list[psutil.Process]) -> None:
    found = []
    for one in among:
        with suppress(psutil.Error):
            if text in " ".join(one.cmdline()):
                found.append(one)
    assert found, f"no process {text}"
    for one in found:
        one.kill()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_flow_completes_after_a_kill_and_its_table_is_right_once(  # noqa: PLR0917  fixtures
    start: Start, master: str, spark_workers: SparkWorkers, url: str, tmp_path: Path,
    eventually: Eventually, spark: SparkSession, fault: str,
) -> None:  # fmt: skip
    spark_workers.add(master)
    (tmp_path / "fault_steps.py").write_text(textwrap.dedent(STEPS))
    folder, marker = str(tmp_path / "table"), str(tmp_path / "held")
    conf = {
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(tmp_path),
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
    }

    def serve() -> Any:
        return start(
            sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", url, "--queue", "spark",
            "--app", "glidemq_orchestrate.spark", "--allow-import", "fault_steps", "--lease", "3",
            GLIDEMQ_SPARK_MASTER=master, GLIDEMQ_SPARK_CONF=json.dumps(conf), PYTHONPATH=str(tmp_path),
            SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable,
        )  # fmt: skip

    def node(name: str, step: str, after: list[str], **arguments: Any) -> FlowNode:
        data: Any = {"callable": f"fault_steps:{step}", "arguments": {"folder": folder, **arguments}}
        return FlowNode(name, queue="spark", job="spark.python", data=data, after=after)

    parts = [node(f"part{n}", "part", [], number=n, marker=marker) for n in range(PARTS)]
    names = [one.name for one in parts]
    worker = psutil.Process(serve().pid)
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("faults", [*parts, node("total", "total", names)]))
        eventually(Path(f"{marker}.begun").exists, timeout=120)
        if fault == "worker":
            worker.kill()
        else:
            _kill(FAULTS[fault], [*worker.children(recursive=True), *spark_workers.below()])
        Path(f"{marker}.go").touch()
        if fault == "worker":
            serve()
        outcome = flow.wait(timeout=timedelta(seconds=200))
        attempts = {one.name: one.attempts for one in flow.nodes()}
    assert outcome.results["total"] == [PARTS * 100, PARTS * 100, names]
    table = read_published(spark, folder)
    assert sorted(row.id for row in table.collect()) == list(range(PARTS * 100))
    assert set(attempts.values()) == {1}  # none of these is the fault of a step
