"""What a published table holds, and its versions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from glidemq_orchestrate.spark import NotPublished, publish, read_published
from glidemq_orchestrate.spark.published.locations.store import HadoopStore, LocalStore
from glidemq_orchestrate.spark.published.locations.target import Folder
from glidemq_orchestrate.spark.published.locations.version import name_of
from glidemq_orchestrate.worker.handlers.signals import Unrecoverable
from tests.spark.published.writing import context, rows, written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    @pytest.mark.long
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

    @pytest.mark.long
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

    @pytest.mark.long
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


@pytest.mark.long
def test_the_example_of_the_documentation_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "published-data.md"
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
