"""Tables that steps publish: right once, whatever is killed, stopped or late."""

from __future__ import annotations

import re
import signal
import sys
import textwrap
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, JobOptions, JobState, Queue
from glidemq_orchestrate.spark import NotPublished, handlers, publish, published_path, read_published, tidy
from glidemq_orchestrate.spark.published import acceptance, catching_up
from glidemq_orchestrate.spark.published import reading as before
from glidemq_orchestrate.spark.published.locations.store import HadoopStore, LocalStore
from glidemq_orchestrate.spark.published.locations.target import Folder
from glidemq_orchestrate.spark.published.locations.version import Publication, name_of, newest_first
from glidemq_orchestrate.spark.published.reading import after_dependencies
from glidemq_orchestrate.worker.handlers.context import Reporter
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable
from tests.processes import end, spawn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Eventually, RunWorker

STEPS = """
    import time
    from pathlib import Path
    from glidemq_orchestrate.spark import publish, publish_files, published_path, read_published

    def table(spark, ctx, *, rows, folder):
        frame = spark.range(rows).selectExpr("id", "cast(id % 2 as string) as half")
        return {"rows": rows, **publish(ctx, folder, frame)}

    def days(spark, ctx, *, day, rows, folder):
        frame = spark.range(rows).selectExpr("id", f"'{day}' as day")
        return publish(ctx, folder, frame, partition_by=["day"], replace="partitions")

    def waits(spark, ctx, *, rows, folder, go):
        if ctx.attempt == 1 and not Path(go + ".begun").exists():
            Path(go + ".begun").touch()
            while not Path(go).exists():
                time.sleep(0.05)
        return publish(ctx, folder, spark.range(rows))

    def counted(spark, ctx, *, node):
        return read_published(spark, ctx.inputs[node]).count()

    def looks_away(spark, ctx):
        return 0

    def newest(spark, ctx, *, folder):
        return read_published(spark, folder).count()

    def overwrites(spark, ctx, *, folder):
        def slowly(rows):
            for row in rows:
                time.sleep(6 if number == 1 else 0)
                yield row
        number = ctx.attempt
        some = spark.sparkContext.parallelize([(n,) for n in range(8)], 2)
        frame = some.mapPartitions(slowly).toDF("n int")
        frame.write.mode("overwrite").parquet(folder)
        return ctx.attempt

    def report(spark, ctx, *, folder):
        return publish_files(ctx, folder, lambda where: (where / "report.txt").write_text("done"))
"""


