from __future__ import annotations

import logging
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from glidemq_orchestrate.spark import handlers
from glidemq_orchestrate.spark.failures import StepCancelled, StepFailed
from glidemq_orchestrate.spark.handler import run_python_step as registered_step
from glidemq_orchestrate.spark.sessions.classic import PoolNames
from glidemq_orchestrate.spark.sessions.engines import engine_for
from glidemq_orchestrate.spark.steps.run import run_step
from glidemq_orchestrate.worker.handlers.context import Context
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import MakeRun

STEPS = """
    from glidemq_orchestrate.spark import publish
    from concurrent.futures import ThreadPoolExecutor
    from pyspark.sql import functions
    import os, threading, time

    both = threading.Barrier(2, timeout=60)

    def count(spark, ctx, *, rows, parts=4):
        return {"rows": spark.range(0, rows, 1, parts).count(), "location": ctx.data["location"]}

    def fail(spark, ctx):
        raise KeyError("boom")

    def frame(spark, ctx):
        return spark.range(1)

    def slow(spark, ctx, *, parts=200):
        context = spark.sparkContext
        def wait(_):
            time.sleep(0.25)
            yield 1
        return context.parallelize(range(parts), parts).mapPartitions(wait).count()

    def stubborn(spark, ctx):
        for _ in range(100):
            try:
                slow(spark, ctx, parts=40)
            except Exception:
                pass
            if ctx.cancelled.is_set() and spark.conf.get("spark.app.name"):
                return slow(spark, ctx, parts=40)

    def held(spark, ctx, *, go):
        def wait(_):
            while not os.path.exists(go):
                time.sleep(0.05)
            yield 1
        return spark.sparkContext.parallelize([1], 1).mapPartitions(wait).count()

    def writes(spark, ctx, *, file, fails):
        @functions.udf("int")
        def write(row):
            for _ in range(400):
                if row:
                    with open(file, "a") as lines:
                        lines.write(".")
                elif fails and os.path.exists(file):
                    raise ValueError("row 0 is broken")
                time.sleep(0.05)
        return spark.range(0, 2, 1, 2).select(write("id")).collect()

    def meet(spark, ctx, *, name):
        context = spark.sparkContext
        spark.range(len(name)).createOrReplaceTempView("mine")
        both.wait()
        answer = {
            "pool": context.getLocalProperty("spark.scheduler.pool"),
            "tags": sorted(context.getJobTags()),
            "rows": spark.table("mine").count(),
        }
        both.wait()
        return answer

    def settings(spark, ctx):
        names = ("spark.sql.shuffle.partitions", "spark.sql.ansi.enabled", "spark.sql.session.timeZone")
        return [spark.conf.get(name) for name in names]

    def types(spark, ctx, *, file):
        def read():
            return spark.read.schema("at timestamp").csv(file)
        with ThreadPoolExecutor(1) as pool:
            frames = [read(), spark.range(1).selectExpr("id").select(functions.lit("").cast("timestamp"))]
            frames.append(pool.submit(read).result())
        return [frame.schema.fields[0].dataType.typeName() for frame in frames]

    def marks(spark, ctx):
        spark.sparkContext.addJobTag("mine")
        spark.sparkContext.setLocalProperty("mine", "left")

    def copies(spark, ctx, *, folder):
        spark.range(5).write.parquet(folder + "/raw")
        spark.range(5).write.parquet(folder + "/more")
        frame = spark.read.parquet(folder + "/raw", folder + "/more")
        frame.selectExpr("id", "id % 2 as half").write.partitionBy("half").csv(folder + "/out")
        return publish(ctx, folder + "/table", frame)

    class Nested:
        @staticmethod
        def step(spark, ctx):
            return "nested"

    number = 7
"""

