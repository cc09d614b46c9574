"""What steps of one context do to each other: nothing, however much Spark keeps once for all of them."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.spark.handler import run_python_step
from glidemq_orchestrate.spark.sessions.sharing import context
from glidemq_orchestrate.worker.handlers.signals import RetryLater
from tests.conftest import Eventually
from tests.profile import sampled
from tests.spark.conftest import MakeRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = """
    import threading
    from pathlib import Path
    from pyspark import SparkFiles, StorageLevel

    goes = {}  # name: the event that lets a step go on

    def does(spark, ctx, *, what, waits=None, **given):
        return globals()[what](spark, waits and goes[waits], **given)

    def _pause(go):
        go.begun.set()
        assert go.wait(60)

    def read(spark, go, *, folder):
        return spark.read.parquet(folder).count()

    def keeps(spark, go, *, folder, how="cache", level="DISK_ONLY"):
        frame = spark.read.parquet(folder)
        if how == "cache":
            frame.cache()
        elif how == "persist":
            frame.persist(getattr(StorageLevel, level))
        else:
            frame.createOrReplaceTempView("t")
            spark.sql("cache table t") if how == "sql" else spark.catalog.cacheTable("t")
        before = frame.count()
        if go:
            _pause(go)
        return [before, frame.count(), frame.storageLevel.useDisk or frame.storageLevel.useMemory]

    def draws(spark, go):
        from pyspark.sql.functions import rand, sum
        frame = spark.range(1000).select(rand(7).alias("x")).selectExpr("x", "uuid() as u").cache()
        before = [row.u for row in frame.collect()]
        if go:
            _pause(go)
        return before == [row.u for row in frame.collect()]

    def clears(spark, go, *, how, folder=None):
        if how == "sql":
            spark.sql("clear cache")
        elif how == "path":
            spark.catalog.refreshByPath(folder)
        elif how == "table":
            spark.read.parquet(folder).createOrReplaceTempView("t")
            spark.catalog.uncacheTable("t") if spark.catalog.isCached("t") else None
        else:
            spark.catalog.clearCache()

    def overwrites(spark, go, *, folder):
        spark.range(5).write.mode("overwrite").parquet(folder)

    def shows(spark, go):
        spark.range(1).createOrReplaceGlobalTempView("shown")
        if go:
            _pause(go)
        return spark.newSession().table("global_temp.shown").count()

    def sees(spark, go):
        return spark.table("global_temp.shown").count()

    def drops(spark, go):
        return spark.catalog.dropGlobalTempView("shown")

    def fails(spark, go, *, folder):
        spark.read.parquet(folder).cache().count()
        raise ValueError("after it has cached")

    def works(spark, go, *, group, how):
        context = spark.sparkContext
        context.setJobGroup(group, "mine")
        context.addJobTag(group)
        context.clearJobTags() if how == "all" else None
        def slow(row):
            import time
            time.sleep(1)
            return row
        go.begun.set()
        return context.parallelize(range(4), 2).map(slow).count()

    def cancels(spark, go, *, how):
        context = spark.sparkContext
        context.cancelAllJobs() if how == "all" else getattr(context, how)("load")
        return spark.range(3).count()

    def checkpoints(spark, go, *, folder):
        context = spark.sparkContext
        context.setCheckpointDir(folder)
        if go:
            _pause(go)
        frame = spark.range(3).checkpoint()
        numbers = context.parallelize([1, 2])
        numbers.checkpoint()
        numbers.count()
        here = context.getCheckpointDir()
        assert numbers.getCheckpointFile().startswith(here), numbers.getCheckpointFile()
        assert frame.count() == 3
        assert len(list(Path(here.removeprefix("file:")).iterdir())) == 2
        return here

    def adds(spark, go, *, path, code=False):
        context, name = spark.sparkContext, Path(path).name
        context.addPyFile(path) if code else context.addFile(path)
        if go:
            _pause(go)
        return context.parallelize([1], 1).map(lambda _: Path(SparkFiles.get(name)).read_text()).first()

    def broadcasts(spark, go):
        context = spark.sparkContext
        one, other = context.broadcast(b"1" * 100_000), context.broadcast(2)
        other.destroy()
        assert context.parallelize([1], 1).map(lambda _: len(one.value)).first() == 100_000
        if go:
            _pause(go)
        return context.parallelize([1], 1).map(lambda _: len(one.value)).first()

    def where(spark, go):
        return spark.sparkContext.getCheckpointDir()
