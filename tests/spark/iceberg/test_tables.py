"""What a published table of Iceberg holds, and which statements and tables are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.transforms import BucketTransform, DayTransform

from glidemq_orchestrate.spark import NotPublished, publish, read_published
from glidemq_orchestrate.spark.sessions.engines import engine_for
from glidemq_orchestrate.spark.steps.run import run_step
from glidemq_orchestrate.spark.steps.sql import ALLOW_VARIABLE, SQL_JOB
from glidemq_orchestrate.worker.handlers.named_call import InvalidCall
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable
from tests.spark.iceberg.lake import TABLE, context, made, published, rows, table, wrote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import MakeRun


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

    @pytest.mark.long
    def test_an_empty_frame_empties_the_table(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select id from range(3)")
        assert published(spark, 2_000, "select id from range(3) where id > 5")["published"]["rows"] == 0
        assert rows() == []
        assert read_published(spark, f"iceberg:{TABLE}").count() == 0

    @pytest.mark.long
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

    @pytest.mark.long
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

    @pytest.mark.long
    def test_what_others_deleted_and_added_is_read_as_it_is(self, spark: SparkSession) -> None:
        published(spark, 1_000, "select id, 'a' as name from range(3)")
        table().delete("id = 1")
        with table().update_schema() as schema:
            schema.rename_column("name", "title")
        frame = read_published(spark, f"iceberg:{TABLE}")
        assert sorted(tuple(row) for row in frame.collect()) == [(0, "a"), (2, "a")]
        assert frame.columns == ["id", "title"]

    @pytest.mark.long
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