NO_STEPS: list[tuple[Any, str]] = [
    (None, "needs an object"),
    ([1], "needs an object"),
    ({}, "needs a callable"),
    ({"callable": 3}, "needs a callable"),
    ({"callable": "json.dumps"}, "step json.dumps: .* package.module:function"),
    ({"callable": "json:"}, "step json:: "),
    ({"callable": "no_such_module:f"}, "step no_such_module:f: importing no_such_module failed"),
    ({"callable": "json:no.such"}, r"step json:no.such: module json \(.*json.*\) has no no.such"),
    ({"callable": "json:dumps", "arguments": [1]}, "step json:dumps: arguments must be an object"),
    ({"callable": "json:dumps", "location": 1}, "step json:dumps: location must be"),
    (
        {"callable": "json:dumps", "lineage": {"inputs": ["x"]}},
        "step json:dumps: lineage: each of inputs",
    ),
    ({"callable": "json:dumps", "conf": [1]}, "step json:dumps: conf must be"),
    ({"callable": "json:dumps", "conf": {"a": {}}}, "step json:dumps: conf must be"),
    ({"callable": "json:dumps", "args": {}}, "step json:dumps: unknown field args"),
]


def run_python_step(ctx: Context) -> Any:
    """In this process."""
    return run_step(engine_for().step, ctx)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"steps_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(STEPS))
    (tmp_path / f"{name}_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_the_first_spark_job_of_a_session_is_announced(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes seconds, in which a worker serves no queue yet."""
    caplog.set_level(logging.INFO, "glidemq_orchestrate.spark")
    engine_for().start()
    assert [line for line in caplog.messages if line.startswith("Spark runs a first job, ")]


def test_a_payload_that_names_no_step_fails_for_good(make_run: MakeRun, subtests: pytest.Subtests) -> None:
    for data, expected in NO_STEPS:
        with subtests.test(data=data):
            with pytest.raises(InvalidCall, match=expected) as caught:
                run_python_step(make_run(data).ctx)
            assert isinstance(caught.value, Unrecoverable)


def test_wrong_names_in_a_users_module_fail_for_good(module: str, make_run: MakeRun) -> None:
    for text, expected in [
        (f"{module}:number", "number is not a function"),
        (f"{module}_broken:f", "ZeroDivisionError"),
        (f"{module}:count", "missing a required argument: 'rows'"),
    ]:
        with pytest.raises(InvalidCall, match=expected):
            run_python_step(make_run({"callable": text}).ctx)


def test_a_module_that_is_not_allowed_is_refused_before_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: MakeRun
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "mine2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "steps.py").write_text(
            f"import os\nfrom pathlib import Path\nPath({str(tmp_path)!r}, {name!r} + '.imported').touch()\n"
        )
    refused = {
        "mine2.steps:f": ["mine"],
        "mine.steps:f": ["mine.steps2", "mine.step", "steps", "min"],
        "min:f": ["mine"],
        ".steps:f": ["mine"],
        "os:system": [],
    }
    for named, allowed in refused.items():
        with pytest.raises(InvalidCall, match=r"may not import .*--allow-import") as caught:
            run_python_step(make_run({"callable": named}, allow_import=allowed).ctx)
        assert isinstance(caught.value, Unrecoverable)
    assert not list(tmp_path.glob("*.imported"))
    with pytest.raises(InvalidCall, match=r"this worker may not import os: it imports from mine\. Fix: "):
        run_python_step(make_run({"callable": "mine.steps:os.getcwd"}, allow_import=["mine"]).ctx)
    assert [file.name for file in tmp_path.glob("*.imported")] == ["mine.imported"]
    with pytest.raises(InvalidCall, match=r"mine\.steps \(.*\) has no f"):
        run_python_step(make_run({"callable": "mine.steps:f"}, allow_import=["other", "mine"]).ctx)


def test_settings_are_for_one_step_alone(module: str, make_run: MakeRun) -> None:
    conf = {"spark.sql.shuffle.partitions": 3, "spark.sql.ansi.enabled": False}
    named = {"callable": f"{module}:settings"}
    before = run_python_step(make_run(named).ctx)
    assert run_python_step(make_run({**named, "conf": conf}).ctx) == ["3", "false", "UTC"]
    assert run_python_step(make_run(named).ctx) == before
    for name in ("spark.driver.memory", "spark.nothing"):
        with pytest.raises(InvalidCall, match=f"{name} is not a setting .*GLIDEMQ_SPARK_CONF"):
            run_python_step(make_run({**named, "conf": {name: "1"}}).ctx)


