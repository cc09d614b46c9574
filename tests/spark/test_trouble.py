"""What a step does wrong harms no other, and is told in a sentence."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from glidemq_orchestrate import FlowNode, FlowProducer, FlowSpec
from glidemq_orchestrate.spark import handler
from glidemq_orchestrate.spark.failures import StepCancelled, StepFailed
from glidemq_orchestrate.spark.handler import Losses, SessionLost, run_python_step
from glidemq_orchestrate.spark.sessions.warm import warm_session
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.signals import RetryLater

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Eventually, RunWorker
    from tests.spark.conftest import MakeRun

STEPS = """
    import contextlib, sys, threading, time
    from concurrent.futures import ThreadPoolExecutor
    from pyspark.sql import SparkSession, functions as F

    def slow(spark, parts=200):
        def wait(_):
            time.sleep(0.25)
            yield 1
        return spark.sparkContext.parallelize(range(parts), parts).mapPartitions(wait).count()

    def missing(spark, ctx):
        spark.read.parquet("/no/such/path").count()

    def corrupt(spark, ctx, *, path):
        spark.read.schema("a int").parquet(path).collect()

    def of_rows(spark, ctx):
        @F.udf("int")
        def checked(number):
            raise ValueError("row of March is broken")
        spark.range(2).select(checked("id")).collect()

    def lock(spark, ctx):
        held = threading.Lock()
        spark.sparkContext.parallelize([1]).map(lambda _: held).collect()

    def driver(spark, ctx):
        options = {"url": "jdbc:postgresql://h/x", "dbtable": "t", "driver": "org.postgresql.Driver"}
        spark.read.format("jdbc").options(**options).load()

    def stops(spark, ctx):
        spark.stop()
        spark.sparkContext.stop()
        SparkSession.builder.getOrCreate().stop()
        return spark.range(3).count()

    def leaves(spark, ctx):
        sys.exit(3)

    def active(spark, ctx, *, name):
        spark.range(len(name)).createOrReplaceTempView("mine")
        found = []
        def look():
            found.append(SparkSession.getActiveSession().table("mine").count())
            found.append(SparkSession.builder.getOrCreate().table("mine").count())
            found.append(SparkSession.active().table("mine").count())
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        SparkSession.builder.config("spark.sql.shuffle.partitions", 7).getOrCreate()
        return [*found, spark.conf.get("spark.sql.shuffle.partitions")]

    def in_threads(spark, ctx, *, how):
        if how == "pool":
            with ThreadPoolExecutor(2) as pool:
                return sum(pool.map(lambda _: slow(spark, 100), range(2)))
        threads = [threading.Thread(target=slow, args=(spark, 100)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def left_behind(spark, ctx):
        threading.Thread(target=quiet, args=(spark,)).start()
        time.sleep(1)

    def quiet(spark):
        with contextlib.suppress(Exception):
            slow(spark)

    def waits(spark, ctx):
        return slow(spark, 24)

    async def waits_for_nothing(spark, ctx):
        return 1

    def in_a_file(spark, ctx, *, path):
        open(path + "/x", "w")

    def ends_the_jvm(spark, ctx):
        spark.sparkContext._jvm.java.lang.Runtime.getRuntime().halt(1)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"trouble_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(STEPS))
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.fixture(autouse=True)
def _no_suspects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "losses", Losses())


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("missing", r"^\[PATH_NOT_FOUND\] Path does not exist: file:/no/such/path\. Fix: check that"),
        (
            "corrupt",
            r"^RuntimeException: file:.*/bad\.parquet is not a Parquet file\..* Fix: the file",
        ),
        ("of_rows", r"^ValueError: row of March is broken \(in checked, .*trouble_of_.*\.py:\d+\)$"),
        ("lock", r"cannot pickle '_thread\.lock' object\. Fix: a function for the executors"),
        ("driver", r"^ClassNotFoundException: org\.postgresql\.Driver\. Fix: the session lacks"),
    ],
)
def test_the_cause_comes_first_and_what_to_do_and_the_stack_is_in_the_log(
    step: str, expected: str, module: str, make_run: MakeRun, tmp_path: Path
) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    arguments = {"path": str(tmp_path / "bad.parquet")} if step == "corrupt" else {}
    run = make_run({"callable": f"{module}:{step}", "arguments": arguments})
    with pytest.raises(StepFailed, match=expected) as caught:
        run_python_step(run.ctx)
    assert len(str(caught.value)) < 1_800
    assert "\tat " not in str(caught.value)
    if step in ("corrupt", "driver"):
        assert any(line.startswith("\tat ") for line in run.recorder.lines)


@pytest.mark.usefixtures("spark")
def test_a_step_that_is_async_and_a_location_that_is_a_file_are_told(
    module: str, make_run: MakeRun, tmp_path: Path
) -> None:
    with pytest.raises(InvalidCall, match=r"is async: a Spark step must be a plain function"):
        run_python_step(make_run({"callable": f"{module}:waits_for_nothing"}).ctx)
    (file := tmp_path / "file").touch()
    run = make_run({"callable": f"{module}:in_a_file", "arguments": {"path": str(file)}})
    with pytest.raises(StepFailed, match=r"^NotADirectoryError: .*/file/x'\. Fix: the location"):
        run_python_step(run.ctx)