@pytest.fixture(scope="module", autouse=True)
def _steps(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("package")
    (folder / "published_steps.py").write_text(textwrap.dedent(STEPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        yield


class Owner(Reporter):
    """A worker that still owns the job."""

    def check_owner(self) -> None:
        """It does."""


def context(epoch: int) -> Context:
    return Context("spark", "j", "spark.python", 1, {}, {}, None, None, Owner(), epoch=epoch, token="t")


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def written(spark: SparkSession, location: Path, epoch: int, sql: str, **options: Any) -> Any:
    """Publish and accept the rows of a statement."""
    ctx = context(epoch)
    result = publish(ctx, str(location), spark.sql(sql), **options)
    Folder(LocalStore(location)).make(name_of(ctx))
    return result


def versions(location: Path) -> list[str]:
    """What counts there; a file that is being written does not yet."""
    names = LocalStore(location).names("versions")
    return newest_first(name.removesuffix(".json") for name in names if name.endswith(".json"))


def test_a_step_reads_at_least_what_the_steps_before_it_have_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A step begins when the result before it is accepted, a moment before its version is made."""
    location = str(tmp_path / "table")
    old = publish(context(1_000), location, spark.range(2))
    read_published(spark, old)
    new = publish(context(2_000), location, spark.range(5))
    other = publish(context(3_000), str(tmp_path / "other"), spark.range(7))
    with after_dependencies({"clean": {"tables": [new, other]}, "more": {"rows": 1}}, spark):
        assert read_published(spark, location).count() == 5
    assert read_published(spark, location).count() == 5, "it counts from now on"
    assert read_published(spark, str(tmp_path / "other")).count() == 7


def test_more_than_are_made_before_a_step_are_made_when_they_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before, "MAX_VERSIONS_MADE", 0)
    new = publish(context(2_000), str(tmp_path), spark.range(5))
    with after_dependencies({"clean": new}, spark):
        with pytest.raises(NotPublished):
            read_published(spark, str(tmp_path / "other"))
        assert not versions(tmp_path)
        assert read_published(spark, str(tmp_path)).count() == 5


def test_a_step_of_a_worker_knows_what_came_before_it(
    url: str, tmp_path: Path, warm_handlers: Handlers, run_worker: RunWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance.accepted, "make", lambda *_: None)  # the versions are late
    folder = str(tmp_path / "table")
    data: Any = {"callable": "published_steps:table", "arguments": {"rows": 9, "folder": folder}}
    reads: Any = {"callable": "published_steps:newest", "arguments": {"folder": folder}}
    nodes = [FlowNode("t", queue="spark", job="spark.python", data=data)]
    looks_away: Any = {"callable": "published_steps:looks_away"}
    nodes += [FlowNode("m", queue="spark", job="spark.python", data=looks_away, after=["t"])]
    nodes += [FlowNode("n", queue="spark", job="spark.python", data=reads, after=["m"])]
    run_worker(["spark"], warm_handlers, url=url, allow_import=["published_steps"])
    with FlowProducer(url) as flows:
        results: Any = flows.submit(FlowSpec("p", nodes)).result(timeout=timedelta(seconds=120))
    assert results["n"] == 9


class TestTables:
    def test_a_table_is_replaced_and_a_result_shows_its_own(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        first = written(spark, tmp_path, 1, "select 1 as a, 'x' as `odd ``name.` union all select 2, null")
        second = written(spark, tmp_path, 2, "select 7 as a")
        assert first["published"]["rows"] == 2
        assert first["published"]["columns"] == ["a", "odd `name."]
        assert first["published"]["schema_digest"] != second["published"]["schema_digest"]
        assert rows(read_published(spark, str(tmp_path))) == [(7,)]
        assert read_published(spark, first).columns == ["a", "odd `name."]
        assert rows(read_published(spark, first).where("a = 1")) == [(1, "x")]
        assert rows(read_published(spark, {"nested": second})) == [(7,)]

    def test_an_empty_table_is_one(self, spark: SparkSession, tmp_path: Path) -> None:
        for epoch, sql in enumerate(("select 1 as a where false", "select 1 as a limit 0"), start=1):
            assert written(spark, tmp_path, epoch, sql)["published"]["rows"] == 0
            assert rows(read_published(spark, str(tmp_path))) == []
        empty = spark.createDataFrame([], "a int, day string")
        ctx = context(3)
        publish(ctx, str(tmp_path), empty, partition_by=["day"])
        Folder(LocalStore(tmp_path)).make(name_of(ctx))
        assert read_published(spark, str(tmp_path)).columns == ["a", "day"]
        assert rows(read_published(spark, str(tmp_path))) == []

    def test_partitions_are_replaced_one_by_one(self, spark: SparkSession, tmp_path: Path) -> None:
        by: Any = {"partition_by": ["day", "n"]}
        values = (
            "select a, day, n from values (1, 'mon', 1), (2, 'tue', 1), (3, 'a/b=c d', 2) as t(a, day, n)"
        )
        written(spark, tmp_path, 1, values, **by)
        more = "select 20 as a, 'tue' as day, 1 as n union all select 4, null, 9"
        written(spark, tmp_path, 2, more, replace="partitions", **by)
        frame = read_published(spark, str(tmp_path))
        assert frame.columns == ["a", "day", "n"]
        assert sorted((row.a, row.day or "", row.n) for row in frame.collect()) == [
            (1, "mon", 1), (3, "a/b=c d", 2), (4, "", 9), (20, "tue", 1),
        ]  # fmt: skip
        assert [row.a for row in frame.where("day = 'tue'").collect()] == [20]
        written(spark, tmp_path, 3, "select 5 as a, 'wed' as day, 1 as n", **by)
        assert rows(read_published(spark, str(tmp_path))) == [(5, "wed", 1)]

    def test_types_stay_and_columns_may_be_added(self, spark: SparkSession, tmp_path: Path) -> None:
        by: Any = {"partition_by": ["code"], "replace": "partitions"}
        written(spark, tmp_path, 1, "select 1 as a, '007' as code", **by)
        written(spark, tmp_path, 2, "select 2 as a, 'new' as b, '008' as code", **by)
        found = {row.code: (row.a, row.b) for row in read_published(spark, str(tmp_path)).collect()}
        assert found == {"007": (1, None), "008": (2, "new")}

    def test_a_column_is_the_same_whatever_its_case(self, spark: SparkSession, tmp_path: Path) -> None:
        one: Any = {"partition_by": ["day"], "replace": "partitions"}
        written(spark, tmp_path, 1, "select 'a' as v, 1 as day union all select 'b', 2", **one)
        other: Any = {"partition_by": ["Day"], "replace": "partitions"}
        told = written(spark, tmp_path, 2, "select 'NEW' as V, 1 as Day", **other)
        assert told["published"]["columns"] == ["v", "day"]
        assert sorted(rows(read_published(spark, str(tmp_path)))) == [("NEW", 1), ("b", 2)]

    def test_a_column_keeps_its_type_or_grows(self, spark: SparkSession, tmp_path: Path) -> None:
        by: Any = {"partition_by": ["day"], "replace": "partitions"}
        written(
            spark, tmp_path, 1, "select 7 as n, cast(1 as decimal(5, 2)) as d, array(1) as a, 1 as day", **by
        )
        grown = "select 3000000000 as n, cast(2 as decimal(9, 2)) as d, array(2) as a, 2 as day"
        written(spark, tmp_path, 2, grown, **by)
        small = "select 8 as n, cast(3 as decimal(5, 2)) as d, null as a, 3 as day"
        written(spark, tmp_path, 3, small, **by)
        found = read_published(spark, str(tmp_path))
        assert dict(found.dtypes) == {"n": "bigint", "d": "decimal(9,2)", "a": "array<int>", "day": "int"}
        assert [(row.n, row.d, row.a) for row in found.orderBy("day").collect()] == [
            (7, 1, [1]), (3_000_000_000, 2, [2]), (8, 3, None),
        ]  # fmt: skip
        for odd, told in (
            (
                "'A7' as n, 1 as day",
                "column n is string, and the table at .* has n as bigint: cast it to that",
            ),
            ("1.5D as N, 1 as day", "column N is double, and the table at .* has n as bigint"),
            ("1 as n, '01' as day", "column day is string, and the table at .* has day as int"),
            ("1 as n, array('x') as a, 1 as day", "column a is array<string>, .* has a as array<int>"),
            ("1 as n, cast(1 as decimal(9, 4)) as d, 1 as day", r"column d is decimal\(9,4\)"),
        ):
            with pytest.raises(Unrecoverable, match=told):
                written(spark, tmp_path, 4, f"select {odd}", **by)
        assert read_published(spark, str(tmp_path)).count() == 3

    def test_an_empty_version_keeps_the_partitions_of_the_table(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        by: Any = {"partition_by": ["day"], "replace": "partitions"}
        written(spark, tmp_path, 1, "select 'a' as v, 1 as day", **by)
        written(spark, tmp_path, 2, "select 'a' as v, 1 as day limit 0", **by)
        hour: Any = {"partition_by": ["hour"], "replace": "partitions"}
        with pytest.raises(Unrecoverable, match="is partitioned by day, not by hour"):
            written(spark, tmp_path, 3, "select 'x' as v, 1 as hour", **hour)

    def test_partitions_by_time_are_the_same_in_every_zone(self, spark: SparkSession, tmp_path: Path) -> None:
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        by: Any = {"partition_by": ["at"], "replace": "partitions"}
        written(session, tmp_path, 1, "select 1 as a, timestamp_seconds(1767229200) as at", **by)
        for reader in (spark, session):
            (row,) = read_published(reader, str(tmp_path)).selectExpr("unix_seconds(at) as at").collect()
            assert row.at == 1767229200

    def test_partitions_of_a_table_that_has_none_or_others_are_refused(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        written(spark, tmp_path, 1, "select 1 as a, 'mon' as day")
        one: Any = {"partition_by": ["day"], "replace": "partitions"}
        with pytest.raises(Unrecoverable, match="partitioned by nothing, not by day: publish all of it once"):
            written(spark, tmp_path, 2, "select 1 as a, 'mon' as day", **one)
        two: Any = {"partition_by": ["day", "hour"], "replace": "all"}
        written(spark, tmp_path, 3, "select 1 as a, 'mon' as day, 2 as hour", **two)
        with pytest.raises(Unrecoverable, match="partitioned by day, hour, not by day"):
            written(spark, tmp_path, 4, "select 1 as a, 'mon' as day, 2 as hour", **one)
        three: Any = {"partition_by": ["hour", "day"], "replace": "partitions"}
        with pytest.raises(Unrecoverable, match="by day, hour, not by hour, day"):
            written(spark, tmp_path, 5, "select 1 as a, 'mon' as day, 2 as hour", **three)

    @pytest.mark.parametrize("format_", ["csv", "json", "orc"])
    def test_other_formats_are_read_as_they_were_written(
        self, spark: SparkSession, tmp_path: Path, format_: str
    ) -> None:
        options = {"header": "true", "sep": ";"} if format_ == "csv" else {}
        written(spark, tmp_path, 1, "select 1 as a, 'x;y' as b", format=format_, options=options)
        assert rows(read_published(spark, str(tmp_path))) == [(1, "x;y")]

    def test_what_cannot_be_is_refused(self, spark: SparkSession, tmp_path: Path) -> None:
        for wrong in ({"replace": "some"}, {"replace": "partitions"}):
            odd: Any = wrong
            with pytest.raises(Unrecoverable, match="replace must be"):
                publish(context(1), str(tmp_path), spark.range(1), **odd)
        with pytest.raises(NotPublished, match="nothing is published"):
            read_published(spark, str(tmp_path))

    def test_a_uri_is_written_by_the_file_systems_of_spark(self, spark: SparkSession, tmp_path: Path) -> None:
        store = HadoopStore(tmp_path.as_uri(), spark)
        assert (store.names("none"), store.read("none"), store.folders("none")) == ([], None, [])
        store.create("versions/1.json", "grün")
        store.create("versions/1.json", "another")
        store.create("versions/2.json", "b")
        assert sorted(store.names("versions")) == ["1.json", "2.json"]
        assert (store.folders(""), store.read("versions/1.json")) == (["versions"], "grün")
        store.remove("versions/1.json")
        store.remove("versions/1.json")
        assert store.names("versions") == ["2.json"]
        store.remove("versions")
        assert store.names("") == []


def test_the_example_of_the_documentation_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "published-data.md"
    text = page.read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "publish(ctx" in one]
    names: dict[str, Any] = {}
    exec(block.replace("/lake", str(tmp_path)), names)
    for epoch, (day, count) in enumerate((("2026-01-01", 2), ("2026-01-02", 3), ("2026-01-01", 4)), start=1):
        spark.range(count).write.mode("overwrite").json(f"{tmp_path}/raw/{day}")
        ctx = context(epoch)
        result = names["clean"](spark, ctx, day=day)
        Folder(LocalStore(tmp_path / "orders")).make(name_of(ctx))
    assert names["total"](spark, replace(context(4), inputs={"clean": result})) == {"rows": 7, "new": 4}


@pytest.fixture
def queue(url: str) -> Any:
    with Queue("spark", url) as one:
        yield one


def step(name: str, after: list[str] | None = None, **arguments: Any) -> FlowNode:
    data: Any = {"callable": f"published_steps:{name}", "arguments": arguments}
    return FlowNode(name, queue="spark", job="spark.python", data=data, after=after or [])


@pytest.mark.usefixtures("_spark_environment")
class TestWorkers:
    def test_what_a_flow_publishes_is_seen_when_it_is_done(  # noqa: PLR0917  fixtures
        self, spark: SparkSession, url: str, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        table, files = str(tmp_path / "table"), str(tmp_path / "files")
        spec = FlowSpec(
            "published",
            [
                step("table", rows=5, folder=table),
                step("counted", ["table"], node="table"),
                step("report", ["counted"], folder=files),
            ],
        )
        with FlowProducer(url) as flows:
            results = flows.submit(spec).wait(timeout=timedelta(seconds=60)).results
        assert results["counted"] == 5
        eventually(lambda: versions(Path(files)))
        assert read_published(spark, table).count() == 5
        assert (published_path(files) / "report.txt").read_text() == "done"

    @pytest.mark.long
    def test_days_that_are_published_at_the_same_time_are_all_there(
        self, spark: SparkSession, url: str, run_worker: RunWorker, eventually: Eventually, tmp_path: Path
    ) -> None:
        run_worker(["spark"], handlers, allow_import=["published_steps"], concurrency=4)
        nodes = []
        for number in range(6):
            node = step("days", day=f"d{number}", rows=number + 1, folder=str(tmp_path))
            nodes.append(FlowNode(f"day{number}", queue=node.queue, job=node.job, data=node.data))
        with FlowProducer(url) as flows:
            flows.submit(FlowSpec("days", nodes)).wait(timeout=timedelta(seconds=90))
        eventually(lambda: len(versions(tmp_path)) == 6)
        found = read_published(spark, str(tmp_path)).groupBy("day").count().collect()
        assert {row.day: row["count"] for row in found} == {f"d{number}": number + 1 for number in range(6)}

    @pytest.mark.long
    def test_an_attempt_that_timed_out_ends_before_the_next_overwrites(
        self, spark: SparkSession, queue: Queue, run_worker: RunWorker, tmp_path: Path
    ) -> None:
        run_worker(["spark"], handlers, allow_import=["published_steps"], concurrency=2)
        folder = str(tmp_path / "table")
        spark.range(3).write.parquet(folder)
        options = JobOptions(attempts=2, timeout=timedelta(seconds=10))
        data = step("overwrites", folder=folder).data
        assert queue.add_and_wait("spark.python", data, options=options, timeout=timedelta(seconds=90)) == 2
        assert rows(spark.read.parquet(folder)) == [(n,) for n in range(8)]

    def test_what_a_worker_could_not_make_is_made_by_the_next(  # noqa: PLR0917  fixtures
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        with monkeypatch.context() as patch:  # as if it was killed between the two
            patch.setattr(acceptance.accepted, "make", lambda *_: None)
            first = run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
            data = step("table", rows=3, folder=str(tmp_path)).data
            queue.add_and_wait("spark.python", data, timeout=timedelta(seconds=60))
            first.stop()
        assert versions(tmp_path) == []
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.2)
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        eventually(lambda: versions(tmp_path), timeout=20)

    @pytest.mark.parametrize("gone", ["with its job", "its job removed", "its flow run again"])
    def test_a_version_is_made_though_its_job_is_gone(  # noqa: PLR0917
        self, url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, redis_client: Any, warm_handlers: Handlers, gone: str,
    ) -> None:  # fmt: skip
        """Accepted while ``versions`` cannot be written, or by a worker that dies right after it."""
        node = step("table", rows=3, folder=str(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr(acceptance.accepted, "make", lambda *_: None)
            first = run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
            if gone == "its flow run again":
                with FlowProducer(url) as flows:
                    flow = flows.submit(FlowSpec("f", [node]), flow_id="f")
                    flow.wait(timeout=timedelta(seconds=60))
                    first.stop()
                    flows.submit(FlowSpec("f", [node]), flow_id="f", on_existing="restart").cancel("enough")
            else:
                options = JobOptions(remove_on_complete=gone == "with its job")
                job_id = queue.add("spark.python", node.data, options=options)
                eventually(lambda: redis_client.exists("glide:{spark}:gmo:published"), timeout=60)
                first.stop()
                if gone == "its job removed":
                    queue.remove(job_id)
        assert versions(tmp_path) == []
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.2)
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        eventually(lambda: versions(tmp_path), timeout=20)
        eventually(lambda: not redis_client.exists("glide:{spark}:gmo:published"), timeout=20)

    def test_what_was_accepted_and_is_gone_is_told_once_and_noted_no_more(  # noqa: PLR0917  fixtures
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch, redis_client: Any, caplog: pytest.LogCaptureFixture,
        warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        stays = Publication(str(tmp_path / "file"), "7-0123456789ab")
        (tmp_path / "file").touch()  # where a folder should be
        lost = Publication(str(tmp_path / "gone"), "8-0123456789ab")
        lines = {
            one: float(number) for number, one in enumerate([lost.line, stays.line, "of a later release"])
        }
        redis_client.zadd("glide:{spark}:gmo:published", lines)
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.05)
        run_worker(["spark"], warm_handlers, allow_import=["published_steps"])
        eventually(lambda: redis_client.zcard("glide:{spark}:gmo:published") == 2, timeout=30)
        job_id = queue.add("spark.python", step("looks_away").data)
        eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=60)
        assert caplog.text.count("was accepted but cannot be made") == 2
        assert "its data were removed. Fix: run the job again" in caplog.text

    @pytest.mark.long
    def test_a_worker_that_was_stopped_before_it_wrote_changes_nothing(  # noqa: PLR0917  fixtures
        self, spark: SparkSession, url: str, queue: Queue, run_worker: RunWorker, eventually: Eventually,
        tmp_path: Path, warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        table, go = tmp_path / "table", tmp_path / "go"
        command = [sys.executable, "-m", "glidemq_orchestrate", "worker", "--url", url, "--queue", "spark"]
        command += ["--app", "glidemq_orchestrate.spark", "--allow-import", "published_steps", "--lease", "1"]
        stopped = spawn(command)
        try:
            data = step("waits", rows=4, folder=str(table), go=str(go)).data
            job_id = queue.add("spark.python", data)
            eventually(go.with_name("go.begun").exists, timeout=60)
            stopped.send_signal(signal.SIGSTOP)
            run_worker(["spark"], warm_handlers, allow_import=["published_steps"], lease=timedelta(seconds=1))
            eventually(lambda: queue.get_job(job_id).state is JobState.COMPLETED, timeout=60)
            eventually(lambda: versions(table))
            before = rows(read_published(spark, str(table)))
            go.touch()
            stopped.send_signal(signal.SIGCONT)
            eventually(lambda: len(LocalStore(table).names("attempts")) == 2, timeout=30)
            marker = queue.add("spark.python", step("table", rows=1, folder=str(tmp_path / "other")).data)
            eventually(lambda: queue.get_job(marker).state is JobState.COMPLETED, timeout=30)
        finally:
            end(stopped)
        assert len(versions(table)) == 1
        assert rows(read_published(spark, str(table))) == before == [(n,) for n in range(4)]
        assert tidy(str(table), grace=timedelta(0)) == 1
        assert rows(read_published(spark, str(table))) == before