def test_types_are_those_of_the_settings_of_the_step(module: str, make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").touch()
    named = {"callable": f"{module}:types", "arguments": {"file": str(tmp_path / "rows.csv")}}
    conf = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
    assert run_python_step(make_run({**named, "conf": conf}).ctx) == ["timestamp_ntz"] * 3
    assert run_python_step(make_run(named).ctx) == ["timestamp"] * 3


def test_the_registry_has_the_handlers_and_hooks() -> None:
    assert handlers.names == ["spark.python", "spark.sql", "spark.submit"]
    registered = handlers.get("spark.python")
    assert registered is not None
    assert registered.function is registered_step
    assert (len(handlers.start_hooks), len(handlers.stop_hooks), len(handlers.job_hooks)) == (3, 2, 2)


@pytest.mark.usefixtures("spark")
def test_a_step_runs_with_its_arguments_and_reports_its_stages(module: str, make_run: MakeRun) -> None:
    run = make_run({"callable": f"{module}:count", "arguments": {"rows": 1000}, "location": "/data"})
    assert run_python_step(run.ctx) == {"rows": 1000, "location": "/data"}
    last = run.recorder.reported[-1]
    assert set(last) >= {"stages_done", "stages", "tasks_done", "tasks"}
    assert last["stages_done"] == last["stages"] >= 1
    assert last["tasks_done"] == last["tasks"] >= 4
    assert last["spark_jobs"]
    assert last["ui"].startswith("http://127.0.0.1:")
    assert last["shuffle_write_bytes"] == last["shuffle_read_bytes"] > 0
    assert (last["input_bytes"], last["spilled_bytes"]) == (0, 0)
    assert last["executor_ms"] >= 0


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_what_a_step_has_read_and_written_is_told(module: str, make_run: MakeRun, tmp_path: Path) -> None:
    folder = str(tmp_path / "some data")
    run = make_run({"callable": f"{module}:copies", "arguments": {"folder": folder}})
    run.ctx.epoch = 1_000
    run_python_step(run.ctx)
    told = run.recorder.reported[-1]["lineage"]
    assert told["inputs"] == [f"{folder}/raw", f"{folder}/more"]
    assert told["outputs"] == [f"{folder}/{name}" for name in ("raw", "more", "out", "table")]
    other = make_run({"callable": f"{module}:count", "arguments": {"rows": 10}, "location": "/"})
    run_python_step(other.ctx)
    assert "lineage" not in other.recorder.reported[-1], "what other steps did is theirs"
    assert 0 < other.recorder.reported[-1]["duration_ms"] < 60_000


@pytest.mark.usefixtures("spark")
def test_a_nested_function_is_found(module: str, make_run: MakeRun) -> None:
    assert run_python_step(make_run({"callable": f"{module}:Nested.step"}).ctx) == "nested"


@pytest.mark.usefixtures("spark")
def test_a_steps_own_error_is_passed_on(module: str, make_run: MakeRun) -> None:
    with pytest.raises(KeyError, match="boom"):
        run_python_step(make_run({"callable": f"{module}:fail"}).ctx)


@pytest.mark.usefixtures("spark")
def test_a_result_that_is_not_json_fails_for_good(module: str, make_run: MakeRun) -> None:
    with pytest.raises(InvalidCall, match=f"result of step {module}:frame is not JSON.*DataFrame"):
        run_python_step(make_run({"callable": f"{module}:frame"}).ctx)


def test_progress_comes_while_a_step_runs_and_never_goes_back(
    spark: SparkSession, module: str, make_run: MakeRun
) -> None:
    run = make_run({"callable": f"{module}:slow", "arguments": {"parts": 24}})
    assert run_python_step(run.ctx) == 24
    done = [step["tasks_done"] for step in run.recorder.reported]
    assert len(done) >= 2
    assert done == sorted(done)
    assert done[-1] == 24
    assert len(done) == len({str(step) for step in run.recorder.reported})


@pytest.mark.long
@pytest.mark.parametrize("step", ["slow", "stubborn"])
def test_cancelling_ends_the_spark_jobs_of_the_step_and_of_no_other(
    spark: SparkSession, module: str, make_run: MakeRun, step: str
) -> None:
    doomed = make_run({"callable": f"{module}:{step}"}, node="doomed")
    other = make_run({"callable": f"{module}:slow", "arguments": {"parts": 12}}, node="other")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run_python_step, doomed.ctx)
        second = pool.submit(run_python_step, other.ctx)
        _eventually(lambda: len(spark.sparkContext.statusTracker().getActiveJobsIds()) == 2)
        doomed.cancelled.set()
        began = time.monotonic()
        with pytest.raises(StepCancelled, match=f"step {module}:{step} was cancelled"):
            first.result(timeout=30)
        assert time.monotonic() - began < 10
        assert second.result(timeout=60) == 12
    _eventually(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())