def test_stop_in_a_step_does_nothing(
    spark: SparkSession, module: str, make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    assert run_python_step(make_run({"callable": f"{module}:stops"}).ctx) == 3
    assert warm_session.get() is spark
    assert spark.range(4).count() == 4
    assert "stop() was ignored in a step" in caplog.text


def test_a_step_that_exits_harms_no_other(spark: SparkSession, module: str, make_run: MakeRun) -> None:
    with pytest.raises(SystemExit):
        run_python_step(make_run({"callable": f"{module}:leaves"}).ctx)
    assert warm_session.get() is spark
    assert not list(spark.sparkContext.getJobTags())


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_the_active_session_is_that_of_the_step(module: str, make_run: MakeRun) -> None:
    runs = [
        make_run({"callable": f"{module}:active", "arguments": {"name": name}}, node=name)
        for name in ("a", "four")
    ]
    with ThreadPoolExecutor(2) as pool:
        found: list[Any] = list(pool.map(lambda run: run_python_step(run.ctx), runs))
    assert found == [[1] * 6 + ["7"], [4] * 6 + ["7"]]
    assert warm_session.get().conf.get("spark.sql.shuffle.partitions") == "4"


@pytest.mark.parametrize("how", [pytest.param("pool", marks=pytest.mark.long), "threads"])
def test_a_cancel_reaches_the_threads_of_a_step(
    spark: SparkSession, module: str, make_run: MakeRun, how: str, eventually: Eventually
) -> None:
    run = make_run({"callable": f"{module}:in_threads", "arguments": {"how": how}})
    tracker = spark.sparkContext.statusTracker()
    with ThreadPoolExecutor(1) as pool, quiet_threads():
        step = pool.submit(run_python_step, run.ctx)
        eventually(lambda: len(tracker.getActiveJobsIds()) == 2, 30)
        run.cancelled.set()
        began = time.monotonic()
        eventually(lambda: not tracker.getActiveJobsIds(), 10)
        if how == "pool":
            with pytest.raises(StepCancelled):
                step.result(timeout=20)
        step.exception(timeout=20)
        assert time.monotonic() - began < 10


@pytest.mark.long
def test_what_a_step_leaves_running_is_ended_with_it(
    spark: SparkSession, module: str, make_run: MakeRun, eventually: Eventually
) -> None:
    run_python_step(make_run({"callable": f"{module}:left_behind"}).ctx)
    eventually(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds(), 5)


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "by a step"])
def test_a_lost_session_costs_its_steps_no_attempt(
    spark: SparkSession, module: str, make_run: MakeRun, how: str, eventually: Eventually
) -> None:
    runs = [make_run({"callable": f"{module}:waits"}, node=name) for name in ("one", "two")]
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(run_python_step, run.ctx) for run in runs]
        eventually(lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds()) == 2, 30)
        if how == "killed":
            next(
                child for child in psutil.Process().children(recursive=True) if child.name() == "java"
            ).kill()
        else:
            bad = make_run({"callable": f"{module}:ends_the_jvm"}, node="bad")
            found.append(pool.submit(run_python_step, bad.ctx))
        for one in found:
            with pytest.raises(RetryLater, match="the Spark session was lost; it runs again") as caught:
                one.result(timeout=60)
            assert not caught.value.counts
        again: list[Any] = list(pool.map(lambda run: run_python_step(run.ctx), runs))
    assert again == [24, 24]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_step_that_ends_every_session_is_to_blame(module: str, make_run: MakeRun) -> None:
    run = make_run({"callable": f"{module}:ends_the_jvm"})
    for _ in range(handler.MAX_FREE_LOSSES):
        with pytest.raises(RetryLater):
            run_python_step(run.ctx)
    with pytest.raises(
        SessionLost, match="session was lost \\(3 times in a row\\): its driver ran out of memory"
    ):
        run_python_step(run.ctx)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_jobs_of_a_worker_outlive_its_jvm(
    url: str, run_worker: RunWorker, module: str, eventually: Eventually
) -> None:
    run_worker(["spark"], handler.handlers, allow_import=[module])
    names = [("waits", "one"), ("waits", "two"), ("leaves", "exits")]
    nodes = [
        FlowNode(
            name,
            queue="spark",
            job="spark.python",
            data={"callable": f"{module}:{step}"},
            on_failure="ignore",
        )
        for step, name in names
    ]
    with FlowProducer(url) as flows:
        flow = flows.submit(FlowSpec("trouble", nodes))
        eventually(lambda: len(warm_session.get().sparkContext.statusTracker().getActiveJobsIds()) == 2, 60)
        next(child for child in psutil.Process().children(recursive=True) if child.name() == "java").kill()
        outcome = flow.wait(timeout=timedelta(seconds=120))
        found = {node.name: (str(node.state), node.attempts) for node in flow.nodes()}
    assert outcome.results == {"one": 24, "two": 24}
    assert found == {"one": ("completed", 1), "two": ("completed", 1), "exits": ("failed", 1)}


@contextmanager
def quiet_threads() -> Iterator[None]:
    """Errors of threads that a step has started are expected."""
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        yield
    finally:
        threading.excepthook = hook
