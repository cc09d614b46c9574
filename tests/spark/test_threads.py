"""Threads that a step has started are a part of it: they have its session, and end with it."""

from __future__ import annotations

import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.spark.failures import StepCancelled
from glidemq_orchestrate.spark.handler import run_python_step
from glidemq_orchestrate.spark.sessions.sharing.current import StepEnded
from tests.conftest import Eventually
from tests.spark.conftest import MakeRun, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = """
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.pool import ThreadPool

    pool = ThreadPoolExecutor(1)
    pools = []
    told = []  # what threads have done, and when

    def _write_again_and_again(spark, folder):
        while True:
            try:
                spark.range(3).write.mode("overwrite").parquet(folder)
            except Exception as exc:  # as a library does that tries again
                told.append((type(exc).__name__, time.monotonic()))
                if type(exc).__name__ == "StepEnded":
                    return
            else:
                told.append(("wrote", time.monotonic()))

    def leaves_a_writer(spark, ctx, *, folder, waits):
        threading.Thread(target=_write_again_and_again, args=(spark, folder), daemon=True).start()
        while not any(what == "wrote" for what, _ in told):
            time.sleep(0.01)
        while waits:
            spark.range(3).count()

    def _session(spark):
        from pyspark.sql import SparkSession
        return SparkSession.getActiveSession() is spark

    def in_a_pool(spark, ctx):
        return pool.submit(_session, spark).result()

    def waits_in_a_pool(spark, ctx):
        def slow(row):
            time.sleep(0.2)
            return row
        rows = spark.sparkContext.parallelize(range(1000), 100)
        return pool.submit(lambda: rows.map(slow).count()).result()

    def counts_slowly_in_a_thread(spark, ctx):
        rows = spark.sparkContext.parallelize([1], 1).map(lambda row: time.sleep(2) or row)
        with ThreadPoolExecutor(1) as own:
            return own.submit(rows.count).result()

    def counts_in_a_pool_of_another_kind(spark, ctx):
        if not pools:
            pools.append(ThreadPool(1))
        return pools[0].apply(lambda: spark.range(3).count())

    def streams_by_batches(spark, ctx):
        seen = []
        def each(frame, number):
            seen.append([frame.count(), _session(spark)])
            frame.sparkSession.sparkContext.cancelAllJobs()
        source = spark.readStream.format("rate").option("rowsPerSecond", 5).load()
        query = source.writeStream.foreachBatch(each).trigger(once=True).start()
        query.awaitTermination(30)
        return seen

    def streams(spark, ctx, *, waits):
        query = spark.readStream.format("rate").load().writeStream.format("noop").start()
        told.append(query)
        if waits:
            query.awaitTermination()
"""

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the steps."""
    name = f"threads_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(STEPS))
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(name)
    yield module
    module.pool.shutdown(wait=False)
    for pool in module.pools:
        pool.terminate()
    del sys.modules[name]


def begun(run: Run) -> Any:
    """Run a step in a thread."""
    return ThreadPoolExecutor(1).submit(run_python_step, run.ctx)


def test_a_time_out_that_another_step_has_given_all_sockets_ends_no_call(
    steps: Any, make_run: MakeRun
) -> None:
    socket.setdefaulttimeout(1)
    try:
        assert run_python_step(make_run({"callable": f"{steps.__name__}:counts_slowly_in_a_thread"}).ctx) == 1
    finally:
        socket.setdefaulttimeout(None)


@pytest.mark.long
def test_each_step_may_have_functions_that_java_calls(
    steps: Any, make_run: MakeRun, eventually: Eventually, spark: SparkSession
) -> None:
    beside = begun(make_run({"callable": f"{steps.__name__}:counts_slowly_in_a_thread"}))
    eventually(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), timeout=30)
    for _ in range(2):  # the first one starts the server of Py4J
        step = {"callable": f"{steps.__name__}:streams_by_batches"}
        assert run_python_step(make_run(step).ctx) == [[0, True]]
    assert beside.result(30) == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_what_a_step_leaves_behind_writes_no_more_when_it_has_ended(
    steps: Any, make_run: MakeRun, tmp_path: Path, eventually: Eventually, *, is_cancelled: bool
) -> None:
    folder = str(tmp_path / "out")
    arguments = {"folder": folder, "waits": is_cancelled}
    run = make_run({"callable": f"{steps.__name__}:leaves_a_writer", "arguments": arguments})
    running = begun(run)
    eventually(lambda: steps.told, timeout=60)
    if is_cancelled:
        run.cancelled.set()
        with pytest.raises(StepCancelled):
            running.result(30)
    else:
        running.result(30)
    ended = time.monotonic()
    eventually(lambda: steps.told[-1][0] == "StepEnded", timeout=10)
    assert "wrote" not in [what for what, moment in steps.told if moment > ended]


def test_what_a_step_submits_to_a_pool_that_outlives_it_is_its_own(steps: Any, make_run: MakeRun) -> None:
    for _ in range(2):
        assert run_python_step(make_run({"callable": f"{steps.__name__}:in_a_pool"}).ctx) is True


def test_a_cancel_reaches_what_runs_in_such_a_pool(
    steps: Any, make_run: MakeRun, spark: SparkSession, eventually: Eventually
) -> None:
    run_python_step(make_run({"callable": f"{steps.__name__}:in_a_pool"}).ctx)
    run = make_run({"callable": f"{steps.__name__}:waits_in_a_pool"})
    running = begun(run)
    eventually(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), timeout=60)
    run.cancelled.set()
    begins = time.monotonic()
    with pytest.raises(StepCancelled):
        running.result(30)
    assert time.monotonic() - begins < 8


def test_a_thread_of_an_earlier_step_is_told_that_it_has_no_session(steps: Any, make_run: MakeRun) -> None:
    data = {"callable": f"{steps.__name__}:counts_in_a_pool_of_another_kind"}
    assert run_python_step(make_run(data).ctx) == 3
    with pytest.raises(StepEnded, match="create a thread pool in the step that uses it"):
        run_python_step(make_run(data).ctx)


@pytest.mark.parametrize("waits", [False, True])
def test_streams_of_a_step_end_with_it(
    steps: Any, make_run: MakeRun, eventually: Eventually, *, waits: bool
) -> None:
    run = make_run({"callable": f"{steps.__name__}:streams", "arguments": {"waits": waits}})
    running = begun(run)
    eventually(lambda: steps.told, timeout=60)
    if waits:
        run.cancelled.set()
    running.result(30)
    assert not steps.told[0].isActive


def test_calls_of_others_wait_for_nothing(steps: Any, spark: SparkSession) -> None:
    """A thread that no step has started calls as before."""
    del steps
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: spark.range(3).count()).result() == 3
