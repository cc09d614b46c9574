"""Workers on a real standalone cluster: a master, and a worker of one core."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec, JobState, Queue
from tests.command_line import shown_node
from tests.processes import end

if TYPE_CHECKING:
    from tests.conftest import Eventually
    from tests.spark.conftest import Start

pytestmark = pytest.mark.long

STEPS = """
    def count(spark, ctx):
        return spark.sparkContext.parallelize(range(10), 2).count()
"""
HOG = """
import sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[1]).config("spark.executor.memory", "512m").getOrCreate()
spark.range(3).count()
open(sys.argv[2], "w").close()
time.sleep(600)
"""


@pytest.fixture
def worker(start: Start, master: str, url: str, tmp_path: Path) -> Start:
    (tmp_path / "cluster_steps.py").write_text(textwrap.dedent(STEPS))
    conf = {
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
    }

    def serve(queue: str, more: Mapping[str, str] = EMPTY, **environment: str) -> Any:
        return start(
            sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", url, "--queue", queue,
            "--app", "glidemq_orchestrate.spark", "--allow-import", "cluster_steps",
            GLIDEMQ_SPARK_MASTER=master, GLIDEMQ_SPARK_CONF=json.dumps({**conf, **more}),
            PYTHONPATH=str(tmp_path), SPARK_LOCAL_IP="127.0.0.1", **environment,
        )  # fmt: skip

    return serve


EMPTY: Mapping[str, str] = MappingProxyType({})
DATA: Any = {"callable": "cluster_steps:count"}
LONG = timedelta(seconds=150)


def test_a_second_worker_gets_the_cores_that_the_first_does_not_use(worker: Start, url: str) -> None:
    with Queue("one", url) as one, Queue("two", url) as two:
        worker("one")
        assert one.add_and_wait("spark.python", DATA, timeout=LONG) == 10
        worker("two")
        assert two.add_and_wait("spark.python", DATA, timeout=LONG) == 10
        assert one.add_and_wait("spark.python", DATA, timeout=LONG) == 10


def test_a_step_that_gets_no_executor_says_so_and_fails(  # noqa: PLR0917  fixtures
    worker: Start, start: Start, master: str, url: str, eventually: Eventually, tmp_path: Path
) -> None:
    hog = start(sys.executable, "-c", HOG, master, str(tmp_path / "held"), SPARK_LOCAL_IP="127.0.0.1")
    eventually((tmp_path / "held").exists, timeout=120)
    nodes = [FlowNode("a", queue="one", job="spark.python", data=DATA)]
    with Queue("one", url) as queue, FlowProducer(url) as flows:
        worker("one", GLIDEMQ_SPARK_EXECUTOR_TIMEOUT="20")
        flow = flows.submit(FlowSpec("n", nodes), flow_id="ID", require_workers=False)
        job_id = flow.node("a").job_id

        def waits() -> bool:
            progress: Any = queue.get_job(job_id).progress
            return isinstance(progress, dict) and progress.get("waiting_for_executors_s", 0) >= 10

        eventually(waits, timeout=120)
        eventually(lambda: queue.get_job(job_id).state is JobState.FAILED, timeout=60)
        assert "no executor ran anything of step cluster_steps:count for 20 s" in str(
            queue.get_job(job_id).failed_reason
        )
        assert "no executor runs anything" in shown_node(url, "ID", "a")
        end(hog)
        assert queue.add_and_wait("spark.python", DATA, timeout=LONG) == 10


def test_executors_that_cannot_start_are_told(worker: Start, url: str, eventually: Eventually) -> None:
    """The master ends such an application, and with it the session."""
    with Queue("one", url) as queue:
        worker("one", {"spark.executorEnv.JAVA_HOME": "/nowhere"})
        job_id = queue.add("spark.python", DATA)
        eventually(lambda: queue.get_job(job_id).state is JobState.FAILED, timeout=240)
        reason = str(queue.get_job(job_id).failed_reason)
        assert "Master removed our application: FAILED" in reason
        assert "its executors end when they start: their stderr" in reason
        assert "out of memory" not in reason