"""

pytestmark = pytest.mark.usefixtures("spark")
Step = Callable[..., Any]


class Go(threading.Event):
    """Lets a step go on; ``begun`` is set when it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    name = f"sharing_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(STEPS))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__(name)
    del sys.modules[name]


@pytest.fixture
def step(steps: Any, make_run: MakeRun) -> Step:
    """Runs a step, and returns its result."""

    def run(what: str, **given: Any) -> Any:
        data = {"callable": f"{steps.__name__}:does", "arguments": {"what": what, **given}}
        return run_python_step(make_run(data, node=what).ctx)

    return run


@pytest.fixture
def beside(steps: Any, step: Step) -> Callable[..., Any]:
    """Runs a block while a step waits, and then lets that go on; yields where its result will be."""

    @contextmanager
    def run(what: str, **given: Any) -> Iterator[list[Any]]:
        go, result = Go(), list[Any]()
        steps.goes["go"] = go
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(step, what, waits="go", **given)
            while not go.begun.wait(0.1):
                assert not running.done(), running.result()
            try:
                yield result
            finally:
                go.set()
            result.append(running.result(60))

    return run


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> str:
    path = str(tmp_path / "rows")
    spark.range(10).write.parquet(path)
    return path


class TestCaches:
    @pytest.mark.long
    @pytest.mark.parametrize("how", sampled(["cache", "persist", "sql", "catalog"]))
    def test_the_end_of_a_step_takes_nothing_from_one_that_has_cached_the_same(
        self, step: Step, beside: Any, folder: str, how: str
    ) -> None:
        with beside("keeps", folder=folder, how=how) as result:
            assert step("keeps", folder=folder, how=how) == [10, 10, True]
            step("overwrites", folder=folder)
            assert step("read", folder=folder) == 5  # and reads what is there now
        assert result == [[10, 10, True]]

    @pytest.mark.long
    @pytest.mark.parametrize("how", sampled(["sql", "catalog", "path", "table"]))
    def test_clear_and_refresh_reach_what_the_step_itself_has_cached(
        self, step: Step, beside: Any, folder: str, how: str
    ) -> None:
        with beside("keeps", folder=folder) as result:
            step("clears", how=how, folder=folder)
            step("overwrites", folder=folder)
        assert result == [[10, 10, True]]

    def test_rows_that_differ_each_time_stay_as_they_were_cached(self, step: Step, beside: Any) -> None:
        with beside("draws") as result:
            assert step("draws")
        assert result == [True]

    @pytest.mark.long
    def test_nothing_is_cached_any_more_when_steps_have_ended(
        self, step: Step, folder: str, spark: SparkSession, eventually: Eventually
    ) -> None:
        context: Any = spark.sparkContext._jsc.sc()

        def cached() -> set[int]:
            return {one.id() for one in context.getRDDStorageInfo()}

        before = cached()  # by the program itself, for another test
        with pytest.raises(ValueError, match="after it has cached"):
            step("fails", folder=folder)
        for how in ("cache", "persist", "sql", "catalog"):
            step("keeps", folder=folder, how=how)
        eventually(lambda: cached() <= before, timeout=10)

    def test_java_has_the_session_of_the_program_again(self, step: Step, spark: SparkSession) -> None:
        own: Any = spark._jsparkSession
        sessions = getattr(spark._jvm, own.getClass().getName())
        sessions.setActiveSession(own)
        assert step("draws")
        assert sessions.getActiveSession().get().equals(own)

    @pytest.mark.long
    def test_what_the_program_has_cached_stays(self, step: Step, folder: str, spark: SparkSession) -> None:
        frame = spark.read.parquet(folder).cache()
        assert frame.count() == 10
        step("keeps", folder=folder)
        step("clears", how="catalog")
        assert frame.storageLevel.useMemory
        step("overwrites", folder=folder)
        assert frame.count() == 10
        frame.unpersist()


