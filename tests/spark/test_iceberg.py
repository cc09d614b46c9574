"""Tables of Iceberg that steps publish: each accepted attempt is there once, whoever commits it and when."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.utils.config import Config

from glidemq_orchestrate import Context, FlowNode, FlowProducer, FlowSpec, Queue
from glidemq_orchestrate.errors import LeaseLost
from glidemq_orchestrate.spark import NotPublished, publish, publish_iceberg, read_published, tidy
from glidemq_orchestrate.spark.published import acceptance, catching_up
from glidemq_orchestrate.spark.published import publish as iceberg_publish
from glidemq_orchestrate.spark.published.locations.iceberg.table import TableChanged, loaded
from glidemq_orchestrate.spark.published.locations.store import LocalStore
from glidemq_orchestrate.spark.published.locations.target import target_of
from glidemq_orchestrate.spark.published.locations.version import name_of, publications_in
from glidemq_orchestrate.spark.published.publish import write_counted
from glidemq_orchestrate.spark.published.reading import after_dependencies
from glidemq_orchestrate.spark.sessions.engines import engine_for
from glidemq_orchestrate.spark.steps.run import run_step
from glidemq_orchestrate.spark.steps.sql import ALLOW_VARIABLE, SQL_JOB
from glidemq_orchestrate.worker.handlers.context import Reporter
from glidemq_orchestrate.worker.handlers.handler import Handlers
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Eventually, RunWorker
    from tests.spark.conftest import MakeRun

TABLE = "lake.sales.orders"
STEPS = """
    from glidemq_orchestrate.spark import publish_iceberg, read_published

    def orders(spark, ctx, *, day, rows):
        frame = spark.range(rows).selectExpr("id", f"date'{day}' as day")
        return publish_iceberg(ctx, "lake.sales.orders", frame, replace="partitions", partition_by=["day"])

    def total(spark, ctx):
        mine = sum(read_published(spark, result).count() for result in ctx.inputs.values())
        return [mine, read_published(spark, "iceberg:lake.sales.orders").count()]
"""


@pytest.fixture(autouse=True)
def _catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog in a file, as its users configure it."""
    (tmp_path / "lake").mkdir()
    for name, value in {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path / 'catalog.db'}",
        "WAREHOUSE": (tmp_path / "lake").as_uri(),
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "iceberg_steps.py").write_text(textwrap.dedent(STEPS))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.setattr(
        pyiceberg.catalog, "_ENV_CONFIG", Config()
    )  # it reads its settings when it is imported
    loaded.cache_clear()
    load_catalog("lake")  # which makes the tables of the catalog


class Owner(Reporter):
    """A worker that still owns the job."""

    def check_owner(self) -> None:
        """It does."""


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue("spark", url) as one:
        yield one


class Nobody(Reporter):
    """One that does not."""

    def check_owner(self) -> None:
        raise LeaseLost("this attempt no longer owns job j")


def context(epoch: int, reports: Reporter | None = None) -> Context:
    reports = reports or Owner()
    return Context("spark", "j", "spark.python", 1, {}, {}, None, None, reports, epoch=epoch, token="t")


def wrote(spark: SparkSession, epoch: int, sql: str, **options: Any) -> Any:
    """Publish the rows of a statement; nobody has accepted them yet."""
    return publish_iceberg(context(epoch), TABLE, spark.sql(sql), **options)


def made(spark: SparkSession, result: Any) -> bool:
    """What happens when its result is accepted."""
    (place,) = publications_in(result)
    return target_of(place.location, spark).make(place.name)


def published(spark: SparkSession, epoch: int, sql: str, **options: Any) -> Any:
    result = wrote(spark, epoch, sql, **options)
    assert made(spark, result)
    return result


def table() -> Any:
    return load_catalog("lake").load_table("sales.orders")


def rows() -> list[tuple[Any, ...]]:
    """What any other engine sees."""
    found = table().scan().to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def others(number: int) -> None:
    """Somebody else adds a row."""
    one = table()
    one.append(pa.table({"n": [number]}, schema=one.schema().as_arrow()))