def test_a_cancel_takes_no_python_worker_from_another_step(
    spark: SparkSession, module: str, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment: Any = spark.sparkContext.environment
    monkeypatch.setitem(environment, "GLIDEMQ_TRIAL", module)  # by which Spark starts workers for this test
    go, before = tmp_path / "go", _daemons()
    other = make_run({"callable": f"{module}:held", "arguments": {"go": str(go)}}, node="other")
    doomed = make_run({"callable": f"{module}:slow", "arguments": {"parts": 1}}, node="doomed")
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(run_python_step, other.ctx)
        _eventually(lambda: [one for one in _daemons() - before if one.children()])
        (daemon,) = _daemons() - before
        daemon.suspend()  # a busy machine, on which it takes its time
        try:
            first = pool.submit(run_python_step, doomed.ctx)
            tracker = spark.sparkContext.statusTracker()
            _eventually(lambda: len(tracker.getActiveStageIds()) == 2)
            time.sleep(1)  # its task asks for a worker
            doomed.cancelled.set()
            time.sleep(1)
        finally:
            daemon.resume()
        with pytest.raises(StepCancelled):
            first.result(timeout=30)
        go.touch()
        assert second.result(timeout=30) == 1
    assert daemon in _daemons()


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("fails", [True, False])
def test_functions_of_a_step_that_has_ended_run_no_more(
    module: str, make_run: MakeRun, tmp_path: Path, *, fails: bool
) -> None:
    file = tmp_path / "lines"
    run = make_run({"callable": f"{module}:writes", "arguments": {"file": str(file), "fails": fails}})
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(run_python_step, run.ctx)
        _eventually(file.exists)
        if not fails:
            run.cancelled.set()
        with pytest.raises(StepFailed if fails else StepCancelled):
            step.result(timeout=30)
    written = file.stat().st_size
    time.sleep(0.5)
    assert file.stat().st_size == written


def test_steps_at_the_same_time_have_their_own_pool_tag_and_views(
    spark: SparkSession, module: str, make_run: MakeRun
) -> None:
    names = ["a", "four"]
    runs = [
        make_run({"callable": f"{module}:meet", "arguments": {"name": name}}, node=name) for name in names
    ]
    with ThreadPoolExecutor(2) as pool:
        answers: list[Any] = list(pool.map(lambda run: run_python_step(run.ctx), runs))
    assert {answer["pool"] for answer in answers} == {"glidemq-0", "glidemq-1"}
    assert all(len(answer["tags"]) == 1 for answer in answers)
    assert answers[0]["tags"] != answers[1]["tags"]
    assert [answer["rows"] for answer in answers] == [1, 4]


def test_a_thread_is_clean_after_a_step_and_no_watcher_stays(
    spark: SparkSession, module: str, make_run: MakeRun
) -> None:
    run_python_step(make_run({"callable": f"{module}:count", "arguments": {"rows": 1}, "location": "/"}).ctx)
    with pytest.raises(KeyError):
        run_python_step(make_run({"callable": f"{module}:fail"}).ctx)
    run_python_step(make_run({"callable": f"{module}:marks"}).ctx)
    context = spark.sparkContext
    assert not list(context.getJobTags())
    assert context.getLocalProperty("mine") is None
    for name in (
        "scheduler.pool",
        "jobGroup.id",
        "job.description",
        "job.interruptOnCancel",
        "glidemq.queue",
    ):
        assert context.getLocalProperty(f"spark.{name}") is None
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("watch-")]


def test_pool_names_are_used_again() -> None:
    names = PoolNames()
    with names.lend() as first, names.lend() as second:
        assert (first, second) == ("glidemq-0", "glidemq-1")
    with names.lend() as again:
        assert again == "glidemq-0"


def _daemons() -> set[psutil.Process]:
    """Those that start the Python workers of this session."""
    found = set()
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in one.cmdline() and "java" in (one.parent() or one).name():
                found.add(one)
    return found


def _eventually(holds: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "did not come about in time"
        time.sleep(0.05)