def test_global_views_are_those_of_a_step_and_of_the_program(
    step: Step, beside: Any, spark: SparkSession
) -> None:
    with beside("shows") as result:
        assert step("drops") is False
        assert step("shows") == 1
        spark.range(7).createOrReplaceGlobalTempView("shown")
        assert step("sees") == 7
        assert step("drops") is True
        assert step("sees") == 7
        spark.catalog.dropGlobalTempView("shown")
    assert result == [1]


@pytest.mark.long
def test_an_unknown_release_of_spark_shares_the_cache_and_says_so(
    step: Step, folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(context, "_PLACE", "elsewhere")
    monkeypatch.setattr(context, "_latest", None)
    assert step("keeps", folder=folder) == [10, 10, True]
    assert "share what they cache" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("how", ["all", "cancelJobGroup", "cancelJobsWithTag"])
def test_a_step_cancels_jobs_of_its_own_only(
    step: Step, beside: Any, spark: SparkSession, eventually: Eventually, how: str
) -> None:
    with beside("works", group="load", how=how) as result:
        eventually(lambda: spark.sparkContext.statusTracker().getActiveJobsIds(), timeout=30)
        assert step("cancels", how=how) == 3
    assert result == [4]


@pytest.mark.long
def test_each_step_has_a_directory_of_checkpoints(
    step: Step, beside: Any, tmp_path: Path, spark: SparkSession
) -> None:
    before = spark.sparkContext.getCheckpointDir()
    with beside("checkpoints", folder=str(tmp_path / "a")) as result:
        assert str(tmp_path / "b") in step("checkpoints", folder=str(tmp_path / "b"))
        assert step("where") == before
    assert str(tmp_path / "a") in result[0]
    assert spark.sparkContext.getCheckpointDir() == before


class TestFiles:
    """Spark has those of ``addFile`` once for a context, and fails all of its tasks when two differ."""

    @pytest.fixture
    def two(self, tmp_path: Path) -> list[str]:
        paths = [tmp_path / folder / f"{tmp_path.name}.py" for folder in "ab"]
        for path in paths:
            path.parent.mkdir()
            path.write_text(f"from = {path.parent.name!r}")
        return [str(path) for path in paths]

    @pytest.mark.long
    def test_a_file_ends_with_the_step_that_has_added_it(self, step: Step, two: list[str]) -> None:
        assert step("adds", path=two[0]) == "from = 'a'"
        Path(two[0]).write_text("changed")
        assert step("adds", path=two[1]) == "from = 'b'"
        assert step("adds", path=two[0]) == "changed"

    @pytest.mark.long
    def test_two_steps_may_add_the_same_and_not_another_of_its_name(
        self, step: Step, beside: Any, two: list[str]
    ) -> None:
        with beside("adds", path=two[0]) as result:
            assert step("adds", path=two[0]) == "from = 'a'"
            with pytest.raises(RetryLater, match=r"has added a different file .*; it runs again"):
                step("adds", path=two[1])
        assert result == ["from = 'a'"]

    @pytest.mark.long
    def test_code_of_a_name_that_was_there_needs_another_python(self, step: Step, two: list[str]) -> None:
        assert step("adds", path=two[0], code=True) == "from = 'a'"
        with pytest.raises(RetryLater, match=r'use "session": "own"'):
            step("adds", path=two[1], code=True)
        assert step("adds", path=two[0], code=True) == "from = 'a'"


@pytest.mark.long
def test_broadcast_variables_end_with_their_step(step: Step, beside: Any, spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    folder = Path(context._temp_dir)
    before = set(folder.iterdir())
    with beside("broadcasts") as result:
        assert step("broadcasts") == 100_000
        assert len(set(folder.iterdir()) - before) == 1
    assert result == [100_000]
    assert set(folder.iterdir()) <= before