def expire() -> None:
    """Somebody lets all snapshots but the newest expire."""
    one = table()
    newest = one.current_snapshot().snapshot_id
    ids = [snapshot.snapshot_id for snapshot in one.snapshots() if snapshot.snapshot_id != newest]
    one.maintenance.expire_snapshots().by_ids(ids).commit()


def commits() -> int:
    return len(table().snapshots())


class TestTables:
    def test_a_table_is_made_and_replaced_and_a_result_shows_its_own(self, spark: SparkSession) -> None:
        first = published(spark, 1_000, "select id, 'a' as name from range(3)")
        assert rows() == [(0, "a"), (1, "a"), (2, "a")]
        second = published(spark, 2_000, "select 7L as id, 'b' as name")
        assert rows() == [(7, "b")]
        assert read_published(spark, first).count() == 3
        assert [tuple(row) for row in read_published(spark, second).collect()] == [(7, "b")]
        assert [tuple(row) for row in read_published(spark, f"iceberg:{TABLE}").collect()] == [(7, "b")]
        assert first["published"]["rows"] == 3
        assert first["published"]["columns"] == ["id", "name"]
        assert first["published"]["path"].startswith(str(Path(table().location().removeprefix("file://"))))

    def test_an_empty_frame_empties_the_table(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select id from range(3)")
        assert published(spark, 2_000, "select id from range(3) where id > 5")["published"]["rows"] == 0
        assert rows() == []
        assert read_published(spark, f"iceberg:{TABLE}").count() == 0

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            ("string", ["'a/b=c'", "''", "'n'", "'ü %'", "null"]),
            ("date", ["date'2026-01-31'", "date'0001-01-01'", "null"]),
            ("int", ["-5", "0", "null"]),
            ("decimal(20,10)", ["0.0000000001", "-12.5", "null"]),
            ("boolean", ["true", "false", "null"]),
        ],
    )
    def test_partitions_of_any_value_are_replaced_one_by_one(
        self, spark: SparkSession, kind: str, values: list[str]
    ) -> None:
        every = " union all ".join(f"select 1 as n, cast({value} as {kind}) as p" for value in values)
        published(spark, 1_000, every, partition_by=["p"], replace="partitions")
        before = rows()
        assert len(before) == len(values)
        for number, value in enumerate(values, start=2):
            one = f"select {number} as n, cast({value} as {kind}) as p"
            published(spark, number * 1_000, one, replace="partitions")
        after = rows()
        assert sorted(row[0] for row in after) == list(range(2, len(values) + 2))
        assert sorted((row[1] for row in after), key=repr) == sorted((row[1] for row in before), key=repr)

    def test_a_table_by_days_is_replaced_day_by_day(self, spark: SparkSession) -> None:
        times = (
            "select timestamp'2026-01-01 23:59:59.999' + make_interval(0, 0, 0, id) as at, id from range(3)"
        )
        published(spark, 1_000, f"{times} limit 0")
        with table().update_spec() as spec:
            spec.add_field("at", DayTransform(), "day")
        published(spark, 2_000, times, replace="partitions")
        published(spark, 3_000, "select timestamp'2026-01-02 00:00:00' as at, 9L as id", replace="partitions")
        assert [(row[0].day, row[1]) for row in rows()] == [(1, 0), (2, 9), (3, 2)]
        elsewhere = spark.newSession()
        elsewhere.conf.set("spark.sql.session.timeZone", "America/New_York")
        with pytest.raises(Unrecoverable, match=r"spark\.sql\.session\.timeZone to UTC"):
            wrote(elsewhere, 4_000, times)

    def test_rows_are_added(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1 as n", replace="nothing")
        published(spark, 2_000, "select 2 as n", replace="nothing")
        assert rows() == [(1,), (2,)]

    def test_columns_are_those_of_the_table(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1L as n, 'a' as name, timestamp'2026-01-01 00:00:00' as at")
        spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
        published(spark, 2_000, "select timestamp'2026-02-01 00:00:00' as at, 5 as n", replace="nothing")
        assert rows()[1][:2] == (5, None)
        with pytest.raises(Unrecoverable, match="the table has no column more"):
            wrote(spark, 3_000, "select 1L as n, 2 as more")
        with pytest.raises(Unrecoverable, match="does not fit the table"):
            wrote(spark, 3_000, "select array(1) as n")

    def test_what_others_deleted_and_added_is_read_as_it_is(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select id, 'a' as name from range(3)")
        table().delete("id = 1")
        with table().update_schema() as schema:
            schema.rename_column("name", "title")
        frame = read_published(spark, f"iceberg:{TABLE}")
        assert sorted(tuple(row) for row in frame.collect()) == [(0, "a"), (2, "a")]
        assert frame.columns == ["id", "title"]

    def test_a_statement_writes_rows_for_a_table(
        self, spark: SparkSession, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ALLOW_VARIABLE, "1")
        to: dict[str, Any] = {
            "location": f"iceberg:{TABLE}",
            "partition_by": ["day"],
            "replace": "partitions",
        }
        data = {"sql": "select :n as n, 'monday' as day", "args": {"n": 7}, "publish": to}
        one = make_run(data, allow_import=[])
        one.ctx.name, one.ctx.epoch = SQL_JOB, 1_000
        assert made(spark, run_step(engine_for().step, one.ctx))
        assert rows() == [(7, "monday")]
        refused = make_run({**data, "publish": {**to, "format": "orc"}}, allow_import=[])
        refused.ctx.name = SQL_JOB
        with pytest.raises(InvalidCall, match="publish must be an object of"):
            run_step(engine_for().step, refused.ctx)

    def test_what_cannot_be_is_refused(self, spark: SparkSession) -> None:
        with pytest.raises(Unrecoverable, match="replace must be one of all, partitions, nothing"):
            wrote(spark, 1_000, "select 1 as n", replace="some")
        with pytest.raises(Unrecoverable, match="the frame has no column day"):
            wrote(spark, 1_000, "select 1 as n", partition_by=["day"])
        with pytest.raises(NotPublished, match=r"there is no table lake\.sales\.nothing"):
            read_published(spark, "iceberg:lake.sales.nothing")
        with pytest.raises(Unrecoverable, match="publish_iceberg writes rows for it"):
            publish(context(1_000), "iceberg:lake.sales.orders", spark.range(1))
        published(spark, 1_000, "select 1 as n")
        with pytest.raises(Unrecoverable, match="has no partitions"):
            wrote(spark, 2_000, "select 1 as n", replace="partitions")
        with pytest.raises(Unrecoverable, match="partitioned by nothing, not by n"):
            wrote(spark, 2_000, "select 1 as n", partition_by=["n"])
        with table().update_spec() as spec:
            spec.add_field("n", BucketTransform(4), "bucket")
        with pytest.raises(Unrecoverable, match=r"partitioned by bucket\[4\] of n"):
            wrote(spark, 2_000, "select 1 as n")
        assert rows() == [(1,)]


class TestCommits:
    def test_only_what_was_accepted_is_there(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1 as n")
        with pytest.raises(LeaseLost):
            publish_iceberg(context(2_000, Nobody()), TABLE, spark.sql("select 2 as n"))
        wrote(spark, 3_000, "select 3 as n")
        assert rows() == [(1,)]
        assert commits() == 1

    def test_many_who_commit_it_at_once_commit_it_once(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 0 as n")
        result = wrote(spark, 2_000, "select 1 as n", replace="nothing")
        others = [wrote(spark, 3_000 + n, f"select {n} as n", replace="nothing") for n in (2, 3)]
        failed: list[BaseException] = []

        def make(one: Any) -> None:
            try:
                assert made(spark, one)
            except BaseException as exc:  # noqa: BLE001  shown by the test
                failed.append(exc)

        threads = [threading.Thread(target=make, args=[one]) for one in (result, result, result, *others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert rows() == [(0,), (1,), (2,), (3,)]
        assert commits() == 4

    def test_a_kill_between_the_commit_and_its_note_is_seen_by_the_next(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = wrote(spark, 1_000, "select 1 as n", replace="nothing")

        def killed(*_: Any) -> None:
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "create", killed)
            with pytest.raises(OSError, match="killed"):
                made(spark, result)
        assert made(spark, result)
        assert rows() == [(1,)]
        assert commits() == 1

    @pytest.mark.parametrize("replace", ["all", "partitions"])
    def test_a_late_commit_does_not_hide_a_later_attempt(self, spark: SparkSession, replace: str) -> None:
        published(spark, 1_000, "select 1 as n, 'a' as p", partition_by=["p"])
        published(spark, 1_500, "select 1 as n, 'z' as p", replace="nothing")
        late = wrote(spark, 2_000, "select 2 as n, explode(array('a', 'b', null)) as p", replace=replace)
        published(spark, 3_000, "select 3 as n, 'a' as p", replace="partitions")
        published(spark, 4_000, "select 4 as n, 'b' as p", replace="nothing")
        assert made(spark, late)
        others = [] if replace == "all" else [(1, "z")]
        assert rows() == sorted([*others, (2, "b"), (2, None), (3, "a"), (4, "b")], key=repr)
        published(spark, 5_000, "select 5 as n, 'c' as p")
        assert rows() == [(5, "c")]

    @pytest.mark.parametrize("what", ["expired", "clock ahead", "both"])
    def test_an_accepted_attempt_is_committed_whatever_others_do(
        self, spark: SparkSession, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Snapshots are expired while it runs, or those of others have times of a clock that is ahead."""
        published(spark, 500, "select 0 as n", replace="nothing")
        late = wrote(spark, 1_000, "select 1 as n", replace="nothing")
        with monkeypatch.context() as patch:
            if what != "expired":
                patch.setattr(time, "time", lambda: time.monotonic() + 9e9)
            published(spark, 2_000, "select 2 as n", replace="nothing")
            others(3)
        if what != "clock ahead":
            expire()
        assert made(spark, late)
        assert rows() == [(0,), (1,), (2,), (3,)]
        assert made(spark, late)
        assert rows() == [(0,), (1,), (2,), (3,)]

    def test_one_that_was_committed_is_known_when_its_snapshot_has_expired(
        self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By a worker that was killed before it wrote that down, and its rows may be replaced by now."""
        result = wrote(spark, 1_000, "select 1 as n", replace="nothing")
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "create", lambda *_: None)
            made(spark, result)
        others(2)
        table().delete("n = 1")
        expire()
        assert made(spark, result)
        assert rows() == [(2,)]

    def test_a_late_commit_hides_no_later_attempt_whose_snapshot_has_expired(
        self, spark: SparkSession
    ) -> None:
        late = wrote(spark, 1_000, "select 1 as n, explode(array('a', 'b')) as p", partition_by=["p"])
        published(spark, 2_000, "select 2 as n, 'a' as p", replace="partitions")
        published(spark, 500, "select 0 as n, 'c' as p", replace="nothing")
        expire()
        assert made(spark, late)
        assert rows() == [(1, "b"), (2, "a")]

    def test_what_is_noted_in_the_table_does_not_grow(self, spark: SparkSession) -> None:
        for number in range(4):
            published(spark, 1_000 + number, f"select {number} as n", replace="nothing")
        assert [name for name in table().properties if "glidemq" in name] == [
            f"glidemq.committed.{name_of(context(1_003))}"
        ]

    @pytest.mark.parametrize("what", ["columns", "partitions", "another table"])
    def test_a_table_that_is_changed_while_a_step_writes_fails_the_step(
        self, spark: SparkSession, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not its commit, when the result was accepted and nobody learns of it."""
        published(spark, 1_000, "select 1L as n, 'a' as p")

        def changes(*given: Any) -> int:
            count = write_counted(*given)
            if what == "columns":
                with table().update_schema() as schema:
                    schema.rename_column("p", "q")
            elif what == "partitions":
                with table().update_spec() as spec:
                    spec.add_identity("p")
            else:
                load_catalog("lake").drop_table("sales.orders")
                load_catalog("lake").create_table("sales.orders", table_schema)
            return count

        table_schema = table().schema()
        with monkeypatch.context() as patch:
            patch.setattr(iceberg_publish, "write_counted", changes)
            with pytest.raises(TableChanged, match=r"iceberg:lake\.sales\.orders were changed while"):
                wrote(spark, 2_000, "select 2L as n, 'b' as p", replace="nothing")

    def test_files_that_went_before_the_commit_are_told(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1 as n")
        late = wrote(spark, 2_000, "select 2 as n")
        for file in Path(late["published"]["path"]).glob("*.parquet"):
            file.unlink()  # as one that removes files that Iceberg does not know would
        with pytest.raises(NotPublished, match=r"1 of 1 files of attempt .* were removed before"):
            made(spark, late)
        assert rows() == [(1,)]

    def test_attempts_that_never_counted_are_removed_and_no_other(self, spark: SparkSession) -> None:
        result = published(spark, 1_000, "select 1 as n")
        never = wrote(spark, 2_000, "select 2 as n")
        noted = Path(table().location().removeprefix("file://"), "versions")
        for file in noted.iterdir():
            file.unlink()  # as one that removes files that Iceberg does not know would
        assert tidy(f"iceberg:{TABLE}", grace=timedelta(0)) == 1
        assert not Path(never["published"]["path"]).exists()
        assert rows() == [(1,)]
        assert read_published(spark, result).count() == 1
        with pytest.raises(Unrecoverable, match="expire these"):
            tidy(f"iceberg:{TABLE}", replaced=timedelta(0))

    def test_a_step_reads_at_least_what_the_steps_before_it_have_published(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select 1 as n")
        new = wrote(spark, 2_000, "select id as n from range(5)")
        with after_dependencies({"clean": new}, spark):
            assert read_published(spark, f"iceberg:{TABLE}").count() == 5


@pytest.mark.usefixtures("_spark_environment")
class TestWorkers:
    def test_days_that_are_published_at_the_same_time_are_all_there(
        self, url: str, run_worker: RunWorker, warm_handlers: Handlers
    ) -> None:
        run_worker(["spark"], warm_handlers, allow_import=["iceberg_steps"], concurrency=4)
        nodes = [
            FlowNode(
                f"d{n}", queue="spark", job="spark.python", data=step("orders", day=f"2026-01-0{n}", rows=n)
            )
            for n in range(1, 6)
        ]
        nodes.append(
            FlowNode(
                "total",
                queue="spark",
                job="spark.python",
                data=step("total"),
                after=[one.name for one in nodes],
            )
        )
        with FlowProducer(url) as flows:
            results = flows.submit(FlowSpec("days", nodes)).wait(timeout=timedelta(seconds=120)).results
        assert results["total"] == [15, 15]
        assert len(rows()) == 15

    @pytest.mark.long
    def test_what_a_worker_could_not_commit_is_committed_by_the_next(
        self, queue: Queue, run_worker: RunWorker, eventually: Eventually,
        monkeypatch: pytest.MonkeyPatch, warm_handlers: Handlers,
    ) -> None:  # fmt: skip
        with monkeypatch.context() as patch:  # as if it was killed between the two
            patch.setattr(acceptance.accepted, "make", lambda *_: None)
            first = run_worker(["spark"], warm_handlers, allow_import=["iceberg_steps"])
            data = step("orders", day="2026-01-01", rows=3)
            queue.add_and_wait("spark.python", data, timeout=timedelta(seconds=60))
            first.stop()
        assert rows() == []
        monkeypatch.setattr(catching_up, "EVERY_SECONDS", 0.2)
        run_worker(["spark"], warm_handlers, allow_import=["iceberg_steps"])
        eventually(lambda: len(rows()) == 3, timeout=30)


def step(function: str, **arguments: Any) -> Any:
    return {"callable": f"iceberg_steps:{function}", "arguments": arguments}
